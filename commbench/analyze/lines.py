"""Lines through a few neighbouring sizes of a curve, and how far its times may be trusted.

The fit describes a whole curve; this looks at what a size's neighbours say about it. Pure Python on purpose: four
numbers are worth no array, and `show` looks at each window of each curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.analyze.summary import Curve, PointSummary
from commbench.stats import SLICES, t_quantile

SIDE = 4
"""Sizes that a line is drawn through; also the fewest that a segment of the fit has."""

_TIMES = (1e-12, 1e9)  # seconds; what lies outside is no time of a message
_LEAST_NOISE = 0.01
_SHORT = 15  # sizes
_CAUTION = 1.5
_UNKNOWN_NOISE = 0.05  # of a curve too short to show its own, where it has no intervals either


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes, log seconds, and the standard deviation of the latter."""

    size: int
    log_time: float
    noise: float

    @property
    def log_pace(self) -> float:
        """Log of seconds per byte."""
        return self.log_time - math.log(self.size)


def samples_of(curve: Curve) -> list[Sample]:
    """The sound points of a curve, sizes ascending.

    The noise of a point is the larger of its own interval's and the curve's roughness: a wide interval is
    believed, a narrow one says nothing about how much neighbouring sizes differ anyhow.
    """
    sound = [p for p in curve.points if p.is_sound and p.seconds and _TIMES[0] < p.seconds.median < _TIMES[1]]
    times = [(p.point.bytes, p.seconds.median) for p in sound if p.seconds]
    rough = roughness([size for size, _ in times], [time for _, time in times])
    return [
        Sample(size, math.log(time), max(own_deviation(point), rough))
        for (size, time), point in zip(times, sound, strict=True)
    ]


def own_deviation(point: PointSummary) -> float:
    """Standard deviation of a point's log time by its interval (over runs, else of 20 slices); 0 without one."""
    known = point.seconds
    if known is None or known.low is None or known.high is None or not 0 < known.low < known.high < math.inf:
        return 0.0
    freedom = point.runs - 1 if point.interval == "runs" else SLICES - 1
    return math.log(known.high / known.low) / 2 / t_quantile(0.975, freedom)


def roughness(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Standard deviation of one log time as the curve itself shows it: how badly lines fit four neighbours.

    Of all fours the lower third counts, since switches and outliers are no noise. In a short curve one outlier is
    in most of the fours, so the calmest of the curves without one size counts.
    """
    if len(sizes) <= SIDE:
        return _UNKNOWN_NOISE
    curve = [Sample(size, math.log(time), 0.0) for size, time in zip(sizes, seconds, strict=True)]
    if len(curve) > _SHORT:
        return max(_third(curve), _LEAST_NOISE)
    return max(min(_third(curve[:i] + curve[i + 1 :]) for i in range(len(curve))), _LEAST_NOISE)


def _third(curve: Sequence[Sample]) -> float:
    """The square of a four's misfit has an exponential distribution, of which a third lies below 0.4055 variances."""
    misfits = sorted(Line(curve[i : i + SIDE]).misfit for i in range(len(curve) - SIDE + 1))
    # Of few fours a calm look proves little.
    return misfits[len(misfits) // 3] / math.sqrt(0.4055) * (1 + _CAUTION / len(misfits))


class Line:
    """T = alpha + g D through a few neighbouring sizes by relative least squares, both at least 0.

    From a single size only bounds are known: beyond it the time is at most in proportion to size, and before it
    at most as long; the shortest is the other way round.
    """

    def __init__(self, side: Sequence[Sample]) -> None:
        self._only = side[0] if len(side) == 1 else None
        self._unit = side[-1].size
        n, noise = len(side), 0.0
        su = sv = uu = uv = vv = 0.0
        for sample in side:
            u = math.exp(-sample.log_time)
            v = u * sample.size / self._unit
            su, sv, uu, uv, vv = su + u, sv + v, uu + u * u, uv + u * v, vv + v * v
            noise = max(noise, sample.noise)
        determinant = uu * vv - uv * uv
        alpha, slope = 0.0, sv / vv
        if n > 1 and determinant > 0:
            free = (vv * su - uv * sv) / determinant, (uu * sv - uv * su) / determinant
            if min(free) > 0:
                alpha, slope = free
            elif free[1] <= 0:
                alpha, slope = su / uu, 0.0
        missed = n - 2 * (alpha * su + slope * sv) + alpha * alpha * uu + 2 * alpha * slope * uv + slope * slope * vv
        self.misfit = math.sqrt(max(missed, 0.0) / (n - 2)) if n > 2 else 0.0  # noqa: PLR2004 - two fix a line
        self._alpha, self._slope, self._noise = alpha, slope, max(self.misfit, noise)
        self._inverse = (vv / determinant, -uv / determinant, uu / determinant) if determinant > 0 else (0.0, 0.0, 0.0)

    @property
    def slope(self) -> float:
        """Seconds per byte."""
        return self._slope / self._unit

    def at(self, size: int, *, longest: bool = True) -> tuple[float, float]:
        """Log time to expect at a size on the other side of the gap, and its standard deviation."""
        if self._only is not None:
            grown = math.log(size / self._only.size)
            return self._only.log_time + (max(grown, 0.0) if longest else min(grown, 0.0)), self._noise
        x = size / self._unit
        expected = self._alpha + self._slope * x
        (a, b, c) = self._inverse
        return math.log(expected), self._noise * math.sqrt(max(a + 2 * b * x + c * x * x, 0.0)) / expected
