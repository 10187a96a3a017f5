"""The model of a curve: T = alpha + D/B in one to three segments, with intervals that say what they are.

* alpha (seconds): what a call costs before the first byte; B (bytes per second): what a further byte costs,
  as algorithm bandwidth, so that bus bandwidth is B x bus factor. Of several segments the curve's alpha is
  that of the first, its B that of the last.
* n_1/2 = alpha B: half of B is reached at this size, 90 % at nine times of it.
* With k >= 2 runs each run is fitted, cut where the curve over all runs is, and the interval is Student's t
  over the runs' logarithms: a run is one launch of all processes and the unit of replication. With one run it
  is linearised from the residuals, and covers less: 71 to 81 % where runs differ by 2 % (docs/measuring.md).
* A parameter is identified when three sizes of its segment lie on its side of the segment's n_1/2: below it
  for alpha, above it for B. Otherwise there is no value, only one-sided 95 % bounds from the profile
  likelihood. For alpha and n_1/2 that is an upper one: alpha may be anything down to nothing. B is the mirror
  image: a sweep that ends on the plateau knows that B is at least something, and often nothing from above, so
  `lower` carries what is known and `upper` may be None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from commbench.analyze.estimates import Estimator, fit_runs
from commbench.analyze.fitted import CurveFit, Estimate, Quality, Segment
from commbench.analyze.lack_of_fit import has_bump, pure_error_probability, signs_probability
from commbench.analyze.likelihood import Vector
from commbench.analyze.piecewise import Piecewise
from commbench.analyze.segments import MIN_SIZES, MOST, Breaks, choose
from commbench.analyze.summary import LOOP, Curve, PointSummary
from commbench.analyze.switches import misplaced
from commbench.errors import CannotTellError
from commbench.spec import READ, UNKNOWN
from commbench.units import format_seconds, format_size, format_size_about

__all__ = ["CurveFit", "Estimate", "Quality", "Segment", "fit_curve", "fit_curves"]

_NEARLY_ALL = 9  # bandwidth at D is B D / (D + n_1/2): 90 % at 9 n_1/2
_UNLIKELY = 0.01  # probability that noise alone leaves such residuals
_OFF = 0.1  # so far from the line that it matters
_FEW = 2  # so many sizes may be off: the worst is named, and they do not make a fit poor
_FALLS = 1.5  # by so much from the smallest to the largest sizes
_FAR = 100  # times the last measured size: too far to name one


def fit_curve(curve: Curve, segments: int | None = None) -> CurveFit:
    """Fit one curve.

    Args:
        curve: times over sizes.
        segments: how many lines; None chooses one to three.

    Raises:
        CannotTellError: one rank, fewer than four sizes (a segment) with sound times, a time that is none, or
            times that fall with size.
    """
    _refuse_hopeless(curve)
    sound = [point for point in curve.points if point.is_sound]
    sizes = np.array([point.point.bytes for point in sound], dtype=float)
    seconds = np.array([point.seconds.median for point in sound if point.seconds])
    breaks, notes = _cut(curve, sound, sizes, seconds, segments)
    lines = Piecewise(sizes, seconds, breaks)
    by_run = _by_run(sound)
    runs = fit_runs(lines, by_run)
    estimates = Estimator(lines, runs)
    rough = float(np.median(np.abs(lines.residuals))) > _OFF
    systematic = _is_systematic(lines, by_run)
    worst = int(np.abs(lines.residuals.round(6)).argmax())  # of nothing but rounding the first
    bandwidth, factor = estimates.segments[-1].bandwidth, curve.key.bus_factor
    return CurveFit(
        curve=curve,
        points=len(sizes),
        runs=max(len(runs), 1),
        interval=estimates.interval,
        alpha=estimates.segments[0].alpha,
        bandwidth=bandwidth,
        bus_bandwidth=Estimate(None) if factor is None else bandwidth.scaled(factor),
        n_half=estimates.n_half,
        segments=estimates.segments,
        quality="poor" if systematic or rough else "good",
        largest_residual=(int(sizes[worst]), math.exp(lines.residuals[worst])),
        notes=(
            *_left_out(curve, len(runs)),
            *_limits(estimates.segments),
            *notes,
            *_tuning(lines, estimates.segments, seconds),
            *_doubts(len(estimates.segments), systematic=systematic, rough=rough),
            *_meaning(curve),
        ),
    )


def fit_curves(curves: Iterable[Curve], segments: int | None = None) -> tuple[list[CurveFit], list[CannotTellError]]:
    """The fits of those curves that have one, and why the others have none.

    The latency of a load has one size by its nature: that it has no fit needs no words.
    """
    fits: list[CurveFit] = []
    refusals, loads = list[CannotTellError](), list[CannotTellError]()
    for curve in curves:
        try:
            fits.append(fit_curve(curve, segments))
        except CannotTellError as refusal:
            (refusals if curve.key.path != READ else loads).append(refusal)
    return fits, refusals if refusals or fits else loads


def _refuse_hopeless(curve: Curve) -> None:
    name = curve.key.op if curve.key.op != UNKNOWN else "unknown operation"
    if curve.key.ranks == 1:
        raise CannotTellError(
            f"{name} on 1 rank: nothing travels, so there is no alpha and no B", "measure with --ranks 2 or more"
        )
    sound = [point for point in curve.points if point.is_sound]
    if not sound:
        raise CannotTellError(f"{name}: no size has a time and a right answer", "`commbench show` says what went wrong")
    for point in sound:
        if not all(0 < seconds < math.inf for _, seconds in point.by_run) or point.point.bytes < 1:
            raise CannotTellError(
                f"{name}: the time of {format_size(point.point.bytes)} is not above 0, so it is no time",
                "was the file edited, or rounded by the tool that wrote it?",
            )
    if len(sound) < MIN_SIZES:
        raise CannotTellError(
            f"{name}: a fit needs {MIN_SIZES} sizes, there {'is' if len(sound) == 1 else 'are'} {len(sound)}",
            "measure from 8 bytes to 64M: -b 8 -e 64M",
        )
    times = [point.seconds.median for point in sound if point.seconds]
    third = len(times) // 3
    first, last = median(times[: third + 1]), median(times[-third - 1 :])
    if first > _FALLS * last:
        raise CannotTellError(
            f"{name}: the times fall with size, from {format_seconds(first)} to {format_seconds(last)}: "
            "alpha + D/B does not describe that",
            "`commbench show` lists them; did something else use the machine at first?",
        )


def _cut(
    curve: Curve, points: Sequence[PointSummary], sizes: Vector, seconds: Vector, segments: int | None
) -> tuple[Breaks, list[str]]:
    """Where the curve changes its line, and a note on each step that is none of the library's.

    Where the time loop itself changes (slices, depth, batch), a step may be its doing: no segment begins there.
    """
    counts = range(1, MOST + 1) if segments is None else (segments,)
    found = choose(sizes, seconds, counts)
    changed = {i for i, (before, after) in enumerate(pairwise(points), 1) if before.loops != after.loops}
    ours = sorted(changed & set(found or ()))
    if ours:
        found = choose(sizes, seconds, counts, changed | {i + side for i in ours for side in (-1, 1)})
    if found is None:
        where = " between which the time loop does not change" if ours else ""
        raise CannotTellError(
            f"{curve.key.op}: {segments} segments need {MIN_SIZES} sizes each{where}, there are {len(sizes)}",
            "leave --segments out, or measure more sizes: -f 1.4",
        )
    return found, [_ours(points[i - 1], points[i]) for i in ours]


def _ours(before: PointSummary, after: PointSummary) -> str:
    changes = [
        f"{name} {' or '.join(map(str, old))} to {' or '.join(map(str, new))}"
        for name, old, new in zip(LOOP, _values(before), _values(after), strict=True)
        if old != new
    ]
    step = f"the step at {format_size(after.point.bytes)}"
    return f"{step} comes where the time loop changes ({', '.join(changes)}): it is not taken for a switch"


def _values(point: PointSummary) -> list[list[int]]:
    return [sorted(set(values)) for values in zip(*point.loops, strict=True)] or [[], [], []]


def _by_run(points: Sequence[PointSummary]) -> list[dict[int, float]]:
    """Per run its medians: bytes -> seconds, ascending."""
    runs: dict[int, dict[int, float]] = {}
    for point in points:
        for run, seconds in point.by_run:
            runs.setdefault(run, {})[point.point.bytes] = seconds
    return [runs[run] for run in sorted(runs)]


def _is_systematic(lines: Piecewise, by_run: Sequence[dict[int, float]]) -> bool:
    """Whether the residuals are more than noise, and large enough to matter."""
    if sorted(np.abs(lines.residuals))[-1 - _FEW] < _OFF:
        return False
    if signs_probability(lines.residuals.tolist()) < _UNLIKELY or has_bump(lines.residuals, lines.scale):
        return True
    full = [list(run.values()) for run in by_run if len(run) == len(lines.sizes)]
    parameters = 2 * len(lines.theta)
    return len(full) > 1 and pure_error_probability(lines.residuals, np.log(full), parameters) < _UNLIKELY


def _left_out(curve: Curve, runs: int) -> Iterator[str]:
    unsound = [point for point in curve.points if not point.is_sound]
    if unsound:
        yield f"left out, without a time or a right answer: {', '.join(format_size(p.point.bytes) for p in unsound)}"
    if 1 < curve.runs != runs:
        yield f"{curve.runs - max(runs, 1)} of {curve.runs} runs left out: fewer than {MIN_SIZES} sizes"


def _limits(segments: Sequence[Segment]) -> Iterator[str]:
    first, last = segments[0], segments[-1]
    if first.alpha.value is None:
        yield f"alpha is not identified, {_around(first)}: start at smaller sizes (--min-bytes)"
    if last.bandwidth.value is None:
        yield f"B is not identified, {_around(last)}: go on to larger sizes (--max-bytes)"
    elif last.to_bytes < _NEARLY_ALL * last.n_half:
        end, wanted = format_size(last.to_bytes), format_size_about(_NEARLY_ALL * last.n_half)
        yield f"the sweep ends at {end}, below 9 n_1/2 = {wanted}: B is an extrapolation"


def _around(segment: Segment) -> str:
    if segment.n_half > _FAR * segment.to_bytes:
        return "n_1/2 is far beyond the sweep"
    if segment.n_half < segment.from_bytes / _FAR:
        return "n_1/2 is far below the sweep"
    return f"n_1/2 is about {format_size_about(segment.n_half)}"


def _tuning(lines: Piecewise, segments: Sequence[Segment], seconds: Vector) -> Iterator[str]:
    for found in misplaced(lines, segments, seconds):
        size = format_size(found.until)
        which, until = ("above", f"from {size} on") if found.comes == "late" else ("below", f"up to {size}")
        yield (
            f"switch at {format_size(found.at)} comes {100 * found.share:.0f} % {found.comes}: "
            f"the protocol {which} it would be faster {until}"
        )


def _doubts(segments: int, *, systematic: bool, rough: bool) -> Iterator[str]:
    lines = "one line describes" if segments == 1 else f"{segments} lines describe"
    if rough:
        yield "half of the sizes are more than 10 % off the line: the times do not follow size alone"
    elif systematic:
        yield f"the residuals are not noise: {lines} this curve badly, read it size by size"


def _meaning(curve: Curve) -> Iterator[str]:
    if curve.key.op == "p2p" and curve.key.mode in ("sync", "pipe"):
        way = "half a round trip" if curve.key.mode == "sync" else "a one-way stream with a window"
        yield f"alpha and B come from {way} (mode {curve.key.mode})"
    elif curve.key.mode == "pipe":
        yield "mode pipe: alpha is the spacing of calls back to back, not the latency of one"
