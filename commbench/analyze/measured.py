"""Findings that the records themselves carry: failures, wrong answers and the flags set while measuring."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from commbench.analyze.finding import BROKEN, NO_RATIO, TO_KNOW, UNSURE, Finding, sizes_in_words
from commbench.analyze.fit import Estimate
from commbench.analyze.summary import Curve, PointSummary, flag_rank
from commbench.records import Record
from commbench.stats import FLAGS
from commbench.units import format_percent, format_seconds

_DOUBTFUL = ("state_changed", "two_modes", "drift", "unstable", "one_rank_last")

# What a flag is enough to explain at the same size: said once.
_EXPLAINS = {
    "state_changed": {"two_modes", "drift", "unstable", "autocorrelated", "outliers"},
    "drift": {"two_modes", "unstable", "autocorrelated"},
    "two_modes": {"unstable", "autocorrelated"},
    "few_samples": {"unstable"},
    "partial": {"few_samples", "unstable"},
}

_LEAST_SHARE = 0.2  # of the samples, for a mode; as `stats.has_two_modes` asks


def findings_of_records(curve: Curve, records: Iterable[Record]) -> Iterator[Finding]:
    """What went wrong at some sizes of a curve, then its flags, each once with all its sizes.

    `records` are the curve's own, for what a flag's text can say beyond its name.
    """
    points = curve.points
    yield from _broken("wrong_answer", curve, [p for p in points if p.check == "wrong"])
    yield from _broken("hung", curve, [p for p in points if p.status == "hung"])
    yield from _broken("failed", curve, [p for p in points if p.status == "failed" and p.check != "wrong"])
    flagged = [record for record in records if record.flags]
    sizes_of = {flag: [p.point.bytes for p in points if flag in _unexplained(p)] for p in points for flag in p.flags}
    for flag in sorted(sizes_of, key=flag_rank):
        if sizes := sizes_of[flag]:
            ratio, more = _details(flag, [r for r in flagged if flag in r.flags and r.point.bytes in sizes])
            where = sizes_in_words(sizes, [p.point.bytes for p in points])
            yield Finding(
                kind=flag,
                key=curve.key,
                sizes=tuple(sizes),
                ratio=ratio,
                text=f"{flag} at {where}: {more or FLAGS.get(flag, 'unknown to this version')}",
                severity=UNSURE if flag in _DOUBTFUL else TO_KNOW,
            )


def _broken(kind: str, curve: Curve, points: Sequence[PointSummary]) -> Iterator[Finding]:
    if points:
        sizes = tuple(point.point.bytes for point in points)
        where = sizes_in_words(sizes, [p.point.bytes for p in curve.points])
        reason = next((point.reason for point in points if point.reason), "")
        text = f"{kind.replace('_', ' ')} at {where}" + (f": {reason}" if reason else "")
        yield Finding(kind=kind, key=curve.key, sizes=sizes, text=text, severity=BROKEN)


def _unexplained(point: PointSummary) -> set[str]:
    flags = set(point.flags)
    return flags - {explained for flag in flags for explained in _EXPLAINS.get(flag, ())}


def _details(flag: str, records: Sequence[Record]) -> tuple[Estimate, str]:
    """The ratio of a flag that has one, and what these records say beyond its general text."""
    if flag == "one_rank_last" and (slowest := [r.slowest for r in records if r.slowest]):
        rank, times = Counter(rank for rank, _ in slowest).most_common(1)[0]
        share = max(share for other, share in slowest if other == rank)
        which = f"rank {rank}" if times == len(slowest) else f"rank {rank} mostly"
        text = f"{which}, in up to {format_percent(share)} of the calls: look at its core, GPU, NIC and neighbours"
        return NO_RATIO, text
    if flag == "two_modes":
        modes = [found for record in records if (found := _modes(record.histogram))]
        if modes:
            low, high, share = max(modes, key=lambda mode: mode[1] / mode[0])
            text = f"calls take {format_seconds(low)} or {format_seconds(high)} ({format_percent(share)} of them)"
            return Estimate(high / low), f"{text}: the median is neither, something switches between two states"
    return NO_RATIO, ""


def _modes(histogram: Mapping[str, Any] | None) -> tuple[float, float, float] | None:
    """Medians in seconds of the two groups of a histogram (`LogHistogram.to_json`), and the share of the slower.

    Split where the groups differ most for their spread (Otsu 1979: the largest variance between them).
    """
    if not histogram:
        return None
    try:
        base, step = float(histogram["base"]), float(histogram["step"])
        bins = [int(position) for position in histogram["bins"]]
        counts = [int(count) for count in histogram["counts"]]
    except (KeyError, TypeError, ValueError):
        return None  # a file from elsewhere; nothing is lost but a detail
    total, moment = sum(counts), sum(b * c for b, c in zip(bins, counts, strict=False))
    splits = []
    sums = accumulate((b * c for b, c in zip(bins, counts, strict=False)))
    for position, (below, sum_below) in enumerate(zip(accumulate(counts), sums, strict=False), 1):
        if total and _LEAST_SHARE <= below / total <= 1 - _LEAST_SHARE and position < len(bins):
            between = (moment - sum_below) / (total - below) - sum_below / below
            splits.append((below * (total - below) * between**2, position, below))
    if not splits:
        return None
    _, position, below = max(splits)
    low, high = (
        base * math.exp(step * (_median_bin(bins[part], counts[part]) + 0.5))
        for part in (slice(position), slice(position, None))
    )
    return low, high, (total - below) / total


def _median_bin(bins: Sequence[int], counts: Sequence[int]) -> int:
    half = sum(counts) / 2
    return next(position for position, reached in zip(bins, accumulate(counts), strict=False) if reached >= half)
