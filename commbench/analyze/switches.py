"""Whether a library changes its protocol where it should: neither late nor early."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from commbench.analyze.fitted import Estimate, Segment
from commbench.analyze.likelihood import Vector
from commbench.analyze.piecewise import Piecewise

Comes = Literal["late", "early"]

_WORTH_A_WORD = 0.05
_ODD = 0.1  # off its own line
_SURE = 2.5  # standard deviations


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A switch beside which the neighbouring protocol would have been faster.

    Attributes:
        at: the first size of the segment above the switch, in bytes.
        comes: "late" when the protocol above it should have begun earlier, "early" when the one below should
            have gone on.
        until: the measured size farthest from the switch where the neighbour would have been faster.
        share: how much longer the call took than it would have, at most: 0.2 for 20 %.
    """

    at: int
    comes: Comes
    until: int
    share: float


def misplaced(curve: Piecewise, segments: Iterable[Segment], seconds: Vector) -> Iterator[Misplaced]:
    """The switches of a curve that come late or early by more than 5 %, at sizes that were measured.

    A size counts when both its measured time and its own line are above the neighbour's line, and agree: a switch
    that was placed one size off, or one odd time, must not look like a finding. Where the neighbour's alpha or B
    is not identified its bound is taken, the slow one. Where B falls the data leave a cache: those are no two
    protocols to choose among, and nothing is said.

    Args:
        curve: the fit.
        segments: its lines.
        seconds: the measured times of `curve.sizes`.
    """
    edges = (0, *curve.breaks, len(curve.sizes))
    for number, (below, above) in enumerate(pairwise(segments)):
        if above.line[1] >= below.line[1]:
            continue
        at = edges[number + 1]
        sides: tuple[tuple[Comes, Segment, Segment, int, range], ...] = (
            ("late", below, above, number + 1, range(at - 1, edges[number] - 1, -1)),
            ("early", above, below, number, range(at, edges[number + 2])),
        )
        for comes, own, other, segment, positions in sides:
            gains: list[tuple[int, float]] = []
            for position in positions:
                size = float(curve.sizes[position])
                if abs(curve.residuals[position]) > max(_ODD, 3 * curve.scale):
                    break
                gain = min(own.seconds(size), float(seconds[position])) / _slow_line(other, size) - 1
                doubt = _SURE * math.hypot(curve.scale, _spread(curve, segment, other, size))
                if gain <= _WORTH_A_WORD or math.log1p(gain) <= doubt:
                    break
                gains.append((int(size), gain))
            if gains:
                yield Misplaced(above.from_bytes, comes, gains[-1][0], max(gain for _, gain in gains))


def _slow_line(segment: Segment, size: float) -> float:
    """The time of a size on a segment's line, by the bound of what is not identified; infinite without one."""
    alpha = _known(segment.alpha, segment.line[0], segment.alpha.upper)
    rate = _known(segment.bandwidth, 1 / segment.line[1], segment.bandwidth.lower)
    return math.inf if alpha is None or rate is None else alpha + size / rate


def _known(estimate: Estimate, fitted: float, bound: float | None) -> float | None:
    return bound if estimate.value is None else fitted


def _spread(curve: Piecewise, number: int, segment: Segment, size: float) -> float:
    """Standard deviation of the log of a segment's line at a size."""
    share = segment.line[0] / segment.seconds(size)
    return curve.deviation(number, (share, 1 - share))
