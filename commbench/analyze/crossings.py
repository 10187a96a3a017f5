"""The sizes at which two curves change places: "shm below 64K, p2p above".

With 24 sizes at 95 % each, a size or two seem decided by chance, in either direction. So a curve is ahead over a
stretch only where several sizes say so with none to the contrary between them: two where intervals are over
launches; three, each by 10 % at least, where they are within one launch and know nothing of the next.

Simulated with 24 sizes, 3 % noise of a size and a 2 % factor of a launch, 600 times each: equal curves never cross
(1, 2, 3 or 5 launches a side; with twice that noise and one launch a side in 2 %), curves that differ by 20 % at
either end do in 80 % (2 launches) and 100 % (3, 5), and the interval of the place holds it in 98 to 100 %. With one
launch it holds it in 66 %, which is why `Crossing` is to be shown with what its intervals are over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from commbench.analyze.ratios import Ratio

_ENOUGH = 2
_ENOUGH_WITHIN_RUN = 3
_FLOOR_WITHIN_RUN = math.log(1.1)

Sized = tuple[int, Ratio]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A size at which the curves change places.

    Attributes:
        first_below: whether the first curve is the faster one below.
        value: bytes, where the measured ratios, joined by straight lines in log-log, pass 1; None where they do so
            more than once between the two stretches.
        low, high: bytes, between the first place where the joined intervals may hold 1 and the last: 95 %. None
            where no intervals are known. What straight lines leave out is in it: alpha + D/B bends away from its
            chord by at most h²/32 in log time between sizes a factor e^h apart.
        last_below, first_above: the nearest measured sizes at which one and the other is ahead.
    """

    first_below: bool
    value: float | None
    low: float | None
    high: float | None
    last_below: int
    first_above: int


def crossings(ratios: Sequence[Sized]) -> list[Crossing]:
    """Where other / first passes 1, over sizes in bytes, ascending; where no interval is known, by the ratios alone."""
    known = [ratio.holds_one is not None for _, ratio in ratios]
    sides = [_side(ratio) if any(known) else _sign(ratio) for _, ratio in ratios]
    enough = _ENOUGH_WITHIN_RUN if any(ratio.basis == "within_run" for _, ratio in ratios) else _ENOUGH
    stretches = _stretches(sides, enough)
    return [
        _crossing(ratios, below[-1], above[0], first_below=sides[below[-1]] > 0, is_known=any(known))
        for below, above in pairwise(stretches)
    ]


def _side(ratio: Ratio) -> int:
    if ratio.basis == "within_run" and abs(math.log(ratio.value)) < _FLOOR_WITHIN_RUN:
        return 0
    return ratio.side


def _sign(ratio: Ratio) -> int:
    return (ratio.value > 1) - (ratio.value < 1)


def _stretches(sides: Sequence[int], enough: int) -> list[list[int]]:
    """Positions of decided sizes in stretches that alternate between the sides, each of `enough` or more."""
    stretches: list[list[int]] = []
    for position in (position for position, side in enumerate(sides) if side):
        if stretches and sides[stretches[-1][-1]] == sides[position]:
            stretches[-1].append(position)
        else:
            stretches.append([position])
    alternating: list[list[int]] = []
    for stretch in (stretch for stretch in stretches if len(stretch) >= enough):
        if alternating and sides[alternating[-1][-1]] == sides[stretch[0]]:
            alternating[-1] += stretch  # what lay between was too little to count
        else:
            alternating.append(stretch)
    return alternating


def _crossing(ratios: Sequence[Sized], last: int, first: int, *, first_below: bool, is_known: bool) -> Crossing:
    between = ratios[last : first + 1]
    # Seen so that the ratio falls through 1 on its way up in size.
    falling = [(size, ratio if first_below else ratio.inverse()) for size, ratio in between]
    passes = _passes(falling)
    low = high = None
    if is_known:
        bounds = [(size, ratio.low, ratio.high) for size, ratio in falling if ratio.low and ratio.high]
        low = _reaches([(math.log(size), math.log(bottom)) for size, bottom, _ in bounds])
        high = _reaches([(math.log(size), -math.log(top)) for size, _, top in reversed(bounds)])
    return Crossing(first_below, passes[0] if len(passes) == 1 else None, low, high, between[0][0], between[-1][0])


def _passes(values: Sequence[Sized]) -> list[float]:
    """Sizes at which the ratios, joined by lines in log-log, pass 1 in either direction."""
    found = []
    for (size, ratio), (next_size, next_ratio) in pairwise(values):
        before, after = math.log(ratio.value), math.log(next_ratio.value)
        if before > 0 >= after or before < 0 <= after:
            found.append(size * math.exp(math.log(next_size / size) * before / (before - after)))
    return found


def _reaches(bounds: Sequence[tuple[float, float]]) -> float:
    """The size at which a joined bound that starts above 0, less what a chord may hide, first reaches 0.

    `bounds`: (log size, log ratio), in either direction; the last does not lie above 0.
    """
    for (at, before), (to, after) in pairwise(bounds):
        hidden = (to - at) ** 2 / 32
        if before <= hidden:
            return math.exp(at)
        if after <= hidden:
            return math.exp(at + (to - at) * (before - hidden) / (before - after))
    return math.exp(bounds[-1][0])
