from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from commbench.analyze.crossings import crossings
from commbench.analyze.ratios import Ratio, of_runs

SIZES = [8 << i for i in range(24)]

# 5 us + D / 10 GB/s and 15 us + D / 30 GB/s take the same time where D (1/10 - 1/30) = 10 us GB: at 150,000 bytes.
TRUTH = 150_000


def first(size: float) -> float:
    return 5e-6 + size / 1e10


def other(size: float) -> float:
    return 15e-6 + size / 3e10


def sure(value: float, by: float = 1.01, basis: str = "runs") -> Ratio:
    """A ratio known to within `by`."""
    return Ratio(value, value / by, value * by, basis)  # type: ignore[arg-type]


def of_curves(
    one: Callable[[float], float], two: Callable[[float], float], sizes: Sequence[int] = SIZES, by: float = 1.001
) -> list[tuple[int, Ratio]]:
    return [(size, sure(two(size) / one(size), by)) for size in sizes]


def test_two_lines_cross_where_their_formulas_say() -> None:
    [found] = crossings(of_curves(first, other))

    assert found.first_below
    assert found.value == pytest.approx(TRUTH, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low < TRUTH < found.high
    assert (found.last_below, found.first_above) == (1 << 17, 1 << 18)


def test_the_other_way_round_it_is_the_same_place() -> None:
    [there], [back] = crossings(of_curves(first, other)), crossings(of_curves(other, first))

    assert not back.first_below
    assert (back.low, back.value, back.high) == pytest.approx((there.low, there.value, there.high))


def test_what_lies_between_sizes_that_are_far_apart_is_in_the_interval() -> None:
    """Eight times apart the curves bend away from their chords: the joined lines pass 1 five per cent too early."""
    [found] = crossings(of_curves(first, other, [8 << 3 * i for i in range(9)], by=1.00001))

    assert found.value == pytest.approx(TRUTH, rel=0.06)
    assert found.low is not None
    assert found.high is not None
    assert found.low < TRUTH < found.high


def test_wider_intervals_make_the_place_less_sure() -> None:
    widths = []
    for by in (1.001, 1.05, 1.2):
        [found] = crossings(of_curves(first, other, by=by))
        assert found.low is not None
        assert found.high is not None
        widths.append(math.log(found.high / found.low))

    assert widths == sorted(widths)
    assert widths[2] > 3 * widths[0]


def test_a_curve_that_is_always_slower_crosses_nothing() -> None:
    assert crossings([(size, sure(1.3)) for size in SIZES]) == []


def test_equal_curves_cross_nothing() -> None:
    assert crossings([(size, sure(1.0 + 0.001 * (-1) ** i)) for i, size in enumerate(SIZES)]) == []


def test_several_crossings_are_found_in_order() -> None:
    values = [1.5] * 8 + [0.7] * 8 + [1.5] * 8

    found = crossings([(size, sure(value)) for size, value in zip(SIZES, values, strict=True)])

    assert [(c.first_below, c.last_below, c.first_above) for c in found] == [
        (True, SIZES[7], SIZES[8]),
        (False, SIZES[15], SIZES[16]),
    ]


def test_one_size_to_the_contrary_is_no_stretch() -> None:
    values = [1.5] * 8 + [0.7] + [1.5] * 15

    assert crossings([(size, sure(value)) for size, value in zip(SIZES, values, strict=True)]) == []


def test_undecided_sizes_between_the_stretches_widen_the_interval_and_may_hide_the_place() -> None:
    """From 1.5 through 1.02, 0.98, 1.02, 0.98 to 0.7: the measured ratios pass 1 three times."""
    ratios = [sure(value, 1.1) for value in (1.5, 1.5, 1.02, 0.98, 1.02, 0.98, 0.7, 0.7)]

    [found] = crossings(list(zip(SIZES, ratios, strict=False)))

    assert found.value is None
    assert found.low is not None
    assert found.high is not None
    assert SIZES[1] <= found.low <= SIZES[2]
    assert SIZES[5] <= found.high <= SIZES[6]


def test_within_one_run_three_sizes_and_10_percent_are_asked() -> None:
    def found(values: list[float]) -> int:
        return len(crossings([(s, sure(v, basis="within_run")) for s, v in zip(SIZES, values, strict=False)]))

    assert found([1.2] * 3 + [0.8] * 3) == 1
    assert found([1.2] * 3 + [0.8] * 2) == 0
    assert found([1.08] * 3 + [0.8] * 3) == 0


def test_without_any_interval_the_ratios_themselves_decide_and_nothing_bounds_the_place() -> None:
    ratios = [(size, Ratio(other(size) / first(size))) for size in SIZES]

    [found] = crossings(ratios)

    assert found.value == pytest.approx(TRUTH, rel=0.01)
    assert (found.low, found.high) == (None, None)
    assert (found.last_below, found.first_above) == (1 << 17, 1 << 18)


def test_one_size_or_none_crosses_nothing() -> None:
    assert crossings([]) == []
    assert crossings([(8, sure(1.5))]) == []


def _measured(two: Callable[[float], float], draw: random.Random, runs: int) -> list[tuple[int, Ratio]]:
    """Three per cent noise of a size and two of a launch, on both sides."""
    sides: list[list[dict[int, float]]] = []
    for curve in (first, two):
        launches = {run: math.exp(0.02 * draw.gauss(0, 1)) for run in range(runs)}
        sides.append(
            [{run: f * curve(s) * math.exp(0.03 * draw.gauss(0, 1)) for run, f in launches.items()} for s in SIZES]
        )
    return [(size, of_runs(a, b)) for size, a, b in zip(SIZES, *sides, strict=True)]


def test_equal_curves_with_noise_do_not_cross_and_unequal_ones_do_where_they_should() -> None:
    """Simulated with 600 repetitions: 0 %, 100 %, and 98 to 100 % of the intervals hold the place."""
    draw = random.Random(5)
    held = 0
    for _ in range(60):
        assert crossings(_measured(first, draw, 3)) == []
        [found] = crossings(_measured(other, draw, 3))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= TRUTH <= found.high
    assert held >= 57
