"""From fitted lines to estimates: what the sizes identify, with its interval, and bounds of what they do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from commbench.analyze.fitted import Estimate, Segment
from commbench.analyze.likelihood import Rows, Theta, Vector, climb
from commbench.analyze.piecewise import ALPHA, BANDWIDTH, N_HALF, Asked, Piecewise
from commbench.analyze.segments import MIN_SIZES
from commbench.analyze.summary import Interval
from commbench.stats import interval_over, t_quantile

MIN_SIZES_ON_A_SIDE = 3


def fit_runs(curve: Piecewise, runs: Sequence[Mapping[int, float]]) -> Vector:
    """Theta of each run, cut where the curve is: float64[runs, segments, 2].

    Runs with fewer than four sizes, or than three in some segment, are left out.

    Args:
        curve: the fit over all runs.
        runs: bytes -> seconds of each, ascending.
    """
    edges = curve.sizes[list(curve.breaks)]
    rows = []
    for run in runs:
        sizes = np.array(list(run), dtype=float)
        lengths = np.bincount(np.searchsorted(edges, sizes, side="right"), minlength=len(edges) + 1)
        if len(sizes) >= MIN_SIZES and lengths.min() >= MIN_SIZES_ON_A_SIDE:
            rows.append((np.log(sizes), np.log(list(run.values())), lengths.tolist()))
    if not rows:
        return np.empty((0, *curve.theta.shape))
    peaks = climb(Rows.of(rows), np.tile(curve.theta, (len(rows), 1)), np.full(len(rows), curve.scale))
    return peaks.theta.reshape(-1, *curve.theta.shape)


class Estimator:
    """Estimates of one curve: by the spread of its runs where there are several, else by its residuals.

    Attributes:
        interval: what the intervals are over.
        segments: the lines, ascending.
        n_half: n_1/2 = alpha B, of the first segment's alpha and the last one's B.
    """

    def __init__(self, curve: Piecewise, runs: Vector) -> None:
        """`runs` is what `fit_runs` gives."""
        self._curve = curve
        self._runs = runs if len(runs) > 1 else runs[:0]
        self.interval: Interval = "runs" if len(self._runs) else "within_run"
        edges = (0, *curve.breaks, len(curve.sizes))
        sizes = [curve.sizes[begin:end] for begin, end in pairwise(edges)]
        halves = [math.exp(curve.value(number, N_HALF)) for number in range(len(sizes))]
        knows = [
            (int((some < half).sum()) >= MIN_SIZES_ON_A_SIDE, int((some > half).sum()) >= MIN_SIZES_ON_A_SIDE)
            for some, half in zip(sizes, halves, strict=True)
        ]
        asked = [one for number, known in enumerate(knows) for one in _unknown(number, *known)]
        if len(knows) == 1 and not all(knows[0]):
            asked += [Asked(0, N_HALF, side) for side in ((1,) if knows[0][1] else (1, -1))]
        found = dict(zip(asked, curve.bounds(asked), strict=True))
        self.segments = tuple(
            Segment(
                int(some[0]),
                int(some[-1]),
                self._value(number, ALPHA) if known[0] else _bounds(number, ALPHA, found),
                self._value(number, BANDWIDTH) if known[1] else _bounds(number, BANDWIDTH, found),
                (math.exp(curve.theta[number, 0]), math.exp(curve.theta[number, 1])),
            )
            for number, (some, known) in enumerate(zip(sizes, knows, strict=True))
        )
        self.n_half = self._n_half(found)

    def _value(self, segment: int, direction: Theta) -> Estimate:
        if len(self._runs):
            return Estimate(*interval_over(np.exp(self._runs[:, segment] @ direction).tolist()))
        low, high = self._curve.interval(segment, direction)
        return Estimate(math.exp(self._curve.value(segment, direction)), math.exp(low), math.exp(high))

    def _n_half(self, found: Mapping[Asked, float | None]) -> Estimate:
        alpha, bandwidth = self.segments[0].alpha, self.segments[-1].bandwidth
        known = alpha.value is not None and bandwidth.value is not None
        if len(self.segments) == 1:
            return self._value(0, N_HALF) if known else _bounds(0, N_HALF, found)
        if not known:
            return Estimate(
                None,
                upper=_product(alpha.high or alpha.upper, bandwidth.high or bandwidth.upper),
                lower=_product(alpha.low, bandwidth.low or bandwidth.lower),
            )
        if len(self._runs):
            return Estimate(*interval_over(np.exp(self._runs[:, 0, 0] - self._runs[:, -1, 1]).tolist()))
        last = len(self.segments) - 1
        centre = self._curve.value(0, ALPHA) + self._curve.value(last, BANDWIDTH)
        deviation = math.hypot(self._curve.deviation(0, ALPHA), self._curve.deviation(last, BANDWIDTH))
        half = t_quantile(0.975, self._curve.freedom) * deviation
        return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def _unknown(segment: int, knows_alpha: bool, knows_bandwidth: bool) -> list[Asked]:
    """The bounds to ask for, of what is not identified: B's from below too, since a plateau knows only that."""
    asked = [] if knows_alpha else [Asked(segment, ALPHA, 1)]
    return asked + ([] if knows_bandwidth else [Asked(segment, BANDWIDTH, side) for side in (1, -1)])


def _bounds(segment: int, direction: Theta, found: Mapping[Asked, float | None]) -> Estimate:
    upper, lower = found.get(Asked(segment, direction, 1)), found.get(Asked(segment, direction, -1))
    return Estimate(
        None,
        upper=None if upper is None else math.exp(upper),
        lower=None if lower is None else math.exp(lower),
    )


def _product(alpha: float | None, bandwidth: float | None) -> float | None:
    return None if alpha is None or bandwidth is None else alpha * bandwidth
