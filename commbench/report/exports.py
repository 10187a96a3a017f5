"""Results and verdicts as other trackers read them: github-action-benchmark and Bencher.

* github-action-benchmark, tool "customSmallerIsBetter": a list of {"name", "unit", "value", "range", "extra"};
  https://github.com/benchmark-action/github-action-benchmark.
* Bencher Metric Format, adapter "json": {benchmark: {measure: {"value", "lower_value", "upper_value"}}};
  https://bencher.dev/docs/reference/bencher-metric-format. Its built-in measure "latency" is in nanoseconds.

A curve of 25 sizes is 25 chances of a false alarm in either; of a verdict only its level and bands are exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.analyze.datasets import Dataset, curves_of
from commbench.analyze.verdicts import GateReport, Ratio
from commbench.errors import UsageError
from commbench.report.text import labels, words
from commbench.units import format_size


@dataclass(frozen=True, slots=True)
class Series:
    """One number to track.

    Attributes:
        unit: "s", or "ratio" of candidate to baseline.
    """

    name: str
    unit: str
    value: float
    low: float | None
    high: float | None
    extra: str


def series_of_results(found: Sequence[Dataset]) -> list[Series]:
    """The time of every point, over its runs; points that failed are left out."""
    curves = curves_of(found)
    names = labels(curves)
    return [
        Series(
            f"{', '.join(words(curve.key))} @ {format_size(point.point.bytes)}" + (f" ({name})" if clash else ""),
            "s",
            point.seconds.median,
            point.seconds.low,
            point.seconds.high,
            f"{point.runs} runs, {point.samples} samples",
        )
        for curve, name in zip(curves, names, strict=True)
        for clash in [sum(other.key == curve.key for other in curves) > 1]
        for point in curve.points
        if point.is_sound and point.seconds is not None
    ]


def series_of_verdict(report: GateReport) -> list[Series]:
    """Level and bands of every curve."""
    found = []
    for curve in report.curves:
        parts: Iterable[tuple[str, Ratio]] = [("all sizes", curve.level), *((b.where, b.ratio) for b in curve.bands)]
        found += [
            Series(
                f"{', '.join(words(curve.key))} @ {where}", "ratio", ratio.value, ratio.low, ratio.high, curve.verdict
            )
            for where, ratio in parts
            if ratio.value is not None
        ]
    return found


def exported(series: Sequence[Series], form: str) -> Any:
    """The JSON value of one of `FORMATS`.

    Raises:
        UsageError: there is no such format.
    """
    if form not in FORMATS:
        raise UsageError(f"--export: unknown format {form!r}", f"one of: {', '.join(FORMATS)}")
    return FORMATS[form](series)


def _github_action_benchmark(series: Sequence[Series]) -> list[dict[str, Any]]:
    entries = []
    for one in series:
        factor, unit = (1e6, "us") if one.unit == "s" else (1.0, one.unit)
        entry: dict[str, Any] = {"name": one.name, "unit": unit, "value": one.value * factor}
        if one.low is not None and one.high is not None:
            entry["range"] = f"± {(one.high - one.low) / 2 * factor:.4g}"
        entries.append(entry | {"extra": one.extra})
    return entries


def _bencher(series: Sequence[Series]) -> dict[str, Any]:
    document = {}
    for one in series:
        measure, factor = ("latency", 1e9) if one.unit == "s" else ("time-ratio", 1.0)
        metric = {"value": one.value * factor}
        if one.low is not None and one.high is not None:
            metric |= {"lower_value": one.low * factor, "upper_value": one.high * factor}
        document[one.name] = {measure: metric}
    return document


FORMATS: dict[str, Callable[[Sequence[Series]], Any]] = {
    "github-action-benchmark": _github_action_benchmark,
    "bencher": _bencher,
}
