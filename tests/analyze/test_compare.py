from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from commbench.analyze.compare import Compared, compare
from commbench.analyze.matching import Side
from commbench.errors import CannotTellError
from commbench.results import load

# 5 us + D / 10 GB/s and 15 us + D / 30 GB/s take the same time at 150,000 bytes.
FAST_START = {"alpha": 5e-6, "bandwidth": 1e10}
FAST_END = {"alpha": 15e-6, "bandwidth": 3e10}


@pytest.fixture
def compared(records_of: Any) -> Any:
    """A function: of each side the arguments of `records_of` to their comparison."""
    numbers = count()

    def build(*sides: dict[str, Any], across: tuple[str, ...] = ()) -> Compared:
        files = [
            load(records_of(name=f"{next(numbers)}.jsonl", **side)) for letter, side in zip("ABCD", sides, strict=False)
        ]
        return compare([Side(letter, (file,)) for letter, file in zip("ABCD", files, strict=False)], across)

    return build


def test_ratios_alpha_bandwidth_and_crossing_of_two_exact_curves(compared: Any) -> None:
    [comparison] = compared(FAST_START | {"runs": 3}, FAST_END | {"runs": 3}).comparisons

    [pair] = comparison.pairs
    ratios = {size.bytes: size.ratio.value for size in pair.sizes}
    assert ratios[8] == pytest.approx((15e-6 + 8 / 3e10) / (5e-6 + 8 / 1e10))
    assert ratios[1 << 26] == pytest.approx((15e-6 + (1 << 26) / 3e10) / (5e-6 + (1 << 26) / 1e10))
    assert (pair.alpha.value, pair.bandwidth.value) == pytest.approx((3, 3), rel=1e-3)
    [crossing] = pair.crossings
    assert crossing.low < 150_000 < crossing.high
    assert (pair.count(1), pair.count(-1), pair.count(0)) == (15, 9, 0)


def test_a_curve_twice_as_slow_is_two_at_every_size_and_over_all(compared: Any) -> None:
    [comparison] = compared(FAST_START, {"alpha": 1e-5, "bandwidth": 5e9}).comparisons

    [pair] = comparison.pairs
    assert {round(size.ratio.value, 9) for size in pair.sizes} == {2.0}
    assert pair.level.value == pytest.approx(2)
    assert pair.level.basis == "within_run"
    assert pair.crossings == ()


def test_every_other_curve_is_measured_by_the_first(compared: Any) -> None:
    [comparison] = compared({"path": "a"}, {"path": "b", "alpha": 1e-5, "bandwidth": 5e9}, {"path": "c"}).comparisons

    assert [(pair.first, pair.other, round(pair.level.value, 6)) for pair in comparison.pairs] == [(0, 1, 2), (0, 2, 1)]


def test_sizes_of_one_side_and_unsound_ones_are_named_and_left_out(compared: Any, record: Any) -> None:
    ours = [record(size, 1e-5) for size in (8, 16, 32, 64, 128)]
    theirs = [record(size, 2e-5) for size in (16, 32, 64, 128, 256)]
    theirs[0] = replace(theirs[0], check="wrong", status="failed")
    theirs[1] = record(32, 0.0)
    theirs[2] = record(64, None, status="hung", check="skipped", reason="x")

    [comparison] = compared({"records": ours}, {"records": theirs}).comparisons

    [pair] = comparison.pairs
    assert [size.bytes for size in pair.sizes] == [128]
    assert (pair.only_first, pair.only_other, pair.unsound) == ((8,), (256,), (16, 32, 64))
    assert pair.alpha is None
    assert pair.level.value == pytest.approx(2)


def test_curves_without_a_size_in_common_are_refused(compared: Any, record: Any) -> None:
    with pytest.raises(CannotTellError, match=r"A and B have no size in common .*: 2 sizes from 8 to 16 against 1K"):
        compared({"records": [record(8), record(16)]}, {"records": [record(1024)]})
    with pytest.raises(CannotTellError, match=": none against 8") as refusal:
        compared({"records": [record(8, 0.0)]}, {"records": [record(8)]})
    assert "commbench show" in refusal.value.hint


def test_curves_of_one_file_share_launches_and_are_paired(records_of: Any, record: Any) -> None:
    """Launches that differ by 30 % as a whole: each own ratio is 2, and so is every bound."""
    factors = {1: 1.0, 2: 1.3, 3: 0.8}
    records = [
        record(size, scale * factor * 1e-5, run, mode=mode)
        for run, factor in factors.items()
        for mode, scale in (("sync", 1), ("pipe", 2))
        for size in (8, 16)
    ]

    [comparison] = compare([Side("A", (load(records_of(records)),))]).comparisons

    [pair] = comparison.pairs
    assert pair.level.basis == "same_runs"
    assert (pair.level.low, pair.level.high) == pytest.approx((2, 2))


def test_runs_of_one_file_that_are_launches_of_their_own_are_not_paired(records_of: Any, record: Any) -> None:
    """Each path is a launch of its own, also within one run."""
    records = [
        record(size, 1e-5, run, path=path, launch=f"{path}{run}")
        for run in (1, 2, 3)
        for path in ("shm", "tcp")
        for size in (8, 16)
    ]

    [comparison] = compare([Side("A", (load(records_of(records)),))]).comparisons

    assert comparison.pairs[0].level.basis == "runs"


def test_what_changed_is_found(compared: Any) -> None:
    [comparison] = compared(
        {"header": {"libraries": {"mpi": "MPICH 5.0.1"}}}, {"header": {"libraries": {"mpi": "MPICH 5.0.2"}}}
    ).comparisons

    assert [(change.fact, change.values) for change in comparison.changes] == [
        ("libraries.mpi", ("MPICH 5.0.1", "MPICH 5.0.2"))
    ]


@pytest.mark.parametrize(
    ("sessions", "crosses"),
    [(("s1", "s1"), False), (("s1", "s2"), True), (("", "s2"), False), ((None, None), False)],
)
def test_curves_of_different_sessions_are_known_as_such(compared: Any, sessions: Any, crosses: bool) -> None:
    [comparison] = compared(*({"header": {"session": session}} for session in sessions)).comparisons

    assert comparison.crosses_sessions is crosses


def test_launches_of_many_sessions_hold_what_differs_between_sessions(records_of: Any) -> None:
    files = [load(records_of(name=f"{n}.jsonl", header={"session": f"s{n}"})) for n in range(4)]

    [comparison] = compare([Side("A", tuple(files[:2])), Side("B", tuple(files[2:]))]).comparisons

    assert not comparison.crosses_sessions
