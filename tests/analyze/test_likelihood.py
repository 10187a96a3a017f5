from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from commbench.analyze.likelihood import Rows, climb

SIZES = np.log([8.0 * 2**i for i in range(24)])


def line(alpha: float, bandwidth: float) -> np.ndarray:
    return np.log(alpha + np.exp(SIZES) / bandwidth)


def test_rows_of_different_lengths_and_segments_are_fitted_independently() -> None:
    """Two rows: one line of 24 sizes; two lines over 10 and 6 of them."""
    two = np.concatenate((line(1e-6, 1e9)[:10], line(1e-5, 1e10)[14:20]))
    rows = Rows.of([(SIZES, line(5e-6, 1e10), [24]), (np.concatenate((SIZES[:10], SIZES[14:20])), two, [10, 6])])

    peaks = climb(rows, np.tile(np.log([2e-6, 5e-10]), (3, 1)), np.full(2, 0.1))

    assert np.exp(peaks.theta) == pytest.approx(np.array([[5e-6, 1e-10], [1e-6, 1e-9], [1e-5, 1e-10]]), rel=1e-4)


def test_sums_are_of_segments_and_of_rows() -> None:
    rows = Rows(np.zeros(6), np.zeros(6), np.array([2, 1, 3]), np.array([2, 1]))

    segments = rows.segment_sums(np.arange(6.0))

    assert segments.tolist() == [1.0, 2.0, 12.0]
    assert rows.row_sums(segments).tolist() == [3.0, 12.0]
    assert rows.of_points(np.array([7.0, 8.0])).tolist() == [7.0, 7.0, 7.0, 8.0, 8.0, 8.0]


def test_what_is_held_does_not_move_and_the_rest_does() -> None:
    """Alpha held at 10 us where 5 us would be best: g alone answers."""
    rows = Rows.of([(SIZES, line(5e-6, 1e10), [24])])
    start = np.log([[1e-5, 1e-10]])

    held = climb(rows, start, np.array([0.1]), held=np.array([[1.0, 0.0]]))
    free = climb(rows, start, np.array([0.1]))

    assert held.theta[0, 0] == start[0, 0]
    assert np.exp(free.theta[0, 0]) == pytest.approx(5e-6, rel=1e-4)
    assert held.loglik[0] < free.loglik[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_is_the_one_that_scipy_finds(seed: int) -> None:
    noisy = line(5e-6, 1e10) + 0.05 * np.random.default_rng(seed).standard_t(4, len(SIZES))
    rows = Rows.of([(SIZES, noisy, [24])])

    def loss(parameters: np.ndarray) -> float:
        _, residual = rows.seen_from(parameters[None, :2])
        return float(24 * parameters[2] + 2.5 * np.log1p(residual**2 / (4 * np.exp(2 * parameters[2]))).sum())

    ours = climb(rows, np.log([[4e-6, 2e-10]]), np.array([0.1]))
    theirs = minimize(
        loss,
        [*ours.theta[0] + 0.1, np.log(0.1)],
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-9, "maxiter": 4000},
    )

    assert ours.loglik[0] == pytest.approx(-theirs.fun, abs=1e-4)
    assert ours.theta[0] == pytest.approx(theirs.x[:2], abs=1e-3)
