"""What a fit says: estimates, segments, and a curve's model. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from commbench.analyze.summary import Curve, Interval

Quality = Literal["good", "poor"]


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

    @property
    def n_half(self) -> float:
        """The product alpha B of the line, in bytes."""
        return self.line[0] / self.line[1]


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
        bus_bandwidth: B x bus factor; nothing known where the factor is not.
        n_half: n_1/2 = alpha B in bytes.
        segments: ascending, one to three.
        quality: "poor" when the residuals are not noise, or half of them above 10 %: the lines say little then.
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

    @property
    def switches(self) -> tuple[int, ...]:
        """The first size of each segment but the first."""
        return tuple(segment.from_bytes for segment in self.segments[1:])

    def seconds(self, size: float) -> float:
        """Time of a message of `size` bytes on the fitted line."""
        return next((s for s in self.segments if size <= s.to_bytes), self.segments[-1]).seconds(size)

    def reaches(self, share: float) -> float | None:
        """The size in bytes from which on the fitted curve runs at `share` of B or more; None without B.

        May lie beyond the sweep: then the last line is followed there.
        """
        if self.bandwidth.value is None:
            return None
        last = self.segments[-1]
        target, found = share / last.line[1], share / (1 - share) * last.n_half
        for below, segment in reversed(list(pairwise(self.segments))):
            if found > segment.from_bytes:
                return found
            if below.to_bytes < target * below.seconds(below.to_bytes):
                return float(segment.from_bytes)  # the one below never gets there
            found = target * below.line[0] / (1 - target * below.line[1])
        return found
