from __future__ import annotations

import math
import random
from typing import Any

import pytest
from scipy import stats

from commbench.analyze.fit import fit_curve
from commbench.analyze.ratios import Ratio, of_fits, of_level, of_points, of_runs
from commbench.analyze.summary import PointSummary, points
from commbench.records import Seconds

SIZES = [8 << i for i in range(24)]


def runs_of(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values, 1))


def point_with(record: Any, *medians: float, size: int = 8) -> PointSummary:
    [summary] = points([record(size, median, run) for run, median in enumerate(medians, 1)])
    return summary


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ([1.0, 1.03, 0.98], [1.2, 1.31, 1.17]),
        ([1.0, 1.5], [2.0, 2.0, 2.1, 1.9]),
        ([5e-6, 5.2e-6, 4.9e-6, 5.1e-6, 5.3e-6], [4e-6, 4.4e-6, 3.9e-6]),
    ],
)
def test_over_runs_the_interval_is_that_of_welch_in_logs(first: list[float], other: list[float]) -> None:
    """SciPy's is the other tool; below two degrees of freedom ours is up to 3 % wider."""
    ratio = of_runs(runs_of(first), runs_of(other))

    test = stats.ttest_ind([math.log(v) for v in other], [math.log(v) for v in first], equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert ratio.value == pytest.approx(math.exp((low + high) / 2))
    assert ratio.basis == "runs"
    assert 1 <= math.log(ratio.high / ratio.low) / (high - low) < 1.03 if test.df < 2 else True
    if test.df >= 2:
        assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-4)


def test_over_the_same_launches_the_interval_is_that_of_their_own_ratios() -> None:
    first, other = [1.0, 2.0, 1.4], [1.1, 2.3, 1.5]

    ratio = of_runs(runs_of(first), runs_of(other), same_launches=True)

    low, high = stats.ttest_rel([math.log(v) for v in other], [math.log(v) for v in first]).confidence_interval(0.95)
    assert (ratio.low, ratio.high, ratio.basis) == (
        pytest.approx(math.exp(low)),
        pytest.approx(math.exp(high)),
        "same_runs",
    )


def test_launches_that_are_not_on_both_sides_are_not_paired() -> None:
    assert of_runs({1: 1.0, 2: 1.1}, {1: 1.0, 3: 1.2}, same_launches=True).basis == "runs"


def test_one_run_a_side_combines_the_two_intervals_in_logs(record: Any) -> None:
    """±10 % on both sides: low by the root of log(1/0.9)² + log(1.1)², and high the same."""
    ratio = of_points(point_with(record, 1e-5), point_with(record, 2e-5))

    reach = math.hypot(math.log(1 / 0.9), math.log(1.1))
    assert ratio.value == pytest.approx(2)
    assert (ratio.low, ratio.high) == (pytest.approx(2 * math.exp(-reach)), pytest.approx(2 * math.exp(reach)))
    assert ratio.basis == "within_run"


def test_several_runs_against_one_are_within_the_one(record: Any) -> None:
    assert of_points(point_with(record, 1e-5, 1.1e-5, 1e-5), point_with(record, 2e-5)).basis == "within_run"


def test_times_without_an_interval_give_a_ratio_without_one(record: Any) -> None:
    [bare] = points([record(8, seconds=Seconds(median=3e-5))])
    [reaches_zero] = points([record(8, seconds=Seconds(median=3e-5, low=0.0, high=6e-5))])

    for other in (bare, reaches_zero):
        assert of_points(point_with(record, 1e-5), other) == Ratio(pytest.approx(3), None, None, "none")


def test_equal_runs_leave_no_doubt() -> None:
    ratio = of_runs(runs_of([2.0, 2.0]), runs_of([3.0, 3.0]))

    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_the_ratio_of_the_others_to_the_first_is_one_over_it(record: Any) -> None:
    one, two = point_with(record, 1e-5, 1.2e-5, 1.1e-5), point_with(record, 3e-5, 3.1e-5)

    there, back = of_points(one, two), of_points(two, one)

    turned = back.inverse()
    assert (turned.low, turned.value, turned.high) == pytest.approx((there.low, there.value, there.high))


def test_a_side_is_taken_only_where_the_whole_interval_lies_on_it() -> None:
    assert [Ratio(1.1, low, high).side for low, high in ((1.05, 1.2), (0.9, 1.2), (0.8, 0.9))] == [1, 0, -1]
    assert (Ratio(1.1).side, Ratio(1.1).holds_one) == (0, None)


