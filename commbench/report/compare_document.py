"""Comparisons as JSON, in base units. Its keys are no contract yet."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from commbench.analyze.compare import Compared, Comparison, Pair, SizeRatio
from commbench.analyze.crossings import Crossing
from commbench.analyze.matching import KEYS, Candidate
from commbench.analyze.ratios import Ratio
from commbench.analyze.summary import PointSummary
from commbench.report.compare_words import Words


def compare_document(compared: Compared) -> dict[str, Any]:
    """All comparisons. A ratio is other time / first time; "first" and "other" are letters of curves."""
    return {
        "contract": False,
        "comparisons": [_comparison(comparison) for comparison in compared.comparisons],
        "left_out": [
            {"side": left.candidate.name, **_key(left.candidate), "reason": left.reason} for left in compared.left_out
        ],
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    words = Words(comparison)
    curves = comparison.curves
    first = curves[0]
    differing = [key for key in KEYS if any(candidate.get(key) != first.get(key) for candidate in curves)]
    return {
        "differs_in": differing,
        "curves": [
            {"letter": mark, "name": name, "side": candidate.name, "files": list(candidate.files), **_key(candidate)}
            | {"statistic": candidate.statistic, "runs": candidate.curve.runs, **asdict(candidate.curve.setting)}
            for mark, name, candidate in zip(words.letters, words.names, curves, strict=True)
        ],
        "pairs": [_pair(pair, words) for pair in comparison.pairs],
        "changes": [
            {"fact": change.fact, "values": dict(zip(words.letters, change.values, strict=True))}
            for change in comparison.changes
        ],
        "notes": words.notes(),
    }


def _key(candidate: Candidate) -> dict[str, Any]:
    return {name: value for name, value in candidate.curve.key.key().items() if name != "bytes"}


def _pair(pair: Pair, words: Words) -> dict[str, Any]:
    first, other = words.letters[pair.first], words.letters[pair.other]
    return {
        "first": first,
        "other": other,
        "level_ratio": _ratio(pair.level),
        "level_interval": pair.level.basis,
        "alpha_ratio": _ratio(pair.alpha),
        "bandwidth_ratio": _ratio(pair.bandwidth),
        "fit_quality": {
            mark: None if fitted is None else fitted.quality
            for mark, fitted in ((m, words.comparison.fits[at]) for m, at in ((first, pair.first), (other, pair.other)))
        },
        "sizes": [_size(size) for size in pair.sizes],
        "faster": {"first": pair.count(1), "other": pair.count(-1), "undecided": pair.count(0)},
        "crossings": [_crossing(crossing, first, other) for crossing in pair.crossings],
        "only_first_bytes": list(pair.only_first),
        "only_other_bytes": list(pair.only_other),
        "unsound_bytes": list(pair.unsound),
    }


def _size(size: SizeRatio) -> dict[str, Any]:
    return {
        "bytes": size.bytes,
        "first": _point(size.first),
        "other": _point(size.other),
        "ratio": _ratio(size.ratio),
        "interval": size.ratio.basis,
        "interval_holds_one": size.ratio.holds_one,
    }


def _point(point: PointSummary) -> dict[str, Any]:
    known = point.seconds
    assert known is not None
    return {
        "seconds": {"value": known.median, "low": known.low, "high": known.high},
        "busbw_bytes_per_second": point.busbw,
        "runs": point.runs,
        "flags": list(point.flags),
    }


def _crossing(crossing: Crossing, first: str, other: str) -> dict[str, Any]:
    below, above = (first, other) if crossing.first_below else (other, first)
    return {
        "bytes": {"value": crossing.value, "low": crossing.low, "high": crossing.high},
        "between_bytes": [crossing.last_below, crossing.first_above],
        "faster_below": below,
        "faster_above": above,
    }


def _ratio(ratio: Ratio | None) -> dict[str, float | None]:
    if ratio is None:
        return {"value": None, "low": None, "high": None, "upper": None}
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high}
