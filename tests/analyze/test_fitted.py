from __future__ import annotations

import math
from typing import Any

import pytest

from commbench.analyze.fit import CurveFit, Estimate, Segment, fit_curve


def fit_of(curve: Any, *segments: Segment) -> CurveFit:
    return CurveFit(
        curve=curve, points=8, runs=1, interval="within_run", alpha=segments[0].alpha, bandwidth=segments[-1].bandwidth,
        bus_bandwidth=Estimate(None), n_half=Estimate(None), segments=segments, quality="good",
        largest_residual=(8, 1.0), notes=(),
    )  # fmt: skip


def segment(begin: int, end: int, alpha: float, bandwidth: float) -> Segment:
    return Segment(begin, end, Estimate(alpha), Estimate(bandwidth), (alpha, 1 / bandwidth))


def test_half_of_b_is_reached_at_n_half_and_90_per_cent_at_nine_times_of_it(curve_of: Any) -> None:
    fitted = fit_curve(curve_of(alpha=5e-6, bandwidth=1e10))

    assert fitted.reaches(0.5) == pytest.approx(50_000, rel=1e-4)
    assert fitted.reaches(0.9) == pytest.approx(450_000, rel=1e-4)


def test_a_share_of_b_may_be_reached_by_the_switch_itself(curve_of: Any) -> None:
    """Below 256 KiB 5 GB/s at most, from there 20 us + D/10 GB/s: 262144 in 46.2 us is 5.67 GB/s, more than half."""
    fitted = fit_of(curve_of(), segment(8, 1 << 17, 5e-6, 5e9), segment(1 << 18, 1 << 33, 20e-6, 1e10))

    assert fitted.reaches(0.5) == 1 << 18
    assert fitted.reaches(0.9) == pytest.approx(9 * 20e-6 * 1e10)


def test_a_share_of_b_may_be_reached_below_the_switch(curve_of: Any) -> None:
    """B falls to 2 GB/s at the switch; half of that, 1 GB/s, is reached at D with D / (1 us + D / 10 GB/s) = 1e9."""
    fitted = fit_of(curve_of(), segment(8, 1 << 20, 1e-6, 1e10), segment(1 << 21, 1 << 26, 1e-6, 2e9))

    assert fitted.reaches(0.5) == pytest.approx(1e-6 * 1e9 / (1 - 0.1))


def test_without_b_no_share_of_it_is_reached(curve_of: Any) -> None:
    unknown = Segment(8, 64, Estimate(5e-6), Estimate(None, lower=1e9), (5e-6, 1e-12))

    assert fit_of(curve_of(), unknown).reaches(0.5) is None


def test_the_line_of_a_size_is_that_of_its_segment(curve_of: Any) -> None:
    fitted = fit_of(curve_of(), segment(8, 1 << 17, 5e-6, 5e9), segment(1 << 18, 1 << 33, 20e-6, 1e10))

    assert fitted.seconds(1 << 17) == pytest.approx(5e-6 + (1 << 17) / 5e9)
    assert fitted.seconds((1 << 17) + 1) == pytest.approx(20e-6 + ((1 << 17) + 1) / 1e10)
    assert fitted.switches == (1 << 18,)


def test_a_scaled_estimate_keeps_what_is_not_known() -> None:
    assert Estimate(None, upper=2.0).scaled(1.5) == Estimate(None, upper=3.0)
    assert math.isclose(Estimate(1.0, 0.5, 2.0).scaled(2).high or 0, 4.0)
