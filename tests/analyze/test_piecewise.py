from __future__ import annotations

import math

import numpy as np
import pytest

from commbench.analyze.piecewise import ALPHA, BANDWIDTH, Asked, Piecewise

SIZES = np.array([8.0 * 2**i for i in range(24)])


def noisy(alpha: float, bandwidth: float, seed: int = 1) -> np.ndarray:
    return (alpha + SIZES / bandwidth) * np.exp(0.03 * np.random.default_rng(seed).standard_normal(len(SIZES)))


def test_the_interval_of_alpha_is_that_of_the_mean_of_a_plateau() -> None:
    """Nearly without slope log alpha is a location under t(4): sd = s sqrt(7/5 / (n - 2)), and t(22) = 2.074."""
    lines = Piecewise(SIZES, noisy(5e-6, 1e22))
    low, high = lines.interval(0, ALPHA)

    half = 2.0739 * lines.scale * math.sqrt(7 / 5 / 22)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_one_sided_bounds_lie_between_the_peak_and_infinity() -> None:
    lines = Piecewise(SIZES, noisy(5e-6, 1e10))

    above, below = lines.bounds([Asked(0, ALPHA, 1), Asked(0, ALPHA, -1)])

    assert above is not None
    assert below is not None
    assert below < lines.value(0, ALPHA) < above
    # Where the parameter is well known the profile is a parabola: 1.717 of the 2.074 deviations of the interval.
    low, high = lines.interval(0, ALPHA)
    assert (above - below) / (high - low) == pytest.approx(1.717 / 2.074, rel=0.1)


def test_there_is_no_bound_where_nothing_is_excluded() -> None:
    """On a plateau B may be as large as it likes."""
    lines = Piecewise(SIZES[:8], noisy(5e-6, 1e12)[:8])

    assert lines.bounds([Asked(0, BANDWIDTH, 1)]) == [None]
    [lower] = lines.bounds([Asked(0, BANDWIDTH, -1)])
    assert lower is not None
    assert math.exp(lower) < 1e12


def test_a_segment_knows_nothing_of_the_other_but_the_scale() -> None:
    both = np.concatenate((noisy(5e-6, 1e10)[:12], 3 * noisy(5e-6, 1e10)[12:]))
    lines, alone = Piecewise(SIZES, both, (12,)), Piecewise(SIZES[:12], both[:12])

    assert lines.value(0, ALPHA) == pytest.approx(alone.value(0, ALPHA), abs=0.02)
    assert lines.freedom == 20
