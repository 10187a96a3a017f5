from __future__ import annotations

import math
from typing import Any

import pytest

from commbench.analyze.lines import Line, Sample, own_deviation, roughness, samples_of
from commbench.analyze.summary import points
from commbench.records import Seconds

SIZES = [8 << i for i in range(12)]


def samples(seconds_at: Any, sizes: list[int], noise: float = 0.01) -> list[Sample]:
    return [Sample(size, math.log(seconds_at(size)), noise) for size in sizes]


def test_a_line_through_exact_times_gives_them_on_both_sides() -> None:
    """T = 2 us + D / 1 GB/s through 1000 to 4000 B: 8000 B take 10 us, 500 B take 2.5 us."""
    line = Line(samples(lambda size: 2e-6 + size * 1e-9, [1000, 2000, 3000, 4000]))

    assert math.exp(line.at(8000)[0]) == pytest.approx(10e-6)
    assert math.exp(line.at(500)[0]) == pytest.approx(2.5e-6)
    assert line.slope == pytest.approx(1e-9)
    assert line.misfit == pytest.approx(0, abs=1e-6)


def test_the_deviation_of_a_line_through_two_sizes_is_that_of_error_propagation() -> None:
    """Flat at 1 with 1 % noise at x = 1 and 2: 2 y2 - y1 at x = 3 has sqrt(4 + 1) per cent."""
    line = Line(samples(lambda _: 1.0, [1000, 2000]))

    assert line.at(3000)[1] == pytest.approx(math.sqrt(5) * 0.01, rel=1e-6)


@pytest.mark.parametrize("falling", [True, False])
def test_neither_latency_nor_slope_is_below_zero(falling: bool) -> None:
    line = Line(samples(lambda size: 1e-6 if not falling else 1 / size, [1000, 2000, 4000, 8000]))

    assert line.slope >= 0
    assert math.isfinite(line.at(10**9)[0])
    assert math.isfinite(line.at(1)[0])


def test_a_single_size_gives_bounds_only() -> None:
    """From 1000 B in 1 us: 2000 B take 1 to 2 us, 500 B take 0.5 to 1 us."""
    line = Line(samples(lambda _: 1e-6, [1000]))

    assert [math.exp(line.at(2000, longest=longest)[0]) for longest in (True, False)] == pytest.approx([2e-6, 1e-6])
    assert [math.exp(line.at(500, longest=longest)[0]) for longest in (True, False)] == pytest.approx([1e-6, 0.5e-6])


def test_exact_times_are_not_rough_and_one_switch_and_one_outlier_make_no_noise() -> None:
    times = [1e-6 + size * 1e-10 if size < 1024 else 3e-6 + size * 0.5e-10 for size in SIZES]
    times[2] *= 3

    assert roughness([8 << i for i in range(24)], [1e-6 + (8 << i) * 1e-10 for i in range(24)]) == 0.01
    assert roughness([8 << i for i in range(24)], times + [3e-6 + (8 << i) * 0.5e-10 for i in range(12, 24)]) == 0.01


def test_roughness_is_about_the_noise_that_was_put_in(curve_of: Any) -> None:
    times = [[p.seconds.median for p in curve_of(noise=0.05, seed=seed).points] for seed in range(40)]
    rough = sorted(roughness([8 << i for i in range(24)], medians) for medians in times)

    assert 0.04 < rough[20] < 0.075


def test_a_few_sizes_without_intervals_have_an_assumed_noise() -> None:
    assert roughness([8, 16, 32], [1.0, 1.0, 1.0]) == 0.05


def test_the_interval_of_one_run_is_one_of_20_slices(record: Any) -> None:
    """exp(± 0.1) with t(.975, 19) = 2.0930."""
    seconds = Seconds(median=1e-6, low=1e-6 * math.exp(-0.1), high=1e-6 * math.exp(0.1))
    [point] = points([record(8, seconds=seconds)])

    assert own_deviation(point) == pytest.approx(0.1 / 2.0930, rel=1e-4)


def test_the_interval_over_runs_is_taken_back_to_the_standard_error(record: Any) -> None:
    """Logs of 1, 2, 4 us: sd = log 2, standard error log 2 / sqrt 3."""
    [point] = points([record(8, median, run) for run, median in enumerate((1e-6, 2e-6, 4e-6), 1)])

    assert own_deviation(point) == pytest.approx(math.log(2) / math.sqrt(3), rel=1e-4)


def test_a_time_without_an_interval_has_no_deviation_of_its_own(record: Any) -> None:
    [point] = points([record(8, seconds=Seconds(median=1e-6))])

    assert own_deviation(point) == 0


def test_failed_wrong_and_impossible_times_are_no_samples(curve_of: Any, record: Any) -> None:
    curve = curve_of(
        [
            record(8, 0.0),
            record(16, 1e-15),
            record(32, 1e12),
            record(64, None, status="hung", check="skipped"),
            record(128, 1e-6, check="wrong"),
            record(256, 1e-6),
        ]
    )

    assert [sample.size for sample in samples_of(curve)] == [256]
