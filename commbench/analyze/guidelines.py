"""Rules across operations: a collective should not take longer than others that do its work.

These are the self-consistent performance guidelines of Traeff, Gropp and Thakur (IEEE TPDS 21(5), 2010) that
Hunold and Carpen-Amarie check and repair (ReproMPI's pgcheck, PGMPITuneLib), in so far as our operations and
their sizes allow. D means the same on both sides of each rule (see `ops`): with total D, every rank's block is D / p.

* an allgather of D is an alltoall of D in which a rank sends everybody its one block, an allreduce of D over
  vectors that are zero outside the own block, or a gather and a broadcast of D;
* an allreduce of D is a reduce_scatter and an allgather of D, or a reduce and a broadcast;
* a broadcast of D is a scatter and an allgather of D;
* a reduce of D is an allreduce of D, or a reduce_scatter and a gather of D;
* a reduce_scatter of D is an allreduce of D, or a reduce and a scatter of D;
* a gather of D is an allgather of D, or a reduce of D; a scatter of D is a broadcast of D;
* an alltoall of D is an alltoallv of D in which all blocks are equal.

Some of these need a copy into a larger buffer, which the floor allows for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from commbench.analyze.advice import another_algorithm
from commbench.analyze.finding import RULE, Finding, ratio_of, sizes_in_words, times_as_long
from commbench.analyze.lines import Sample
from commbench.analyze.shape import CERTAIN
from commbench.analyze.summary import Curve
from commbench.ops import OPERATIONS
from commbench.spec import Point
from commbench.units import format_size

RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("allgather", ("alltoall",)),
    ("allgather", ("allreduce",)),
    ("allgather", ("gather", "broadcast")),
    ("allreduce", ("reduce_scatter", "allgather")),
    ("allreduce", ("reduce", "broadcast")),
    ("broadcast", ("scatter", "allgather")),
    ("reduce", ("allreduce",)),
    ("reduce", ("reduce_scatter", "gather")),
    ("reduce_scatter", ("allreduce",)),
    ("reduce_scatter", ("reduce", "scatter")),
    ("gather", ("allgather",)),
    ("gather", ("reduce",)),
    ("scatter", ("broadcast",)),
    ("alltoall", ("alltoallv",)),
)

_FLOOR = math.log(1.3)
_BALANCED = "imbalance=1"


@dataclass(frozen=True, slots=True)
class _Broken:
    """A rule that does not hold at one size."""

    others: tuple[str, ...]
    size: int
    log_ratio: float
    deviation: float


def findings_across(
    curves: Iterable[tuple[Curve, Sequence[Sample]]], said: Mapping[Point, Collection[int]]
) -> Iterator[Finding]:
    """The rules that do not hold among curves of one setting, each with its samples: one finding a rule.

    Curves are compared that differ in operation only; the type of data does not matter to those that only move
    it. At a size that breaks several rules the worst counts. Sizes in `said`, per curve, are left out: what makes
    a single size slow has been told.
    """
    curves = list(curves)
    samples = {curve.key: {sample.size: sample for sample in own} for curve, own in curves}
    by_setting: dict[tuple[Point, str], list[Point]] = {}
    for key in samples:
        by_setting.setdefault((_setting(key), key.op), []).append(key)
    for curve, _ in curves:
        worst: dict[int, _Broken] = {}
        for op, others in RULES:
            if op != curve.key.op or curve.key.ranks < 2:  # noqa: PLR2004 - alone there is nothing to compare
                continue
            keys = [_counterpart(curve.key, by_setting.get((_setting(curve.key), other), ())) for other in others]
            for broken in _broken(samples[curve.key], others, [samples[key] for key in keys if key is not None]):
                if broken.size not in said.get(curve.key, ()):
                    worst[broken.size] = max(worst.get(broken.size, broken), broken, key=lambda b: b.log_ratio)
        for others in dict.fromkeys(broken.others for broken in worst.values()):
            yield _finding(curve, others, [worst[size] for size in sorted(worst) if worst[size].others == others])


def _setting(key: Point) -> Point:
    """A key without the operation and what is compared by itself, or does not matter."""
    return replace(key, op="", redop=None, root=None, dtype="int8", in_place=False, variant="")


def _counterpart(key: Point, others: Sequence[Point]) -> Point | None:
    """Of another operation's curves the one to compare with: in the same form, if it is there."""
    forms = [other for other in others if _comparable(key, other)]
    return min(forms, key=lambda other: other.in_place != key.in_place, default=None)


def _comparable(key: Point, other: Point) -> bool:
    ours, theirs = OPERATIONS[key.op], OPERATIONS[other.op]
    if other.variant not in ("", _BALANCED):
        return False
    if ours.reduces and theirs.reduces and (key.redop, key.dtype) != (other.redop, other.dtype):
        return False
    return not (ours.rooted and theirs.rooted) or key.root == other.root


def _broken(
    ours: Mapping[int, Sample], others: tuple[str, ...], parts: Sequence[Mapping[int, Sample]]
) -> Iterator[_Broken]:
    """The sizes at which a rule does not hold, certainly and by more than the floor."""
    if len(parts) < len(others):
        return
    for size, sample in ours.items():
        if not all(size in part for part in parts):
            continue
        times = [math.exp(part[size].log_time) for part in parts]
        noise = math.hypot(*(part[size].noise * time / sum(times) for part, time in zip(parts, times, strict=True)))
        log_ratio, deviation = sample.log_time - math.log(sum(times)), math.hypot(sample.noise, noise)
        if log_ratio > max(_FLOOR, CERTAIN * deviation):
            yield _Broken(others, size, log_ratio, deviation)


def _finding(curve: Curve, others: tuple[str, ...], broken: Sequence[_Broken]) -> Finding:
    worst = max(broken, key=lambda b: b.log_ratio)
    ratio = ratio_of(worst.log_ratio, worst.deviation)
    sizes = tuple(b.size for b in broken)
    where = sizes_in_words(sizes, [point.point.bytes for point in curve.points])
    up_to, at = ("up to ", f" (worst at {format_size(worst.size)})") if len(sizes) > 1 else ("", "")
    return Finding(
        kind="guideline",
        key=curve.key,
        sizes=sizes,
        ratio=ratio,
        text=(
            f"{where}: {curve.key.op} takes {up_to}{times_as_long(ratio)} {' and '.join(others)}"
            f"{' together' if len(others) > 1 else ''}, which can do the same{at}: "
            f"{another_algorithm(curve.key, curve.setting.library)}"
        ),
        severity=RULE,
    )
