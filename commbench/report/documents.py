"""The JSON that other programs read. Its keys are a contract (docs/design.md); base units throughout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from commbench.analyze.datasets import Dataset
from commbench.analyze.diagnose import diagnose
from commbench.analyze.finding import Finding
from commbench.analyze.fit import CurveFit, Estimate, Segment
from commbench.analyze.pairs import PairMatrix, matrices
from commbench.analyze.summary import PointSummary, algbw, busbw
from commbench.records import Record, Seconds
from commbench.spec import Point

_SECONDS = ("median", "low", "high", "p5", "p95", "min", "max")


def show_document(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Records, points and findings of all datasets. Where there are several, each entry names its files.

    "matrices" is there only where points differ in their pair of endpoints.
    """
    pairs = [_matrix(m) | _files(datasets, d) for d in datasets for m in matrices(d.points)]
    return {
        "records": [_record(r) | _files(datasets, d) for d in datasets for r in d.records],
        "points": [_point(p) | _files(datasets, d) for d in datasets for p in d.points],
        "findings": [_finding(f) | _files(datasets, d) for d in datasets for f in diagnose(d)],
        **({"matrices": pairs} if pairs else {}),
    }


def fit_document(fits: Iterable[CurveFit]) -> dict[str, Any]:
    """The fits of some curves."""
    return {"curves": [_fit(fitted) for fitted in fits]}


def _files(datasets: Sequence[Dataset], dataset: Dataset) -> dict[str, Any]:
    return {"files": list(dataset.files)} if len(datasets) > 1 else {}


def _record(record: Record) -> dict[str, Any]:
    return {
        **record.point.key(),
        "run": record.run,
        **_measured(record.point, record.seconds),
        "samples": record.samples,
        "proven_path": record.proven_path,
        "status": record.status,
        **_reason(record),
        "statistic": record.statistic,
        "check": record.check,
        "flags": list(record.flags),
    }


def _point(summary: PointSummary) -> dict[str, Any]:
    return {
        **summary.point.key(),
        "runs": summary.runs,
        "interval": summary.interval,
        **_measured(summary.point, summary.seconds),
        "samples": summary.samples,
        "proven_path": summary.proven_path,
        "status": summary.status,
        **_reason(summary),
        "statistic": summary.statistic,
        "check": summary.check,
        "flags": list(summary.flags),
    }


def _matrix(matrix: PairMatrix) -> dict[str, Any]:
    """A list for each source, of a value for each target; null where nothing was measured."""
    name = "seconds" if matrix.is_latency else "algbw_bytes_per_second"

    def value(cell: PointSummary | None) -> float | None:
        if cell is None or cell.seconds is None:
            return None
        return cell.seconds.median if matrix.is_latency else cell.algbw

    values = [[value(matrix.cells.get((a, b))) for b in matrix.targets] for a in matrix.sources]
    key = {**_curve_key(matrix.key), "bytes": matrix.bytes}
    return key | {"from": list(matrix.sources), "to": list(matrix.targets), name: values}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        **_curve_key(finding.key),
        "sizes": list(finding.sizes),
        "ratio": {name: getattr(finding.ratio, name) for name in ("value", "low", "high")},
        "text": finding.text,
    }


def _reason(of: Record | PointSummary) -> dict[str, Any]:
    return {"reason": of.reason} if of.status != "ok" else {}


def _measured(point: Point, seconds: Seconds | None) -> dict[str, Any]:
    return {
        "seconds": None if seconds is None else {name: getattr(seconds, name) for name in _SECONDS},
        "algbw_bytes_per_second": None if seconds is None else algbw(point, seconds.median),
        "busbw_bytes_per_second": None if seconds is None else busbw(point, seconds.median),
    }


def _fit(fitted: CurveFit) -> dict[str, Any]:
    size, ratio = fitted.largest_residual
    return {
        **_curve_key(fitted.curve.key),
        "points": fitted.points,
        "runs": fitted.runs,
        "alpha_seconds": _estimate(fitted.alpha),
        "bandwidth_bytes_per_second": _estimate(fitted.bandwidth),
        "bus_bandwidth_bytes_per_second": _estimate(fitted.bus_bandwidth),
        "n_half_bytes": _estimate(fitted.n_half),
        "segments": [_segment(segment) for segment in fitted.segments],
        "quality": fitted.quality,
        "largest_residual": {"bytes": size, "ratio": ratio},
        "notes": list(fitted.notes),
    }


def _curve_key(key: Point) -> dict[str, Any]:
    return {name: value for name, value in key.key().items() if name != "bytes"}


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "from_bytes": segment.from_bytes,
        "to_bytes": segment.to_bytes,
        "alpha_seconds": _estimate(segment.alpha),
        "bandwidth_bytes_per_second": _estimate(segment.bandwidth),
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    known = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    if estimate.value is not None:
        return known
    return known | {"upper": estimate.upper} | ({} if estimate.lower is None else {"lower": estimate.lower})
