from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from commbench.analyze.segments import MIN_SIZES, choose, every_cut, price_of_a_break

SIZES = np.array([8.0 * 2**i for i in range(31)])
SWITCHED = np.where(SIZES < 1 << 18, 5e-6 + SIZES / 5e9, 20e-6 + SIZES / 1e10)


@pytest.mark.parametrize(("segments", "ways"), [(1, 1), (2, 24), (3, 210)])
def test_31_sizes_can_be_cut_in_1_and_24_and_210_ways(segments: int, ways: int) -> None:
    cuts = every_cut(31, (segments,)).breaks

    assert len(set(cuts)) == len(cuts) == ways
    for breaks in cuts:
        assert all(after - before >= MIN_SIZES for before, after in pairwise((0, *breaks, 31)))


def test_too_few_sizes_cannot_be_cut() -> None:
    assert every_cut(7, (2, 3)).breaks == ()
    assert choose(SIZES[:7], SWITCHED[:7], (2,)) is None


def test_a_break_costs_more_where_there_are_fewer_sizes_to_tell_it_by() -> None:
    """5 log n of the strengthened BIC, times n / (n - 4)."""
    assert price_of_a_break(8) == pytest.approx(2 * 5 * math.log(8))
    assert price_of_a_break(31) == pytest.approx(31 / 27 * 5 * math.log(31))


def test_the_break_is_put_where_the_protocol_changes() -> None:
    assert choose(SIZES, SWITCHED, (1, 2, 3)) == (15,)  # 8 << 15 is 256 KiB


def test_no_break_is_put_where_it_is_forbidden() -> None:
    assert 15 not in (choose(SIZES, SWITCHED, (2,), {15}) or ())
    assert choose(SIZES, SWITCHED, (2,), set(range(31))) is None


def test_an_exact_line_has_no_break_and_neither_has_one_rounded_to_three_digits() -> None:
    exact = 5e-6 + SIZES / 1e10

    assert choose(SIZES, exact, (1, 2, 3)) == ()
    assert choose(SIZES, np.array([float(f"{t:.2e}") for t in exact]), (1, 2, 3)) == ()


def test_a_difference_of_half_a_per_cent_is_worth_no_segment() -> None:
    times = (5e-6 + SIZES / 1e10) * np.where(SIZES < 1 << 18, 1.0, 1.004)

    assert choose(SIZES, times, (1, 2, 3)) == ()


def test_long_curves_are_thinned_and_then_refined_to_the_exact_size() -> None:
    sizes = np.arange(1, 401) * 8192.0
    times = np.where(sizes < 8192 * 137, 5e-6 + sizes / 5e9, 90e-6 + sizes / 1e10)

    assert choose(sizes, times, (1, 2, 3)) == (136,)
