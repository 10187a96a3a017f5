"""What is odd about the shape of a curve: times over sizes, and nothing else.

A library that changes its algorithm at some size makes the time jump there, and from then on another line holds.
That is a segment of the fit and not odd. So a size is slow only when neither the line of the sizes below nor that
of the sizes above explains it, and a jump is bad news only when no larger size pays for it. A time that falls
with size and a bandwidth that falls and stays low need no such care: a library could have sent the larger
message, or two smaller ones. Those are the monotony and split-robustness of self-consistent performance
guidelines (Traeff, Gropp, Thakur: IEEE TPDS 21(5), 2010).

What is reported is large (the floors below) and certain: `CERTAIN` standard deviations. The deviation of a size
is the larger of its own interval's and the curve's roughness, so that numbers without intervals are judged too.
`benchmarks/simulate_findings.py` shows how often that is wrong and what it finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.analyze.lines import SIDE, Line, Sample

ShapeKind = Literal["dip", "fast_size", "time_falls", "cliff", "sinking_plateau", "step"]

MIN_SIZES = 6
CERTAIN = 4.0
"""Standard deviations; a curve of 25 sizes gives a hundred chances to be wrong."""
_DOUBTED = 3.0  # the same against one other explanation of what is already certain to need one

# Floors, as logarithms of a ratio of times.
_SLOW = math.log(4 / 3)  # a quarter of the bandwidth is gone
_FALLS = math.log(1.15)
_FIRST_FALLS = math.log(1.25)  # tools that warm up little have a slow first size
_SINKS = math.log(1.25)
_STEPS = math.log(1.3)
_UNPAID = math.log(1.2)

_WIDEST: dict[ShapeKind, int] = {"dip": 3, "fast_size": 1}  # neighbouring sizes that count as outliers
_SHORTEST_TAIL = 2
_AT_ONCE = 0.9
_MOST_OUTLIERS = 8  # a curve with more is not a curve with outliers


@dataclass(frozen=True, slots=True)
class Oddity:
    """One thing that is odd.

    Attributes:
        sizes: what takes longer than it should (less, for "fast_size"), ascending.
        beside: the sizes it is compared with: on both sides, the faster larger one, the plateau, the one before.
        excess: log of time / expected time, of the worst of the sizes.
        deviation: standard deviation of `excess`.
    """

    kind: ShapeKind
    sizes: tuple[int, ...]
    beside: tuple[int, ...]
    excess: float
    deviation: float


def oddities_of_shape(curve: Sequence[Sample]) -> list[Oddity]:
    """What is odd about a curve (sizes ascending, all different); nothing when it has fewer than `MIN_SIZES`."""
    if len(curve) < MIN_SIZES:
        return []
    curve, outlying = _without_outlying(curve)
    return [*outlying, *_falls(curve), *(_sunk(curve) or _steps(curve))]


def _without_outlying(curve: Sequence[Sample]) -> tuple[Sequence[Sample], list[Oddity]]:
    """The curve without the sizes that neither side explains, and those: one or a few neighbours a time."""
    found: list[Oddity] = []
    while len(curve) >= MIN_SIZES and len(found) < _MOST_OUTLIERS:
        count = len(curve)
        below = [Line(curve[max(i - SIDE, 0) : i]) for i in range(1, count)]
        above = [Line(curve[i : i + SIDE]) for i in range(1, count)]
        tried = [
            _outlying(curve, first, first + width, below[first - 1], above[first + width - 1], kind)
            for kind, widest in _WIDEST.items()
            for width in range(1, widest + 1)
            for first in range(1, count - width)
        ]
        worst = max((oddity for oddity in tried if oddity), key=lambda o: abs(o.excess) / o.deviation, default=None)
        if worst is None:
            break
        found.append(worst)
        curve = [sample for sample in curve if sample.size not in worst.sizes]
    return curve, found


def _outlying(
    curve: Sequence[Sample], first: int, stop: int, below: Line, above: Line, kind: ShapeKind
) -> Oddity | None:
    """Sizes first..stop-1 as an oddity, None when the sizes around them or one side alone explain them."""
    slow = kind == "dip"
    window, before, after = curve[first:stop], curve[first - 1], curve[stop]
    falls = window[-1].log_time - after.log_time if slow else before.log_time - window[0].log_time
    if (falls < _FALLS and not slow) or (len(window) > 1 and not _costs_more(window, before, after)):
        return None
    floor = _FALLS if slow and falls > _FALLS else _SLOW
    worst = (0.0, 1.0)
    for sample in window:
        tests = []
        for line, certain in ((below, _DOUBTED), (above, _DOUBTED), (None, CERTAIN)):
            expected, unsure = (line or Line((before, after))).at(sample.size, longest=slow)
            excess = sample.log_time - expected if slow else expected - sample.log_time
            if excess < floor:
                return None
            tests.append((excess, math.hypot(unsure, sample.noise), certain))
        if all(excess >= certain * deviation for excess, deviation, certain in tests):
            worst = max(worst, min(tests)[:2])
    excess, deviation = worst
    if not excess:
        return None
    sizes, beside = tuple(s.size for s in window), (before.size, after.size)
    return Oddity(kind, sizes, beside, excess if slow else -excess, deviation)


def _costs_more(window: Sequence[Sample], before: Sample, after: Sample) -> bool:
    """Of several sizes each must be slower than the next one after, or per byte than the one before.

    Otherwise a few sizes with a protocol of their own would pass for a dip.
    """
    return all(
        sample.log_time - after.log_time > _FALLS or sample.log_pace - before.log_pace > _FALLS for sample in window
    )


def _falls(curve: Sequence[Sample]) -> list[Oddity]:
    """Gaps over which the time falls, the most certain first; what is slow is what takes longer than the size after.

    Up to four sizes on both sides are averaged, which makes noise small and a fall never larger.
    """
    gaps: list[tuple[float, int, float]] = []
    for gap in range(1, len(curve)):
        floor = _FALLS if gap > 1 else _FIRST_FALLS
        if curve[gap - 1].log_time - curve[gap].log_time < floor:
            continue
        fall, deviation = max(
            (
                _difference(curve[gap - before : gap], curve[gap : gap + after])
                for before in range(1, min(SIDE, gap) + 1)
                for after in range(1, min(SIDE, len(curve) - gap) + 1)
            ),
            key=lambda pair: pair[0] / pair[1],
        )
        if fall > max(floor, CERTAIN * deviation):
            gaps.append((fall / deviation, gap, deviation))
    found: list[Oddity] = []
    taken: list[int] = []
    for _, gap, deviation in sorted(gaps, reverse=True):
        if any(abs(gap - other) < SIDE for other in taken):
            continue
        after = curve[gap]
        first = gap - 1
        while first > 0 and first not in taken and curve[first - 1].log_time - after.log_time > _FALLS:
            first -= 1
        taken.append(gap)
        slow = curve[first:gap]
        excess = max(sample.log_time for sample in slow) - after.log_time
        found.append(Oddity("time_falls", tuple(s.size for s in slow), (after.size,), excess, deviation))
    return found


def _difference(before: Sequence[Sample], after: Sequence[Sample]) -> tuple[float, float]:
    """Mean log time before minus after, and its standard deviation."""
    means = [sum(s.log_time for s in part) / len(part) for part in (before, after)]
    errors = [math.sqrt(sum(s.noise**2 for s in part)) / len(part) for part in (before, after)]
    return means[0] - means[1], math.hypot(*errors)


def _sunk(curve: Sequence[Sample]) -> list[Oddity]:
    """Bandwidth that falls from its plateau and stays below it to the end.

    The plateau is the best two to four neighbouring sizes: one lucky size makes none. Each size of the tail must
    have lost half of the floor, the tail all of it; of several tails the one that differs most certainly counts.
    """
    paces, variances = [s.log_pace for s in curve], [s.noise**2 for s in curve]
    plateaus: dict[int, tuple[float, float, int]] = {}  # width -> level, its variance, first size, of the best so far
    best = (CERTAIN, 0, 0, 0, 0.0, 0.0)
    tails = _tails(paces, variances)
    for first in range(2, len(curve) - _SHORTEST_TAIL + 1):
        mean, variance, least = tails[first]
        for width in range(2, min(SIDE, first) + 1):
            part = slice(first - width, first)
            latest = (sum(paces[part]) / width, sum(variances[part]) / width**2, first - width)
            plateaus[width] = min(plateaus.get(width, latest), latest)
        for width, (level, unsure, start) in plateaus.items():
            if mean - level > _SINKS and least - level > _SINKS / 2:
                deviation = math.sqrt(variance + unsure)
                best = max(best, ((mean - level) / deviation, first, start, start + width, level, deviation))
    _, first, start, stop, level, deviation = best
    if not first:
        return []
    at_once = paces[first] - paces[first - 1] > _AT_ONCE * (max(paces[first:]) - level)
    sizes, plateau = tuple(s.size for s in curve[first:]), tuple(s.size for s in curve[start:stop])
    end = sum(paces[-_SHORTEST_TAIL:]) / _SHORTEST_TAIL - level
    return [Oddity("cliff" if at_once else "sinking_plateau", sizes, plateau, end, deviation)]


def _tails(paces: Sequence[float], variances: Sequence[float]) -> list[tuple[float, float, float]]:
    """For every size: mean pace from it to the end, the variance of that mean, the least pace."""
    tails, total, variance, least = [], 0.0, 0.0, math.inf
    for count, (pace, own) in enumerate(zip(reversed(paces), reversed(variances), strict=True), 1):
        total, variance, least = total + pace, variance + own, min(least, pace)
        tails.append((total / count, variance / count**2, least))
    return tails[::-1]


def _steps(curve: Sequence[Sample]) -> list[Oddity]:
    """A jump that the lines on both sides see and that no larger size pays for.

    The most that the lower line could have cost later on is bounded by its steepest slope: the line's own, or
    from the smallest size to the last before the jump.
    """
    for stop in range(SIDE, len(curve) - SIDE + 1):
        below, above = Line(curve[stop - SIDE : stop]), Line(curve[stop : stop + SIDE])
        last, first = curve[stop - 1], curve[stop]
        from_below, from_above = below.at(first.size), above.at(last.size)
        jump = min(first.log_time - from_below[0], from_above[0] - last.log_time)
        deviation = math.hypot(max(from_below[1], from_above[1]), max(last.noise, first.noise))
        if jump < max(_STEPS, _DOUBTED * deviation):
            continue
        margin = 2 * max(sample.noise for sample in curve[:stop])
        smallest, time = curve[0], math.exp(last.log_time)
        chord = time * math.exp(margin) - math.exp(smallest.log_time - margin)
        steepest = max(below.slope, chord / (last.size - smallest.size))
        later = curve[stop:]
        if min(s.log_time - math.log(time + steepest * (s.size - last.size)) for s in later) > _UNPAID:
            return [Oddity("step", tuple(s.size for s in later), (last.size,), jump, deviation)]
    return []
