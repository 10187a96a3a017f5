"""Statistics of one point against theory: closed forms, scipy, and seeded simulation."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from commbench import stats
from commbench.stats import (
    FLAGS,
    LogHistogram,
    Samples,
    Trace,
    has_drifted,
    has_two_modes,
    interval_over,
    is_precise,
    oddities,
    precision_of,
    t_quantile,
)

CLOCK = 4e-8  # a clock that ticks every 40 ns


def traced(values: Any) -> Trace:
    trace = Trace()
    trace.extend(np.asarray(values, dtype=float))
    return trace


def noisy(count: int, median: float = 1e-5, sigma: float = 0.05, seed: int = 1) -> Samples:
    """Lognormal samples."""
    values: Samples = median * np.exp(sigma * np.random.default_rng(seed).standard_normal(count))
    return values


# -- the trace ---------------------------------------------------------------------------------------------------


def test_a_trace_of_few_samples_is_all_of_them() -> None:
    values = noisy(4095)
    trace = traced(values)

    assert trace.values.tolist() == values.tolist()
    assert (trace.stride, trace.count) == (1, 4095)


def test_a_full_trace_drops_every_second_sample_and_goes_on_so() -> None:
    trace = traced(np.arange(10_000.0))

    assert trace.stride == 4  # halved at 4096 and at 8192
    assert trace.values.tolist() == list(range(0, 10_000, 4))


def test_the_extremes_are_exact_though_their_samples_were_dropped() -> None:
    values = np.full(10_000, 5.0)
    values[4097], values[9999] = 1.0, 9.0
    trace = traced(values)

    assert (trace.minimum, trace.maximum, trace.count) == (1.0, 9.0, 10_000)
    assert set(trace.values) == {5.0}


def test_an_empty_chunk_changes_nothing() -> None:
    trace = traced([])

    assert (trace.count, len(trace.values)) == (0, 0)


@given(chunks=st.lists(st.integers(0, 40), max_size=12), size=st.sampled_from([4, 8, 16]))
def test_however_samples_arrive_every_stride_th_is_kept(chunks: list[int], size: int) -> None:
    with patch.object(stats, "TRACE_SIZE", size):
        trace, stream = Trace(), np.arange(float(sum(chunks)))
        for start, stop in pairwise(np.cumsum([0, *chunks])):
            trace.extend(stream[start:stop])

    assert trace.count == len(stream)
    assert trace.values.tolist() == stream[:: trace.stride].tolist()
    assert len(trace.values) < size
    assert trace.stride == 1 or len(trace.values) >= size // 2


# -- the histogram -----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(2e-9, 1e3), max_size=50), st.integers(0, 50))
def test_every_sample_is_in_the_one_percent_bin_that_holds_it(values: list[float], cut: int) -> None:
    histogram = LogHistogram()
    histogram.extend(np.array(values[:cut]))
    histogram.extend(np.array(values[cut:]))
    plain: Any = histogram.to_json()

    assert sum(plain["counts"]) == len(values)
    assert plain["bins"] == sorted(set(plain["bins"]))
    spread = [k for k, count in zip(plain["bins"], plain["counts"], strict=True) for _ in range(count)]
    for position, value in zip(spread, sorted(values), strict=True):
        low = plain["base"] * math.exp(plain["step"] * position)
        assert low * (1 - 1e-9) <= value <= low * math.exp(plain["step"]) * (1 + 1e-9)


def test_what_is_below_a_nanosecond_is_in_the_first_bin() -> None:
    histogram = LogHistogram()
    histogram.extend(np.array([0.0, 5e-10, 1e-9]))

    assert histogram.counts == {0: 3}


# -- the interval of the median ----------------------------------------------------------------------------------


def test_the_half_width_is_students_t_on_the_slices() -> None:
    """Twenty slices at e^±a: their standard deviation is a·√(20/19), so the half-width is t·a/√19."""
    a = 0.1
    known = precision_of(np.exp(a * np.tile([1.0, -1.0], 10)))

    assert known.median == pytest.approx(math.cosh(a))
    assert known.half_width == pytest.approx(scipy.stats.t.ppf(0.975, 19) * a / math.sqrt(19), rel=1e-4)
    assert known.lag1 == pytest.approx(-19 / 20)


def test_slices_are_consecutive_and_their_medians_count() -> None:
    """Each slice of five holds one value five times beside an outlier that its median ignores."""
    levels = np.repeat(np.exp(0.1 * np.tile([1.0, -1.0], 10)), 5)
    levels[::5] = 1e6

    assert precision_of(levels).half_width == pytest.approx(
        scipy.stats.t.ppf(0.975, 19) * 0.1 / math.sqrt(19), rel=1e-4
    )


def test_a_drifting_trace_has_slices_that_follow_each_other() -> None:
    assert precision_of(np.exp(np.linspace(0, 1, 1000))).lag1 > 0.8


def test_two_samples_a_hundred_times_apart_give_no_interval() -> None:
    # By hand: t(0.975, 1) = 12.7, times ln 100 / 2: a factor of e^29.
    known = precision_of(np.array([1e-5, 1e-3]))
    assert (known.half_width, known.interval()) == (None, (None, None))


def test_equal_samples_are_known_exactly_and_do_not_follow_each_other() -> None:
    known = precision_of(np.full(100, 3e-6))

    assert (known.median, known.half_width, known.lag1) == (pytest.approx(3e-6), pytest.approx(0, abs=1e-12), 0.0)


@pytest.mark.parametrize("values", [[1e-5], [0.0] * 50])
def test_one_sample_or_a_time_of_zero_has_no_interval(values: list[float]) -> None:
    known = precision_of(np.array(values))

    assert known.half_width is None
    assert known.interval(CLOCK) == (None, None)


def test_the_interval_is_widened_by_half_a_clock_step_and_never_below_zero() -> None:
    known = stats.Precision(median=1e-6, half_width=math.log(1.25), lag1=0.0)

    assert known.interval(0.0) == pytest.approx((0.8e-6, 1.25e-6))
    assert known.interval(2e-7) == pytest.approx((0.7e-6, 1.35e-6))
    assert known.interval(1e-5)[0] == 0.0


@pytest.mark.parametrize("count", [60, 1000])
def test_intervals_cover_the_truth_as_often_as_they_say(count: int) -> None:
    """Of 500 the number that miss is binomial with p = 5 %: 25 ± 5, so 10 to 45 leaves four standard deviations."""
    missed = 0
    for seed in range(500):
        low, high = precision_of(noisy(count, 1.0, 0.3, seed)).interval()
        assert low is not None
        assert high is not None
        missed += not low <= 1.0 <= high

    assert 10 <= missed <= 45


# -- the stop rule -----------------------------------------------------------------------------------------------


def test_a_point_stops_with_enough_samples_time_and_visits_and_a_narrow_interval() -> None:
    steady = traced(noisy(400))

    assert is_precise(steady, 0.3, 3, 0.02)
    assert not is_precise(steady, 0.29, 3, 0.02)
    assert not is_precise(steady, 0.3, 2, 0.02)
    assert not is_precise(traced(noisy(59, sigma=0.001)), 0.3, 3, 0.02)
    assert is_precise(traced(noisy(60, sigma=0.001)), 0.3, 3, 0.02)


def test_a_wide_interval_goes_on() -> None:
    """Medians of 20 slices of 20: half-width about t·1.25·sigma/√400 = 2.09·1.25·0.5/20 = 6.5 %."""
    wide = traced(noisy(400, sigma=0.5))

    assert not is_precise(wide, 10, 10, 0.02)
    assert is_precise(wide, 10, 10, 0.2)


def test_slices_that_follow_each_other_go_on_however_narrow_the_interval() -> None:
    drifting = traced(np.exp(np.linspace(0, 0.01, 1000)))

    assert (precision_of(drifting.values).half_width or 1) < 0.02
    assert not is_precise(drifting, 10, 10, 0.02)


# -- what is odd -------------------------------------------------------------------------------------------------


def odd(values: Any, overhead: float = 5e-8) -> list[str]:
    return oddities(traced(values), CLOCK, overhead)


def test_steady_samples_are_not_odd() -> None:
    """At most one of 50 seeds may raise a flag by chance."""
    assert sum(bool(odd(noisy(2000, seed=seed))) for seed in range(50)) <= 1


def test_few_samples_are_only_few() -> None:
    assert odd(noisy(59, sigma=0.01)) == ["few_samples"]
    assert odd([1e-5]) == ["unstable", "few_samples"]


def test_a_wide_interval_is_unstable() -> None:
    assert "unstable" in odd(noisy(400, sigma=0.8))


def test_a_call_below_twenty_clock_overheads_is_too_short() -> None:
    assert odd(noisy(1000, median=0.9e-6, sigma=0.01), overhead=5e-8) == ["too_short"]
    assert odd(noisy(1000, median=1.1e-6, sigma=0.01), overhead=5e-8) == []


def test_a_machine_that_slows_down_has_drifted() -> None:
    slower = noisy(1000) * np.linspace(1, 1.2, 1000)

    assert {"drift", "autocorrelated"} <= set(odd(slower))


def test_a_step_of_one_clock_tick_is_not_a_drift() -> None:
    """400 and 440 ns differ by 10 %, and by what the clock can tell."""
    ticks = np.repeat([4.0e-7, 4.4e-7], 500)

    assert not has_drifted(ticks, 4.1e-8)
    assert has_drifted(ticks, 1e-9)


def test_a_rest_of_one_percent_is_not_a_drift() -> None:
    assert not has_drifted(np.repeat([1.0e-5, 1.01e-5], 500), 1e-9)


def test_two_groups_of_samples_are_two_modes() -> None:
    both = np.concatenate([noisy(600, 1e-5, 0.01), noisy(400, 1.5e-5, 0.01)])
    np.random.default_rng(0).shuffle(both)

    assert odd(both) == ["two_modes"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_group_of_less_than_a_fifth_is_no_mode(share: float) -> None:
    few = int(1000 * share)
    values = np.concatenate([noisy(1000 - few, 1e-5, 0.01), noisy(few, 1.5e-5, 0.01)])

    assert not has_two_modes(values, 1e-9)


def test_two_groups_five_percent_apart_are_one() -> None:
    assert not has_two_modes(np.concatenate([noisy(500, 1e-5, 0.005), noisy(500, 1.05e-5, 0.005)]), 1e-9)


def test_the_teeth_of_the_clock_are_not_modes() -> None:
    """300 ns calls on a 40 ns clock read 280, 320 or 360: every bin between is empty, and means nothing."""
    ticks = np.round(noisy(2000, 3.1e-7, 0.08) / CLOCK) * CLOCK

    assert len(np.unique(ticks)) > 2
    assert not has_two_modes(ticks, CLOCK)


def test_many_samples_far_above_the_rest_are_outliers() -> None:
    values = noisy(1000, sigma=0.01)
    values[::16] *= 3  # 63 of 1000

    assert odd(values) == ["outliers"]
    values = noisy(1000, sigma=0.01)
    values[::25] *= 3  # 40 of 1000

    assert odd(values) == []


def test_every_flag_says_what_it_means_and_what_to_do() -> None:
    found = {flag for values in (noisy(400, sigma=0.8), [1e-5], noisy(999, 1e-7)) for flag in odd(values)}

    assert found <= set(FLAGS)
    assert all(FLAGS.values())


# -- over runs ---------------------------------------------------------------------------------------------------


def test_runs_are_averaged_geometrically_with_a_t_interval_in_log() -> None:
    """1, 2 and 4: log2 is 0, 1, 2 with mean 1 and standard deviation 1."""
    half = scipy.stats.t.ppf(0.975, 2) / math.sqrt(3)

    assert interval_over([1.0, 4.0, 2.0]) == pytest.approx((2, 2 ** (1 - half), 2 ** (1 + half)), rel=1e-6)


def test_equal_runs_have_no_width() -> None:
    assert interval_over([3e-6, 3e-6]) == pytest.approx((3e-6, 3e-6, 3e-6))


def test_an_interval_over_runs_ends_where_numbers_do() -> None:
    """Two runs 300 orders of magnitude apart come out of an edited file only; they are no traceback."""
    value, low, high = interval_over([1e-300, 1e10])

    assert 0 <= low < value < high < math.inf


@given(probability=st.floats(0.75, 0.9999), freedom=st.integers(1, 2000))
def test_students_t_agrees_with_scipy_to_four_digits(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(scipy.stats.t.ppf(probability, freedom), rel=1e-4)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (2, 4.303), (4, 2.776), (19, 2.093), (120, 1.980)])
def test_students_t_is_what_the_tables_print(freedom: int, value: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)