def test_the_intervals_of_two_normal_samples_hold_the_truth_in_95_of_100() -> None:
    """3 against 3 and 5 against 3 runs of unequal scatter; by theory Welch's intervals cover 93 to 97 %."""
    draw = random.Random(3)
    for sides in (((3, 0.03), (3, 0.03)), ((5, 0.02), (3, 0.06))):
        hits = 0
        for _ in range(600):
            ratio = of_runs(*(runs_of([math.exp(s * draw.gauss(0, 1)) for _ in range(n)]) for n, s in sides))
            hits += bool(ratio.holds_one)
        assert 0.92 < hits / 600 < 0.98


def level(record: Any, first: list[list[float]], other: list[list[float]], **how: Any) -> Ratio | None:
    """Of medians by size and run."""
    sides = [[point_with(record, *runs, size=8 << i) for i, runs in enumerate(side)] for side in (first, other)]
    return of_level(list(zip(*sides, strict=True)), **how)


def test_the_level_is_the_geometric_mean_over_sizes_and_what_moves_a_launch_counts_once(record: Any) -> None:
    """Runs at 1, 1.1 and 1.21 times, all sizes alike: however many sizes, the interval is that of three values."""
    runs = [1e-5, 1.1e-5, 1.21e-5]
    one = level(record, [runs], [[3e-5, 3e-5, 3e-5]])
    many = level(record, [runs] * 9, [[3e-5 * 2**i] * 3 for i in range(-4, 5)])

    assert one is not None
    assert many is not None
    assert many.value == pytest.approx(3 / 1.1)
    assert (many.low, many.high) == pytest.approx((one.low, one.high))


def test_the_level_of_the_same_launches_loses_what_they_share(record: Any) -> None:
    runs = [1e-5, 2e-5, 1.5e-5]

    shared = level(record, [runs] * 2, [[3 * v for v in runs]] * 2, same_launches=True)

    assert shared is not None
    assert (shared.low, shared.value, shared.high) == pytest.approx((3, 3, 3))


def test_the_level_within_one_run_shrinks_with_the_sizes_and_says_what_it_is(record: Any) -> None:
    found = level(record, [[1e-5]] * 4, [[2e-5]] * 4)

    assert found is not None
    assert found.basis == "within_run"
    assert found.high == pytest.approx(2 * math.exp(math.hypot(math.log(1 / 0.9), math.log(1.1)) / 2))


def test_a_level_whose_runs_lack_sizes_claims_no_interval(record: Any) -> None:
    found = level(record, [[1e-5, 1e-5], [1e-5, 1e-5]], [[2e-5, 2e-5], [2e-5]])

    assert found == Ratio(pytest.approx(2), None, None, "none")
    assert of_level([]) is None


def test_alpha_and_bandwidth_of_exact_curves_have_the_ratios_of_their_truths(curve_of: Any) -> None:
    first, other = fit_curve(curve_of(runs=3)), fit_curve(curve_of(alpha=15e-6, bandwidth=3e10, runs=3))

    alpha = of_fits((first.alpha, first), (other.alpha, other))
    bandwidth = of_fits((first.bandwidth, first), (other.bandwidth, other))

    assert alpha is not None
    assert bandwidth is not None
    assert (alpha.value, bandwidth.value) == pytest.approx((3, 3), rel=1e-3)
    assert alpha.basis == "runs"


def test_a_parameter_of_fits_over_runs_has_welchs_interval_over_the_runs_parameters(curve_of: Any, record: Any) -> None:
    """Runs that are exact multiples of a curve have alphas that are: their Welch interval is known."""
    factors = ([1.0, 1.05, 0.97], [1.1, 1.3, 1.2])
    fits = []
    for side in factors:
        records = [record(s, f * (5e-6 + s / 1e10), run) for run, f in enumerate(side, 1) for s in SIZES]
        fits.append(fit_curve(curve_of(records)))

    found = of_fits(*((fitted.alpha, fitted) for fitted in fits))

    expected = of_runs(*map(runs_of, factors))
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx(
        (expected.low, expected.value, expected.high), rel=1e-4
    )


def test_what_is_not_identified_has_no_ratio(curve_of: Any) -> None:
    known, cut = fit_curve(curve_of()), fit_curve(curve_of(sizes=[1 << i for i in range(20, 30)], noise=0.02))

    assert cut.alpha.value is None
    assert of_fits((known.alpha, known), (cut.alpha, cut)) is None


def test_absurd_times_give_numbers_that_json_can_hold(record: Any) -> None:
    ratio = of_points(point_with(record, 1e-300, 1e10), point_with(record, 1e-5, 1e-5))

    assert all(0 < value < math.inf for value in (ratio.low, ratio.value, ratio.high) if value is not None)
