"""Points between many pairs of endpoints to matrices: who sends to whom, how fast, how soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from commbench.analyze.datasets import Dataset
from commbench.analyze.finding import Finding
from commbench.analyze.summary import Curve, PointSummary
from commbench.spec import READ, Point

LATENCY_BYTES = 4096
"""Up to a page a time tells of latency, beyond it of bandwidth."""

_DIGITS = 10  # a file from anywhere may call an endpoint what it likes


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """One size of one way, between all pairs that were measured.

    Attributes:
        key: what the points share: their point without pair and size.
        bytes: the size, the largest or the smallest that any pair has.
        is_latency: whether the times are what it tells, else the bandwidths.
        sources, targets: the endpoints that data leave and reach, the host first, then by number.
        cells: (source, target) -> point. Not every pair has one.
    """

    key: Point
    bytes: int
    is_latency: bool
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    cells: Mapping[tuple[str, str], PointSummary]


def pair_groups(points: Iterable[PointSummary]) -> dict[Point, list[PointSummary]]:
    """The points that differ in pair and size only, under what they share; only where there are several pairs."""
    found: dict[Point, list[PointSummary]] = {}
    for point in points:
        if point.point.option("pair") is not None:
            found.setdefault(without_pair(point.point), []).append(point)
    return {key: group for key, group in found.items() if len({_pair(point.point) for point in group}) > 1}


def matrices(points: Iterable[PointSummary]) -> list[PairMatrix]:
    """Of each group the bandwidth at its largest size and the time at its smallest, as far as they tell of those."""
    found = []
    for key, group in pair_groups(points).items():
        sizes = {point.point.bytes for point in group}
        if max(sizes) > LATENCY_BYTES:
            found.append(_matrix(key, group, max(sizes), is_latency=False))
        if min(sizes) <= LATENCY_BYTES:
            found.append(_matrix(key, group, min(sizes), is_latency=True))
    return found


def curves_alone(dataset: Dataset) -> list[Curve]:
    """The curves of a dataset that are in no matrix."""
    groups = pair_groups(dataset.points)
    return [curve for curve in dataset.curves if without_pair(curve.key) not in groups]


def findings_of_pairs(dataset: Dataset, findings: Iterable[Finding]) -> list[Finding]:
    """Of `findings`, worst first, those about curves in matrices; of one kind and way one that names a pair."""
    groups = pair_groups(dataset.points)
    found: dict[tuple[Point, str], list[Finding]] = {}
    for finding in findings:
        if (key := without_pair(finding.key)) in groups:
            found.setdefault((key, finding.kind), []).append(finding)
    several_modes = len({key.mode for key in groups if key.path != READ}) > 1
    return [
        replace(same[0], text=f"{_where(key, same, several_modes=several_modes)}: {same[0].text}")
        for (key, _), same in found.items()
    ]


def _where(key: Point, same: Sequence[Finding], *, several_modes: bool) -> str:
    first, *others = dict.fromkeys(finding.key.option("pair") for finding in same)
    mode = f" ({key.mode})" if several_modes and key.path != READ else ""
    return f"{key.path}{mode}, pair {first}" + (f" and {len(others)} more" if others else "")


def without_pair(point: Point) -> Point:
    """What points of all pairs and sizes share."""
    rest = [word for word in point.variant.split(";") if not word.startswith("pair=")]
    return replace(point, bytes=0, variant=";".join(rest))


def _matrix(key: Point, group: list[PointSummary], size: int, *, is_latency: bool) -> PairMatrix:
    pairs = [_pair(point.point) for point in group]
    cells = {_pair(point.point): point for point in group if point.point.bytes == size}
    sources, targets = ({pair[side] for pair in pairs} for side in (0, 1))
    return PairMatrix(
        key, size, is_latency, tuple(sorted(sources, key=_order)), tuple(sorted(targets, key=_order)), cells
    )


def _pair(point: Point) -> tuple[str, str]:
    a, _, b = (point.option("pair") or "").partition(",")
    return a, b


def _order(endpoint: str) -> tuple[bool, int, str]:
    number = endpoint.isdecimal() and len(endpoint) < _DIGITS
    return number, int(endpoint) if number else 0, endpoint
