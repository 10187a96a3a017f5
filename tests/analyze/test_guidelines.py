"""The rules with times made for them: a, b and so on are microseconds at every size."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.analyze.finding import Finding
from commbench.analyze.guidelines import RULES, findings_across
from commbench.analyze.lines import samples_of
from commbench.analyze.summary import curves, points
from commbench.ops import OPERATIONS
from commbench.records import Seconds

SIZES = [1024 << i for i in range(8)]


def records(record: Any, op: str, factor: float = 1.0, **changes: Any) -> list[Any]:
    """10 us + D / 1 GB/s, times a factor, with an interval of ±1 %."""
    row = OPERATIONS[op]
    point = {"op": op, "redop": "sum" if row.reduces else None, "root": 0 if row.rooted else None} | changes
    times = [factor * (10e-6 + size * 1e-9) for size in SIZES]
    return [
        record(size, seconds=Seconds(median=t, low=t * 0.99, high=t * 1.01), **point)
        for size, t in zip(SIZES, times, strict=True)
    ]


def across(*parts: list[Any], said: Any = None) -> list[Finding]:
    found = curves(points([r for part in parts for r in part]))
    return list(findings_across([(curve, samples_of(curve)) for curve in found], said or {}))


@pytest.mark.parametrize(("op", "others"), RULES, ids=str)
def test_each_rule_is_broken_by_an_operation_that_takes_twice_as_long(
    record: Any, op: str, others: tuple[str, ...]
) -> None:
    variant = {"variant": "imbalance=1"} if "alltoallv" in others else {}
    parts = [records(record, other, **(variant if other == "alltoallv" else {})) for other in others]

    [found] = across(records(record, op, 2.0 * len(others)), *parts)

    assert (found.kind, found.key.op, found.sizes) == ("guideline", op, tuple(SIZES))
    assert found.ratio.value == pytest.approx(2, rel=1e-6)
    assert found.ratio.low is not None
    assert 1.9 < found.ratio.low < 2
    assert " and ".join(others) in found.text


@pytest.mark.parametrize(("op", "others"), RULES, ids=str)
def test_each_rule_holds_when_the_operation_takes_as_long(record: Any, op: str, others: tuple[str, ...]) -> None:
    parts = [records(record, other, variant="imbalance=1" if other == "alltoallv" else "") for other in others]

    assert [f for f in across(records(record, op, len(others)), *parts) if f.key.op == op] == []


def test_a_fifth_is_what_a_copy_may_cost(record: Any) -> None:
    assert across(records(record, "allgather", 1.2), records(record, "alltoall")) == []


def test_uncertain_times_break_no_rule(record: Any) -> None:
    wide = [
        record(size, seconds=Seconds(median=2e-5, low=1e-5, high=4e-5), op="allgather", redop=None) for size in SIZES
    ]

    assert across(wide, records(record, "alltoall", 0.5)) == []


@pytest.mark.parametrize(
    "changes",
    [{"ranks": 8}, {"mode": "pipe"}, {"backend": "gloo"}, {"path": "tcp"}, {"cache": "rotated"}, {"device": "cuda"}],
)
def test_only_curves_that_differ_in_operation_alone_are_compared(record: Any, changes: dict[str, Any]) -> None:
    assert across(records(record, "allgather", 3.0), records(record, "alltoall", **changes)) == []


def test_reductions_are_compared_with_the_same_reduction_and_type_and_others_whatever_theirs(record: Any) -> None:
    slow = records(record, "reduce", 3.0)

    assert across(slow, records(record, "allreduce", redop="max")) == []
    assert across(slow, records(record, "allreduce", dtype="float64")) == []
    assert len(across(records(record, "allgather", 3.0, dtype="int8"), records(record, "allreduce"))) == 1


def test_roots_are_compared_with_the_same_root(record: Any) -> None:
    assert across(records(record, "scatter", 3.0), records(record, "broadcast", root=1)) == []


def test_uneven_blocks_are_no_measure(record: Any) -> None:
    assert across(records(record, "alltoall", 3.0), records(record, "alltoallv", variant="imbalance=1.5")) == []


def test_of_both_forms_the_own_one_is_compared(record: Any) -> None:
    """In place the other one takes as long; out of place it would break the rule."""
    other = records(record, "alltoall", 3.0), records(record, "alltoall", in_place=False)

    assert across(records(record, "allgather", 3.0), *other) == []
    [found] = across(records(record, "allgather", 3.0, in_place=False), *other)
    assert found.key.in_place is False


def test_a_size_that_breaks_several_rules_counts_for_the_worst(record: Any) -> None:
    [found] = across(
        records(record, "allgather", 4.0), records(record, "alltoall", 2.0), records(record, "allreduce", 1.0)
    )

    assert "as long as allreduce" in found.text


def test_a_size_of_which_everything_is_said_is_left_out(record: Any) -> None:
    slow = records(record, "allgather", 2.0)

    [found] = across(slow, records(record, "alltoall"), said={slow[0].point.curve: {SIZES[3]}})

    assert found.sizes == tuple(size for size in SIZES if size != SIZES[3])


def test_sizes_that_the_other_operation_lacks_are_not_judged(record: Any) -> None:
    [found] = across(records(record, "allgather", 2.0), records(record, "alltoall")[4:])

    assert found.sizes == tuple(SIZES[4:])


def test_alone_no_rank_waits_for_another(record: Any) -> None:
    assert across(records(record, "allgather", 3.0, ranks=1), records(record, "alltoall", ranks=1)) == []
