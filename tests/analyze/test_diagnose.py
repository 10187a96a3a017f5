from __future__ import annotations

import math
from typing import Any

import pytest

from commbench.analyze.datasets import Dataset
from commbench.analyze.diagnose import diagnose
from commbench.analyze.finding import Finding
from commbench.analyze.setting import Setting
from commbench.records import Seconds

KIB, MIB = 1 << 10, 1 << 20
SIZES = [8 << i for i in range(24)]
MPICH = Setting("MPICH 5.0.2")


def law(size: int) -> float:
    return 5e-6 + size * 1e-10


def measured(record: Any, seconds: Any = law, **changes: Any) -> list[Any]:
    return [record(size, seconds=Seconds(median=seconds(size)), **changes) for size in SIZES]


def told(records: list[Any]) -> list[Finding]:
    return diagnose(Dataset(MPICH, (), tuple(records)))


def test_of_a_clean_curve_nothing_is_said(record: Any) -> None:
    assert told(measured(record)) == []


def test_a_dip_says_how_slow_what_would_be_faster_and_what_to_try(record: Any) -> None:
    """1 MiB takes 5 x (5 + 104.9) = 549 us; twice 512 KiB 2 x (5 + 52.4) = 115 us."""
    [dip] = told(measured(record, lambda size: law(size) * (5 if size == MIB else 1)))

    assert (dip.kind, dip.sizes) == ("dip", (MIB,))
    assert dip.ratio.value == pytest.approx(5, rel=0.01)
    assert dip.text.startswith("1M: 549 us, 5.00 times [")
    assert "two calls of 512K take 115 us" in dip.text
    assert dip.text.endswith("if it stays, try another algorithm (MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM)")


def test_among_latencies_two_smaller_calls_are_no_advice(record: Any) -> None:
    [dip] = told(measured(record, lambda size: law(size) * (1.5 if size == 64 else 1)))

    assert "two calls" not in dip.text


def test_a_slow_first_size_is_blamed_on_warming_up_and_slow_small_sizes_on_the_algorithm(record: Any) -> None:
    [first] = told(measured(record, lambda size: law(size) * (2 if size == 8 else 1)))
    [small] = told(measured(record, lambda size: law(size) * (2 if size <= 512 else 1)))

    assert "the first size paid for warming up" in first.text
    assert small.text.startswith("8 to 512: 10.1 us at 512, ")
    assert "changes its algorithm too late" in small.text


def test_a_fast_size_is_doubted(record: Any) -> None:
    [fast] = told(measured(record, lambda size: law(size) / (3 if size == 512 else 1)))

    assert fast.ratio.value == pytest.approx(1 / 3, rel=0.02)
    assert "less than 256: measure again, with --check" in fast.text


def test_sinking_bandwidth_is_usual_where_a_buffer_outgrows_the_cache_and_odd_elsewhere(record: Any) -> None:
    def seconds(size: int) -> float:
        return law(size) * (1 + 0.3 * max(0, math.log2(size / (2 * MIB))))

    [host] = told(measured(record, seconds))
    [gpu] = told(measured(record, seconds, device="cuda", backend="nccl"))

    assert host.kind == gpu.kind == "sinking_plateau"
    assert "--cache rotated" in host.text
    assert "a throttled or shared link" in gpu.text
    assert "NCCL_ALGO and NCCL_PROTO" in gpu.text
    assert gpu.severity < host.severity


def test_a_cliff_and_a_step_say_from_where_on(record: Any) -> None:
    [cliff] = told(measured(record, lambda size: law(size) * (2 if size >= 4 * MIB else 1), cache="rotated"))
    [step] = told(measured(record, lambda size: law(size) * (2 if size >= 64 * KIB else 1)))

    assert cliff.text.startswith("from 4M on: bandwidth drops at once to 5")
    assert step.text.startswith("from 64K on: calls take 2.0")
    assert "the sizes up to 32K lead to expect, and no larger size makes up for it" in step.text


def test_one_rank_has_no_shape(record: Any) -> None:
    assert told(measured(record, lambda size: 1 / size, ranks=1)) == []


def test_the_list_is_one_and_the_worst_comes_first(record: Any) -> None:
    """A hang, a dip of x 5 and one of x 3, a flag that makes a number doubtful and one that is good to know."""
    records = measured(record, lambda size: law(size) * {128 * KIB: 3, 8 * MIB: 5}.get(size, 1))
    records[2] = record(32, seconds=Seconds(median=law(32)), flags=("drift", "resumed"))
    records[20] = record(8 << 20, None, status="hung", reason="no progress", check="skipped")

    assert [finding.kind for finding in told(records)] == ["hung", "dip", "drift", "resumed"]


def test_a_rule_across_operations_does_not_repeat_a_dip(record: Any) -> None:
    slow = measured(record, lambda size: law(size) * (5 if size == MIB else 1), op="allgather", redop=None)

    found = told([*slow, *measured(record, op="alltoall", redop=None)])

    assert [finding.kind for finding in found] == ["dip"]


def test_intervals_over_runs_count_as_noise(curve_of: Any, record: Any) -> None:
    """A size that is three times slower in one of three runs is no fault of the size."""
    records = [
        record(size, law(size) * (3 if (size, run) == (MIB, 2) else 1 + 0.01 * run), run)
        for run in (1, 2, 3)
        for size in SIZES
    ]

    assert [finding.kind for finding in told(records)] == []


@pytest.mark.parametrize("seconds", [0.0, 1e-300, 5e-324, 1e300, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 24])
def test_times_that_are_none_raise_nothing(record: Any, seconds: float, count: int) -> None:
    records = [record(size, seconds=Seconds(median=seconds)) for size in SIZES[:count]]

    assert told(records) == []
