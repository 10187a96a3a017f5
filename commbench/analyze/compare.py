"""Curves side by side: ratios of times per size and over all, where they cross, ratios of alpha and B, what changed.

Every ratio is another curve's time / the first curve's time: above 1 the other one is slower. Nothing here is a
verdict; `commbench gate` judges, with rules whose false alarms are known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from commbench.analyze.crossings import Crossing, crossings
from commbench.analyze.facts import Change, changes
from commbench.analyze.fit import CurveFit, fit_curve
from commbench.analyze.matching import Candidate, Group, LeftOut, Side, candidates, groups
from commbench.analyze.ratios import Ratio, of_fits, of_level, of_points
from commbench.analyze.summary import PointSummary
from commbench.errors import CannotTellError
from commbench.units import format_size

_NONE = "none"


@dataclass(frozen=True, slots=True)
class SizeRatio:
    """One size in both curves; `ratio` is the other one's time / the first one's."""

    first: PointSummary
    other: PointSummary
    ratio: Ratio

    @property
    def bytes(self) -> int:
        return self.first.point.bytes


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A curve measured by the first one.

    Attributes:
        first, other: positions in the comparison's `curves`.
        sizes: ascending, every size that has a sound time in both; at least one.
        level: geometric mean of the ratios over these sizes.
        alpha, bandwidth: ratios of the fits' alpha and B; None unless identified in both.
        crossings: sizes at which the two change places.
        only_first, only_other: sizes measured in one of the two curves only.
        unsound: sizes measured in both that lack a time or a right answer in one.
    """

    first: int
    other: int
    sizes: tuple[SizeRatio, ...]
    level: Ratio
    alpha: Ratio | None
    bandwidth: Ratio | None
    crossings: tuple[Crossing, ...]
    only_first: tuple[int, ...]
    only_other: tuple[int, ...]
    unsound: tuple[int, ...]

    def count(self, side: int) -> int:
        """At how many sizes the ratio's interval lies above 1 (`side` 1), below (-1), or neither (0)."""
        return sum(size.ratio.side == side for size in self.sizes)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Like curves, the first of which the others are measured by.

    Attributes:
        fits: of each curve its fit, None where it has none.
        changes: circumstances in which the curves differ.
        crosses_sessions: whether curves of different sessions are compared, and one of them has one session only,
            so that what differs from session to session is in no interval.
    """

    curves: Group
    fits: tuple[CurveFit | None, ...]
    pairs: tuple[Pair, ...]
    changes: tuple[Change, ...]
    crosses_sessions: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """All comparisons of some sides, and the curves that take part in none."""

    comparisons: tuple[Comparison, ...]
    left_out: tuple[LeftOut, ...]


def compare(sides: Sequence[Side], across: Collection[str] = ()) -> Compared:
    """Compare all like curves of some sides, or those within a single one.

    Args:
        sides: what is compared; the first is what the others are measured by.
        across: keys of `matching.KEYS` in which curves may differ although it makes them answers to different
            questions.

    Raises:
        CannotTellError: nothing, or nothing of one side, can be compared.
    """
    found = candidates(sides)
    made, left_out = groups(found, across)
    comparisons = [_comparison(group) for group in made]
    _refuse_without_sizes(comparisons)
    return Compared(tuple(comparison for comparison in comparisons if comparison.pairs), tuple(left_out))


def _comparison(group: Group) -> Comparison:
    fits = tuple(map(_fit, group))
    pairs = [_pair(group, fits, number) for number in range(1, len(group))]
    return Comparison(
        curves=group,
        fits=fits,
        pairs=tuple(pair for pair in pairs if pair is not None),
        changes=tuple(changes([candidate.facts for candidate in group])),
        crosses_sessions=_crosses_sessions(group),
    )


def _fit(candidate: Candidate) -> CurveFit | None:
    try:
        return fit_curve(candidate.curve)
    except CannotTellError:
        return None


def _pair(group: Group, fits: Sequence[CurveFit | None], number: int) -> Pair | None:
    """Curve `number` measured by the first; None when no size is sound in both."""
    first, other = group[0], group[number]
    ours, theirs = ({p.point.bytes: p for p in candidate.curve.points} for candidate in (first, other))
    both = [size for size in ours if size in theirs]
    sound = [size for size in both if _is_sound(ours[size]) and _is_sound(theirs[size])]
    same = first.shares_launches_with(other)
    points = [(ours[size], theirs[size]) for size in sound]
    level = of_level(points, same_launches=same)
    if level is None:
        return None
    sizes = [SizeRatio(a, b, of_points(a, b, same_launches=same)) for a, b in points]
    a, b = fits[0], fits[number]
    return Pair(
        first=0,
        other=number,
        sizes=tuple(sizes),
        level=level,
        alpha=of_fits((a.alpha, a), (b.alpha, b)) if a and b else None,
        bandwidth=of_fits((a.bandwidth, a), (b.bandwidth, b)) if a and b else None,
        crossings=tuple(crossings([(size.bytes, size.ratio) for size in sizes])),
        only_first=tuple(size for size in ours if size not in theirs),
        only_other=tuple(size for size in theirs if size not in ours),
        unsound=tuple(size for size in both if size not in sound),
    )


def _is_sound(point: PointSummary) -> bool:
    return point.is_sound and all(0 < seconds < math.inf for _, seconds in point.by_run)


def _crosses_sessions(group: Group) -> bool:
    sessions = [candidate.sessions for candidate in group]
    return all(sessions) and len(set(sessions)) > 1 and min(map(len, sessions)) == 1


def _refuse_without_sizes(comparisons: Sequence[Comparison]) -> None:
    """Every side that has curves in a group must have a size in common with another one."""
    paired = {c.curves[at].side for c in comparisons for pair in c.pairs for at in (pair.first, pair.other)}
    for comparison in comparisons:
        for candidate in comparison.curves:
            first = comparison.curves[0]
            other = candidate if candidate is not first else comparison.curves[1]
            if candidate.side not in paired:
                sizes = _sizes(first), _sizes(other)
                raise CannotTellError(
                    f"{first.name} and {other.name} have no size in common with a sound time in both: "
                    f"{' against '.join(sizes)}",
                    "`commbench show` says what went wrong"
                    if _NONE in sizes
                    else "measure the same sizes: -b, -e and -f alike",
                )


def _sizes(candidate: Candidate) -> str:
    sound = [point.point.bytes for point in candidate.curve.points if _is_sound(point)]
    if not sound:
        return _NONE
    if len(sound) == 1:
        return format_size(sound[0])
    return f"{len(sound)} sizes from {format_size(sound[0])} to {format_size(sound[-1])}"
