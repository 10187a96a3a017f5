"""The model of a curve: T = alpha + D/B, with intervals that say what they are.

* alpha (seconds): what a call costs before the first byte; B (bytes per second): what a further byte costs,
  as algorithm bandwidth, so that bus bandwidth is B x bus factor.
* n_1/2 = alpha B: half of B is reached at this size, 90 % at nine times of it.
* With k >= 2 runs each run is fitted and the interval is Student's t over the runs' logarithms: a run is one
  launch of all processes and the unit of replication. With one run it is linearised from the residuals, and
  covers less: 71 to 81 % where runs differ by 2 % (docs/measuring.md).
* A parameter is identified when three sizes lie on its side of n_1/2: below it for alpha, above it for B.
  Otherwise there is no value, only one-sided 95 % bounds from the profile likelihood. For alpha and n_1/2
  that is an upper one: alpha may be anything down to nothing. B is the mirror image: a sweep that ends on
  the plateau knows that B is at least something, and often nothing from above, so `lower` carries what is
  known and `upper` may be None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import numpy as np

from commbench.analyze.likelihood import ALPHA, BANDWIDTH, N_HALF, Likelihood, Theta, dot
from commbench.analyze.summary import Curve, Interval, PointSummary
from commbench.errors import CannotTellError
from commbench.spec import READ
from commbench.stats import interval_over
from commbench.units import format_size, format_size_about

Quality = Literal["good", "poor"]

MIN_SIZES = 4
MIN_SIZES_ON_A_SIDE = 3
_NEARLY_ALL = 9  # bandwidth at D is B D / (D + n_1/2): 90 % at 9 n_1/2
_POOR = 0.01  # probability of so few runs of signs in a curve that the line fits
_ROUGH = 0.1  # the median size is farther than this from the line
_EXACT = 20
_ROUNDING = 1e-9
_NEGLIGIBLE = 0.01  # a line within 1 % of every point describes the curve, whatever the signs do


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; when it is not identified, None and one-sided 95 % bounds instead."""

    value: float | None
    low: float | None = None
    high: float | None = None
    upper: float | None = None
    lower: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """The estimate of `factor` times the quantity."""
        parts = (self.value, self.low, self.high, self.upper, self.lower)
        return Estimate(*(None if part is None else part * factor for part in parts))


