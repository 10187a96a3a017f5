from __future__ import annotations

import numpy as np
import pytest

from commbench.analyze.lack_of_fit import f_tail, has_bump, pure_error_probability, signs_probability


def test_the_probability_of_few_runs_of_signs_is_exact() -> None:
    """Five of each sign in two runs: 2 of the 252 orders. Alternating ones are the most there can be: 1."""
    assert signs_probability([1.0] * 5 + [-1.0] * 5) == pytest.approx(2 / 252)
    assert signs_probability([1.0, -1.0] * 5) == pytest.approx(1.0)
    # ++--+ and its like: 2 minus, 3 plus; of C(5,2) = 10 orders 2 have two runs and 3 have three.
    assert signs_probability([1.0, 1.0, -1.0, -1.0, 1.0]) == pytest.approx(5 / 10)


def test_residuals_of_one_sign_or_none_are_no_evidence() -> None:
    assert signs_probability([1.0] * 9) == 1.0
    assert signs_probability([1e-16, -1e-16] * 9) == 1.0


def test_long_curves_use_the_normal_approximation_close_to_the_exact_value() -> None:
    """Two runs in 25 + 25 signs cannot be chance; alternating ones are no evidence at all."""
    assert signs_probability([1.0] * 25 + [-1.0] * 25) < 1e-9
    assert signs_probability([1.0, -1.0] * 25) == pytest.approx(1.0)


def test_three_neighbours_far_off_to_one_side_are_a_bump() -> None:
    quiet = [0.5, -0.5] * 4

    assert has_bump(np.array([*quiet, 3.1, 3.2, 3.1, *quiet]), 1.0)
    assert has_bump(np.array([*quiet, -3.1, -3.2, -3.1, *quiet]), 1.0)
    assert not has_bump(np.array([*quiet, 3.1, -3.2, 3.1, *quiet]), 1.0)
    assert not has_bump(np.array([*quiet, 9.0, 9.0, *quiet]), 1.0)


@pytest.mark.parametrize(
    ("value", "above", "below", "expected"),
    [(4.8491, 10, 10, 0.01), (1.8409, 30, 30, 0.05), (2.7741, 10, 10, 0.0615), (2.9130, 24, 12, 0.0287)],
)
def test_the_tail_of_f_is_that_of_scipy(value: float, above: int, below: int, expected: float) -> None:
    """Expected: scipy.stats.f.sf of scipy 1.17."""
    assert f_tail(value, above, below) == pytest.approx(expected, rel=0.05)


def test_a_factor_common_to_a_run_is_no_error_of_the_shape() -> None:
    """Runs 30 % apart that agree about every size to 1 %; residuals of 1 % are noise, of 10 % are not."""
    random = np.random.default_rng(1)
    times = 0.01 * random.standard_normal((3, 24)) + np.array([[-0.3], [0.0], [0.3]])

    assert pure_error_probability(0.005 * random.standard_normal(24), times, 2) > 0.05
    assert pure_error_probability(0.1 * random.standard_normal(24), times, 2) < 1e-6


def test_two_odd_sizes_are_not_a_lack_of_fit() -> None:
    random = np.random.default_rng(2)
    times, residuals = 0.01 * random.standard_normal((3, 24)), 0.005 * random.standard_normal(24)
    residuals[[5, 17]] = 2.0

    assert pure_error_probability(residuals, times, 2) > 0.05


def test_exact_runs_and_exact_residuals_are_no_evidence() -> None:
    assert pure_error_probability(np.zeros(24), np.zeros((3, 24)), 2) == 1.0
    assert pure_error_probability(np.full(24, 0.1), np.zeros((3, 24)), 2) == 0.0
    assert pure_error_probability(np.zeros(24), np.zeros((1, 24)), 2) == 1.0
