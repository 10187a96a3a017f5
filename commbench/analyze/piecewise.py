"""One curve cut into lines: the fit, how sure it is, and what bounds a parameter that it does not identify."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from commbench.analyze.likelihood import FREEDOM, REACH, SCALE_FLOOR, Counts, Rows, Theta, Vector, climb
from commbench.stats import t_quantile

# Directions c: what is estimated is c . theta.
ALPHA: Theta = (1.0, 0.0)
BANDWIDTH: Theta = (0.0, -1.0)  # log B = -log g
N_HALF: Theta = (1.0, -1.0)  # log(alpha B)

# Where a bound is looked for: close enough for half a per cent of it by interpolation.
_DISTANCES = np.geomspace(0.01, 2 * REACH, 28)
_RIDGE, _TINY = 1e-12, 1e-290


@dataclass(frozen=True, slots=True)
class Asked:
    """A one-sided bound to be found: of `direction . theta` in a segment, above the peak for side 1, below for -1."""

    segment: int
    direction: Theta
    side: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ways to cut one curve into segments.

    Attributes:
        breaks: of each cut the positions at which a new segment begins.
        begins, ends: of each segment of each cut its first position, and the one after its last.
        in_cut: how many segments each cut has.
    """

    breaks: tuple[tuple[int, ...], ...]
    begins: Counts
    ends: Counts
    in_cut: Counts

    @classmethod
    def of(cls, points: int, breaks: Sequence[tuple[int, ...]]) -> Cuts:
        """The cuts of a curve of so many points."""
        return cls(
            tuple(breaks),
            np.array([begin for cut in breaks for begin in (0, *cut)], dtype=np.intp),
            np.array([end for cut in breaks for end in (*cut, points)], dtype=np.intp),
            np.array([len(cut) + 1 for cut in breaks], dtype=np.intp),
        )


class Piecewise:
    """Times (seconds) at ascending sizes (bytes), both above 0, fitted by a line in each segment.

    Attributes:
        sizes: bytes.
        breaks: positions at which a new segment begins; segments need three sizes or more.
        theta: (log alpha, log 1/B) of each segment.
        scale: the relative scale s.
        residuals: log(measured / fitted time) of each size.
        freedom: sizes less parameters.
    """

    def __init__(self, sizes: Vector, seconds: Vector, breaks: Sequence[int] = ()) -> None:
        self.sizes, self.breaks = sizes, tuple(breaks)
        self._sizes, self._seconds = np.log(sizes), np.log(seconds)
        self._lengths = [after - before for before, after in pairwise((0, *breaks, len(sizes)))]
        rows = Rows.of([(self._sizes, self._seconds, self._lengths)])
        begun = starts(self._sizes, self._seconds, Cuts.of(len(sizes), [self.breaks]))
        _, residual = rows.seen_from(begun)
        scale = np.array([max(float(np.median(np.abs(residual))), SCALE_FLOOR)])
        peak = climb(rows, begun, scale)
        self.theta, self.scale, self._loglik = peak.theta, float(peak.scale[0]), float(peak.loglik[0])
        self._share, self.residuals = rows.seen_from(self.theta)
        self.freedom = len(sizes) - 2 * len(self._lengths)
        # The scale at the peak is too small by n / (n - parameters) in variance, those having been fitted.
        self._shrunk = len(sizes) / self.freedom

    def value(self, segment: int, direction: Theta) -> float:
        """The fitted direction . theta."""
        return dot(direction, self.theta[segment])

    def interval(self, segment: int, direction: Theta) -> tuple[float, float]:
        """Linearised 95 % interval of direction . theta."""
        half = t_quantile(0.975, self.freedom) * self.deviation(segment, direction)
        return self.value(segment, direction) - half, self.value(segment, direction) + half

    def deviation(self, segment: int, direction: Theta) -> float:
        """Standard deviation of direction . theta by the Fisher information of t: (nu+1)/(nu+3) J'J / s^2."""
        begin = sum(self._lengths[:segment])
        share = self._share[begin : begin + self._lengths[segment]]
        rest = 1 - share
        # A parameter that fades out of the model has an empty column: its direction is not known at all.
        a, b, c = (
            float(x @ y) * (1 + _RIDGE * (x is y)) + _TINY for x, y in ((share, share), (share, rest), (rest, rest))
        )
        (u, v), weight = direction, (FREEDOM + 1) / (FREEDOM + 3) / self._shrunk
        return self.scale * math.sqrt(max(u * u * c - 2 * u * v * b + v * v * a, 0.0) / (a * c - b * b) / weight)

    def bounds(self, asked: Sequence[Asked]) -> list[float | None]:
        """One-sided 95 % bounds; None where the likelihood never loses enough to exclude anything.

        Where the profile log-likelihood has lost enough: 2.71 in twice the logarithm for many sizes, and
        by the t quantile in place of the normal one for few.
        """
        if not asked:
            return []
        enough = t_quantile(0.95, self.freedom) * math.sqrt(self._shrunk)
        distances = [_crossing(lost - enough, enough) for lost in self._lost(asked)]
        return [
            None if distance is None else self.value(one.segment, one.direction) + one.side * distance
            for one, distance in zip(asked, distances, strict=True)
        ]

    def _lost(self, asked: Sequence[Asked]) -> Vector:
        """Square root of the drop of twice the profile log-likelihood: float64[bounds, distances].

        The square root, since in a parabola it is linear in the distance.
        """
        shape = len(asked), len(_DISTANCES)
        theta = np.tile(self.theta, (*shape, 1, 1))  # [bounds, distances, segments, 2]
        held = np.zeros_like(theta)
        for number, one in enumerate(asked):
            direction = np.array(one.direction)
            held[number, :, one.segment] = direction
            theta[number, :, one.segment] += np.outer(one.side * _DISTANCES, direction / (direction @ direction))
        rows = Rows.of([(self._sizes, self._seconds, self._lengths)] * (shape[0] * shape[1]))
        scale = np.full(shape[0] * shape[1], self.scale)
        best = climb(rows, theta.reshape(-1, 2), scale, held=held.reshape(-1, 2), tolerance=1e-3).loglik
        return np.sqrt(np.maximum(2 * (self._loglik - best.reshape(shape)), 0.0))


def _crossing(excess: Vector, enough: float) -> float | None:
    """The distance at which `excess`, -enough at distance 0, becomes 0; None when it never does."""
    if not (excess > 0).any():
        return None
    after = int(np.argmax(excess > 0))
    low, high = float(excess[after - 1]) if after else -enough, float(excess[after])
    begin, end = float(_DISTANCES[after - 1]) if after else 0.0, float(_DISTANCES[after])
    return begin + (end - begin) * -low / (high - low)


def starts(log_sizes: Vector, log_seconds: Vector, cuts: Cuts) -> Vector:
    """Where to begin the climb, for each segment of each cut: float64[segments, 2].

    The plateau is the median of the smallest three sizes, the slope that of the largest three.
    """
    three = np.arange(3)
    first = np.minimum(cuts.begins[:, None] + three, cuts.ends[:, None] - 1)
    last = np.maximum(cuts.ends[:, None] - 1 - three, cuts.begins[:, None])
    plateau, slope = np.median(log_seconds[first], axis=1), np.median((log_seconds - log_sizes)[last], axis=1)
    return np.stack((plateau, slope), axis=1)


def dot(left: Theta, right: Vector) -> float:
    """The scalar product of a direction and a theta."""
    return float(left[0] * right[0] + left[1] * right[1])