@dataclass(frozen=True, slots=True)
class Segment:
    """The line over a range of sizes (bytes, both ends measured).

    `line` is (alpha, 1/B) of the fit, there even where a parameter is not identified: it draws the line and
    gives residuals, and is not to be shown as a result.
    """

    from_bytes: int
    to_bytes: int
    alpha: Estimate
    bandwidth: Estimate
    line: tuple[float, float]

    def seconds(self, size: float) -> float:
        """Time of `size` bytes on the fitted line."""
        return self.line[0] + size * self.line[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFit:
    """What a curve comes down to.

    Attributes:
        curve: what was fitted.
        points: how many sizes were fitted.
        runs: how many runs were.
        interval: what the intervals are over.
        alpha: seconds, of the first segment.
        bandwidth: algorithm bandwidth B in bytes per second, of the last segment.
        bus_bandwidth: B x bus factor.
        n_half: n_1/2 in bytes.
        segments: ascending; one for now.
        quality: "poor" when the residuals are not random, or half of them above 10 %: the line says little then.
        largest_residual: (size, measured time / fitted time) where that is farthest from 1.
        notes: what a reader must know to use the numbers.
    """

    curve: Curve
    points: int
    runs: int
    interval: Interval
    alpha: Estimate
    bandwidth: Estimate
    bus_bandwidth: Estimate
    n_half: Estimate
    segments: tuple[Segment, ...]
    quality: Quality
    largest_residual: tuple[int, float]
    notes: tuple[str, ...]

    def seconds(self, size: float) -> float:
        """Time of a message of `size` bytes on the fitted line."""
        return next((s for s in self.segments if size <= s.to_bytes), self.segments[-1]).seconds(size)


def fit_curve(curve: Curve) -> CurveFit:
    """Fit one curve.

    Raises:
        CannotTellError: one rank, fewer than four sizes with sound times, or a time that is none.
    """
    _refuse_hopeless(curve)
    sound = [point for point in curve.points if point.is_sound]
    sizes = np.array([point.point.bytes for point in sound], dtype=float)
    seconds = np.array([point.seconds.median for point in sound if point.seconds])
    runs = [run for run in _by_run(sound) if len(run) >= MIN_SIZES]
    estimator = _Estimator(Likelihood(sizes, seconds), [_likelihood_of(run) for run in runs])

    n_half = estimator.n_half
    knows_alpha = int((sizes < n_half).sum()) >= MIN_SIZES_ON_A_SIDE
    knows_bandwidth = int((sizes > n_half).sum()) >= MIN_SIZES_ON_A_SIDE
    alpha = estimator.value(ALPHA) if knows_alpha else estimator.bounds(ALPHA)
    bandwidth = estimator.value(BANDWIDTH) if knows_bandwidth else estimator.bounds(BANDWIDTH, lower=True)
    both = knows_alpha and knows_bandwidth
    segment = Segment(int(sizes[0]), int(sizes[-1]), alpha, bandwidth, estimator.line)

    residuals = np.log(seconds) - np.log([segment.seconds(size) for size in sizes.tolist()])
    worst = int(np.abs(residuals).argmax())
    systematic = signs_probability(residuals.tolist()) < _POOR and abs(residuals[worst]) > _NEGLIGIBLE
    rough = float(np.median(np.abs(residuals))) > _ROUGH
    fitted = CurveFit(
        curve=curve,
        points=len(sizes),
        runs=max(len(runs), 1),
        interval=estimator.interval,
        alpha=alpha,
        bandwidth=bandwidth,
        bus_bandwidth=bandwidth.scaled(curve.key.bus_factor),
        n_half=estimator.value(N_HALF) if both else estimator.bounds(N_HALF, lower=not knows_bandwidth),
        segments=(segment,),
        quality="poor" if systematic or rough else "good",
        largest_residual=(int(sizes[worst]), math.exp(residuals[worst])),
        notes=(),
    )
    return replace(fitted, notes=tuple(_notes(fitted, n_half, systematic=systematic, rough=rough)))


def fit_curves(curves: Iterable[Curve]) -> tuple[list[CurveFit], list[CannotTellError]]:
    """The fits of those curves that have one, and why the others have none.

    The latency of a load has one size by its nature: that it has no fit needs no words.
    """
    fits: list[CurveFit] = []
    refusals, loads = list[CannotTellError](), list[CannotTellError]()
    for curve in curves:
        try:
            fits.append(fit_curve(curve))
        except CannotTellError as refusal:
            (refusals if curve.key.path != READ else loads).append(refusal)
    return fits, refusals if refusals or fits else loads


class _Estimator:
    """Estimates of one curve: by the spread of its runs where there are several, else by its residuals."""

    def __init__(self, curve: Likelihood, runs: Sequence[Likelihood]) -> None:
        self._curve = curve
        self._peak = curve.peak()
        self._runs = [run.peak() for run in runs] if len(runs) > 1 else []
        self.interval: Interval = "runs" if self._runs else "within_run"

    @property
    def n_half(self) -> float:
        """n_1/2 in bytes of the curve's own fit: what identification is judged by."""
        return math.exp(dot(N_HALF, self._peak.theta))

    @property
    def line(self) -> tuple[float, float]:
        """(alpha, 1/B) of the curve's own fit."""
        return math.exp(self._peak.theta[0]), math.exp(self._peak.theta[1])

    def value(self, direction: Theta) -> Estimate:
        if self._runs:
            return Estimate(*interval_over([math.exp(dot(direction, run.theta)) for run in self._runs]))
        low, high = self._curve.interval(self._peak, direction)
        return Estimate(math.exp(dot(direction, self._peak.theta)), math.exp(low), math.exp(high))

    def bounds(self, direction: Theta, *, lower: bool = False) -> Estimate:
        above = self._curve.bound(self._peak, direction, 1)
        below = self._curve.bound(self._peak, direction, -1) if lower else None
        return Estimate(
            None,
            upper=None if above is None else math.exp(above),
            lower=None if below is None else math.exp(below),
        )


def _refuse_hopeless(curve: Curve) -> None:
    name = curve.key.op
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


def _by_run(points: Sequence[PointSummary]) -> list[dict[int, float]]:
    """Per run its medians: bytes -> seconds."""
    runs: dict[int, dict[int, float]] = {}
    for point in points:
        for run, seconds in point.by_run:
            runs.setdefault(run, {})[point.point.bytes] = seconds
    return [runs[run] for run in sorted(runs)]


def _likelihood_of(run: dict[int, float]) -> Likelihood:
    return Likelihood(np.array(list(run), dtype=float), np.array(list(run.values())))


def _notes(fitted: CurveFit, n_half: float, *, systematic: bool, rough: bool) -> Iterator[str]:
    curve = fitted.curve
    unsound = [point for point in curve.points if not point.is_sound]
    if unsound:
        yield f"left out, without a time or a right answer: {', '.join(format_size(p.point.bytes) for p in unsound)}"
    if 1 < curve.runs != fitted.runs:
        yield f"{curve.runs - fitted.runs} of {curve.runs} runs left out: fewer than {MIN_SIZES} sizes"
    around = f"n_1/2 is about {format_size_about(n_half)}"
    if fitted.alpha.value is None:
        yield f"alpha is not identified, {around}: start at smaller sizes (--min-bytes)"
    if fitted.bandwidth.value is None:
        yield f"B is not identified, {around}: go on to larger sizes (--max-bytes)"
    elif fitted.segments[-1].to_bytes < _NEARLY_ALL * n_half:
        end, wanted = format_size(fitted.segments[-1].to_bytes), format_size_about(_NEARLY_ALL * n_half)
        yield f"the sweep ends at {end}, below 9 n_1/2 = {wanted}: B is an extrapolation"
    if rough:
        yield "half of the sizes are more than 10 % off the line: the times do not follow size alone"
    elif systematic:
        yield "the residuals are not random: one line describes this curve badly, read it size by size"
    if curve.key.op == "p2p":
        way = "half a round trip" if curve.key.mode == "sync" else "a one-way stream with a window"
        yield f"alpha and B come from {way} (mode {curve.key.mode})"
    elif curve.key.mode == "pipe":
        yield "mode pipe: alpha is the spacing of calls back to back, not the latency of one"


def signs_probability(residuals: Sequence[float]) -> float:
    """Probability of this few runs of equal signs, or fewer, by chance (Wald and Wolfowitz 1940).

    1 where all signs are equal or there are none; residuals of nothing but rounding have no sign. Exact up
    to 20 of a sign, the normal approximation beyond.
    """
    signs = [residual > 0 for residual in residuals if abs(residual) > _ROUNDING]
    plus, minus = signs.count(True), signs.count(False)
    if not plus or not minus:
        return 1.0
    runs = 1 + sum(left != right for left, right in pairwise(signs))
    if max(plus, minus) > _EXACT:
        count = plus + minus
        mean = 1 + 2 * plus * minus / count
        variance = (mean - 1) * (mean - 2) / (count - 1)
        return NormalDist(mean, math.sqrt(variance)).cdf(runs + 0.5)
    ways = sum(_arrangements(plus, minus, fewer) for fewer in range(2, runs + 1))
    return ways / math.comb(plus + minus, plus)


def _arrangements(plus: int, minus: int, runs: int) -> int:
    """Orders of `plus` and `minus` signs that have exactly `runs` runs."""
    half, odd = divmod(runs, 2)
    if not odd:
        return 2 * math.comb(plus - 1, half - 1) * math.comb(minus - 1, half - 1)
    return sum(math.comb(a - 1, half) * math.comb(b - 1, half - 1) for a, b in ((plus, minus), (minus, plus)))
