"""The gate's JSON. Its keys are a contract (docs/design.md): ratios are candidate time / baseline time."""

from __future__ import annotations

from typing import Any

from commbench.analyze.verdicts import CurveVerdict, GateReport, Hit, Ratio


def gate_document(report: GateReport, exit_code: int) -> dict[str, Any]:
    """The whole verdict, with the exit code of the command."""
    return {
        "verdict": report.verdict,
        "exit_code": exit_code,
        "margin": report.margin,
        "curves": [_curve(curve) for curve in report.curves],
        "reasons": list(report.reasons),
        "changed": [
            {"fact": change.fact, "baseline": change.values[0], "candidate": change.values[1]}
            for change in report.changed
        ],
    }


def _curve(curve: CurveVerdict) -> dict[str, Any]:
    return {
        **{name: value for name, value in curve.key.key().items() if name != "bytes"},
        "verdict": curve.verdict,
        "stage": curve.stage,
        "level_ratio": _ratio(curve.level),
        "bands": [_hit(band) for band in curve.bands],
        "hits": [_hit(hit) for hit in curve.hits],
        "improvements": [_hit(hit) for hit in curve.improvements],
        "met": list(curve.met),
        "smallest_detectable": curve.smallest_detectable,
        "pairs": curve.pairs,
        "replicates": curve.replicates,
        "sizes": curve.sizes,
        "pairs_needed": curve.pairs_needed,
        "reasons": list(curve.reasons),
    }


def _hit(hit: Hit) -> dict[str, Any]:
    sizes = hit.sizes or (None, None)
    known = {
        "family": hit.family,
        "where": hit.where,
        "from_bytes": sizes[0],
        "to_bytes": sizes[1],
        "ratio": _ratio(hit.ratio),
        "p": hit.p,
    }
    return known | ({"text": hit.text} if hit.text else {})


def _ratio(ratio: Ratio) -> dict[str, float | None]:
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}
