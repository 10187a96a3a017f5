from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.analyze.fit import fit_curve, fit_curves
from commbench.analyze.summary import Curve, curves, points
from commbench.errors import CannotTellError
from tests.conftest import record_of

ALPHA, BANDWIDTH = 5e-6, 1e10  # n_1/2 = 50 kB


def test_exact_data_give_alpha_and_b_back(curve_of: Any) -> None:
    fitted = fit_curve(curve_of(alpha=ALPHA, bandwidth=BANDWIDTH))

    assert fitted.alpha.value == pytest.approx(ALPHA, rel=1e-6)
    assert fitted.bandwidth.value == pytest.approx(BANDWIDTH, rel=1e-6)
    assert fitted.n_half.value == pytest.approx(ALPHA * BANDWIDTH, rel=1e-6)
    assert fitted.bus_bandwidth.value == pytest.approx(1.5 * BANDWIDTH, rel=1e-6)
    assert (fitted.points, fitted.runs, fitted.interval, fitted.quality) == (24, 1, "within_run", "good")


@pytest.mark.parametrize(("alpha", "bandwidth"), [(3e-7, 2e10), (2e-5, 3e11), (1e-3, 1e7), (1e-6, 1e12)])
def test_any_scale_of_machine_is_fitted(curve_of: Any, alpha: float, bandwidth: float) -> None:
    fitted = fit_curve(curve_of(alpha=alpha, bandwidth=bandwidth, sizes=[2**i for i in range(34)]))

    assert fitted.alpha.value == pytest.approx(alpha, rel=1e-5)
    assert fitted.bandwidth.value == pytest.approx(bandwidth, rel=1e-5)


def covered(curves: list[Curve], alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> tuple[float, float]:
    """Share of curves whose intervals hold the truth, of alpha and of B."""
    fits = [fit_curve(curve) for curve in curves]
    return (
        sum(fitted.alpha.low <= alpha <= fitted.alpha.high for fitted in fits) / len(fits),  # type: ignore[operator]
        sum(f.bandwidth.low <= bandwidth <= f.bandwidth.high for f in fits) / len(fits),  # type: ignore[operator]
    )


def test_intervals_within_one_run_cover_the_truth_95_times_in_100(curve_of: Any) -> None:
    """5 % noise, 150 curves: the share of covering intervals is 95 % with a standard error of 1.8 %."""
    curves = [curve_of(alpha=ALPHA, bandwidth=BANDWIDTH, noise=0.05, seed=seed) for seed in range(150)]
    fits = [fit_curve(curve) for curve in curves]

    for share in covered(curves):
        assert 0.90 <= share <= 0.99
    biases = [
        math.fsum(math.log(fitted.alpha.value / ALPHA) for fitted in fits) / len(fits),  # type: ignore[operator]
        math.fsum(math.log(f.bandwidth.value / BANDWIDTH) for f in fits) / len(fits),  # type: ignore[operator]
    ]
    assert max(map(abs, biases)) < 0.006


def test_intervals_over_runs_cover_the_truth_although_runs_differ(curve_of: Any) -> None:
    """A factor of 2 % common to a run: only the spread of runs knows of it (within a run: 71 to 85 %)."""
    curves = [curve_of(runs=3, noise=0.02, run_noise=0.02, seed=seed) for seed in range(100)]

    for share in covered(curves):
        assert 0.88 <= share <= 0.99


def test_the_interval_over_runs_is_students_t_of_the_fits_of_each_run(curve_of: Any, record: Any) -> None:
    """Exact runs with alpha 4, 5, 6.25 us: logs 0.22314 apart, so 5 us x exp(± 4.3027 x 0.22314 / sqrt 3)."""
    alphas = (4e-6, 5e-6, 6.25e-6)
    records = [
        record(size, alpha + size / 1e10, run)
        for run, alpha in enumerate(alphas, 1)
        for size in (8 << i for i in range(24))
    ]

    fitted = fit_curve(curve_of(records))

    half = 4.302653 * math.log(1.25) / math.sqrt(3)
    assert (fitted.runs, fitted.interval) == (3, "runs")
    assert fitted.alpha.value == pytest.approx(5e-6, rel=1e-4)
    assert fitted.alpha.high == pytest.approx(5e-6 * math.exp(half), rel=1e-3)
    assert fitted.bandwidth.low == pytest.approx(1e10, rel=1e-4)


def test_outliers_do_not_move_the_fit(curve_of: Any, record: Any) -> None:
    records = [record(8 << i, (ALPHA + (8 << i) / BANDWIDTH) * (10 if i in (3, 20) else 1)) for i in range(24)]

    fitted = fit_curve(curve_of(records))

    assert fitted.alpha.value == pytest.approx(ALPHA, rel=1e-3)
    assert fitted.bandwidth.value == pytest.approx(BANDWIDTH, rel=1e-3)
    assert fitted.largest_residual[0] in (64, 8 << 20)
    assert fitted.largest_residual[1] == pytest.approx(10, rel=1e-3)


def test_alpha_is_not_identified_when_the_sweep_starts_above_n_half(curve_of: Any) -> None:
    fitted = fit_curve(curve_of(sizes=[1 << i for i in range(20, 30)], noise=0.02))

    assert fitted.alpha.value is None
    assert fitted.alpha.low is None
    assert fitted.alpha.upper is not None
    assert ALPHA < fitted.alpha.upper < 1e-4  # below the time of the smallest size, 110 us
    assert fitted.bandwidth.value == pytest.approx(BANDWIDTH, rel=0.05)
    assert fitted.n_half.value is None
    assert any("alpha is not identified" in note for note in fitted.notes)


def test_b_is_known_from_below_when_the_sweep_ends_on_the_plateau(curve_of: Any) -> None:
    fitted = fit_curve(curve_of(sizes=[8 << i for i in range(8)], noise=0.02))

    assert fitted.bandwidth.value is None
    assert fitted.bandwidth.lower is not None
    assert 1e8 < fitted.bandwidth.lower < BANDWIDTH  # 1 KiB within 2 % of 5 us is at least some GB/s
    assert fitted.bus_bandwidth.lower == pytest.approx(1.5 * fitted.bandwidth.lower)
    assert fitted.alpha.value == pytest.approx(ALPHA, rel=0.05)
    assert any("B is not identified" in note for note in fitted.notes)


def test_one_sided_bounds_hold_19_times_in_20(curve_of: Any) -> None:
    """100 curves that end below n_1/2; the standard error of the share is 2.2 %."""
    sizes = [8 << i for i in range(13)]
    fits = [fit_curve(curve_of(sizes=sizes, noise=0.03, seed=seed)) for seed in range(100)]
    bounds = [fitted.bandwidth.lower for fitted in fits if fitted.bandwidth.lower is not None]

    assert len(bounds) > 75
    assert 0.88 <= sum(bound <= BANDWIDTH for bound in bounds) / len(bounds) <= 0.99


def test_three_sizes_on_each_side_are_enough(curve_of: Any) -> None:
    fitted = fit_curve(curve_of(sizes=[1 << 10, 2 << 10, 4 << 10, 1 << 20, 2 << 20, 4 << 20]))

    assert fitted.alpha.value == pytest.approx(ALPHA, rel=1e-4)
    assert fitted.bandwidth.value == pytest.approx(BANDWIDTH, rel=1e-4)
    assert not fitted.notes


def test_a_sweep_that_ends_below_nine_n_half_says_so(curve_of: Any) -> None:
    """n_1/2 = 50 kB = 48.8K, nine times of it 439K."""
    [note] = fit_curve(curve_of(sizes=[8 << i for i in range(16)])).notes

    assert note == "the sweep ends at 256K, below 9 n_1/2 = 439K: B is an extrapolation"


def switched(size: int) -> float:
    """A protocol switch at 256 KiB: 5 us + D/5 GB/s below, 20 us + D/10 GB/s from there."""
    return 5e-6 + size / 5e9 if size < 1 << 18 else 20e-6 + size / 1e10


def test_a_protocol_switch_gives_two_segments_and_alpha_of_the_first_and_b_of_the_last(
    curve_of: Any, record: Any
) -> None:
    fitted = fit_curve(curve_of([record(8 << i, switched(8 << i)) for i in range(31)]))

    below, above = fitted.segments
    assert (below.from_bytes, below.to_bytes, above.from_bytes, above.to_bytes) == (8, 1 << 17, 1 << 18, 8 << 30)
    assert fitted.switches == (1 << 18,)
    assert fitted.alpha == below.alpha
    assert fitted.bandwidth == above.bandwidth
    assert below.alpha.value == pytest.approx(5e-6, rel=1e-4)
    assert below.bandwidth.value == pytest.approx(5e9, rel=1e-3)
    assert above.line == pytest.approx((20e-6, 1e-10), rel=1e-3)
    assert above.bandwidth.value == pytest.approx(1e10, rel=1e-4)
    assert fitted.n_half.value == pytest.approx(5e-6 * 1e10, rel=1e-3)
    assert fitted.quality == "good"
    assert fitted.seconds(1 << 18) == pytest.approx(20e-6 + (1 << 18) / 1e10, rel=1e-3)


def test_two_switches_give_three_segments(curve_of: Any, record: Any) -> None:
    """Eager 2 us + D/2 GB/s up to 4 KiB, 5 us + D/5 GB/s up to 512 KiB, 50 us + D/20 GB/s beyond."""

    def seconds(size: int) -> float:
        if size <= 4 << 10:
            return 2e-6 + size / 2e9
        return 5e-6 + size / 5e9 if size <= 512 << 10 else 50e-6 + size / 2e10

    fitted = fit_curve(curve_of([record(8 << i, seconds(8 << i)) for i in range(31)]))

    assert fitted.switches == (8 << 10, 1 << 20)
    assert [segment.line for segment in fitted.segments] == [
        pytest.approx((2e-6, 5e-10), rel=1e-3),
        pytest.approx((5e-6, 2e-10), rel=1e-3),
        pytest.approx((50e-6, 5e-11), rel=1e-3),
    ]


def test_one_line_forced_on_a_switch_is_a_poor_fit(curve_of: Any, record: Any) -> None:
    fitted = fit_curve(curve_of([record(8 << i, switched(8 << i)) for i in range(24)]), segments=1)

    assert len(fitted.segments) == 1
    assert fitted.quality == "poor"
    assert any("one line describes this curve badly" in note for note in fitted.notes)


def test_as_many_segments_as_asked_for_are_fitted(curve_of: Any) -> None:
    curve = curve_of(noise=0.05)

    assert [len(fit_curve(curve, segments).segments) for segments in (None, 1, 2, 3)] == [1, 1, 2, 3]


def test_more_segments_than_the_sizes_allow_are_refused(curve_of: Any) -> None:
    with pytest.raises(CannotTellError, match="3 segments need 4 sizes each, there are 11") as caught:
        fit_curve(curve_of(sizes=[8 << i for i in range(11)]), segments=3)

    assert "--segments" in caught.value.hint


@pytest.mark.parametrize(("name", "before", "after"), [("slices", 64, 1), ("depth", 32, 8), ("batch", 10, 1)])
def test_a_step_where_the_time_loop_changes_is_no_switch(
    curve_of: Any, record: Any, name: str, before: int, after: int
) -> None:
    """Above 128 KiB the loop itself changes: the jump there says nothing about the library."""
    sizes = [8 << i for i in range(31)]
    records = [record(s, switched(s), how={name: before if s < 1 << 18 else after}) for s in sizes]

    fitted = fit_curve(curve_of(records))

    assert 1 << 18 not in fitted.switches
    assert not {1 << 17, 1 << 19} & set(fitted.switches)
    [note] = [note for note in fitted.notes if "time loop" in note]
    assert note == (
        f"the step at 256K comes where the time loop changes ({name} {before} to {after}): it is not taken for a switch"
    )


def test_a_switch_elsewhere_than_the_change_of_the_time_loop_is_reported(curve_of: Any, record: Any) -> None:
    sizes = [8 << i for i in range(31)]
    records = [record(s, switched(s), how={"slices": 8 if s < 1 << 25 else 1}) for s in sizes]

    assert fit_curve(curve_of(records)).switches == (1 << 18,)


def test_runs_are_cut_where_the_curve_over_all_runs_is(curve_of: Any, record: Any) -> None:
    """Runs 1.25 apart: t over logs 0.22314 apart, as for one line."""
    records = [
        record(8 << i, switched(8 << i) * factor, run)
        for run, factor in enumerate((1 / 1.25, 1.0, 1.25), 1)
        for i in range(31)
    ]

    fitted = fit_curve(curve_of(records))

    half = 4.302653 * math.log(1.25) / math.sqrt(3)
    assert (fitted.runs, fitted.interval, fitted.switches) == (3, "runs", (1 << 18,))
    for estimate, truth in ((fitted.alpha, 5e-6), (fitted.bandwidth, 1e10)):
        assert estimate.value == pytest.approx(truth, rel=1e-3)
        assert estimate.high == pytest.approx(truth * math.exp(half), rel=1e-3)
    assert fitted.n_half.high == pytest.approx(5e4, rel=1e-3)  # alpha and B move together


def test_a_switch_that_comes_late_is_said(curve_of: Any, record: Any) -> None:
    """2 us + D/2 GB/s is kept up to 64 KiB; 8 us + D/10 GB/s would take 14.55 us there, not 34.77: 139 % late."""
    sizes = [8 << i for i in range(31)]
    records = [record(s, 2e-6 + s / 2e9 if s <= 64 << 10 else 8e-6 + s / 1e10) for s in sizes]

    assert (
        "switch at 128K comes 139 % late: the protocol above it would be faster from 16K on"
        in fit_curve(curve_of(records)).notes
    )


def test_times_that_fall_with_size_are_refused(curve_of: Any, record: Any) -> None:
    with pytest.raises(CannotTellError, match="times fall with size"):
        fit_curve(curve_of([record(8 << i, 1e-3 / (i + 1)) for i in range(24)]))


def test_constant_times_identify_no_bandwidth(curve_of: Any, record: Any) -> None:
    fitted = fit_curve(curve_of([record(8 << i, 1e-5) for i in range(24)]))

    assert fitted.alpha.value == pytest.approx(1e-5)
    assert fitted.bandwidth.value is None
    assert any("far beyond the sweep" in note for note in fitted.notes)


def test_without_ranks_or_operation_there_is_no_bus_bandwidth(curve_of: Any) -> None:
    for unknown in ({"ranks": 0}, {"op": "unknown"}):
        fitted = fit_curve(curve_of(**unknown))

        assert fitted.bandwidth.value == pytest.approx(BANDWIDTH)
        assert fitted.bus_bandwidth.value is None


def test_the_bus_factor_of_a_broadcast_needs_no_ranks(curve_of: Any) -> None:
    assert fit_curve(curve_of(op="broadcast", ranks=0)).bus_bandwidth.value == pytest.approx(BANDWIDTH)


def test_runs_that_agree_with_each_other_but_not_with_the_line_make_it_poor(curve_of: Any, record: Any) -> None:
    """A bump of 30 % over four sizes that all three runs show; noise within runs is 1 %."""
    records = [
        record(
            8 << i,
            (ALPHA + (8 << i) / BANDWIDTH) * (1.3 if i in (8, 10, 16, 18) else 1) * (1 + 0.01 * ((run + i) % 3)),
            run,
        )
        for run in (1, 2, 3)
        for i in range(24)
    ]

    assert fit_curve(curve_of(records), segments=1).quality == "poor"


def test_hundreds_of_sizes_are_thinned_and_the_switch_is_still_put_where_it_is(curve_of: Any, record: Any) -> None:
    """A sweep in steps of 8 KiB up to 4 MiB: 512 sizes, switch at 1 MiB."""
    sizes = [(i + 1) << 13 for i in range(512)]
    records = [record(s, 5e-6 + s / 5e9 if s < 1 << 20 else 80e-6 + s / 1e10) for s in sizes]

    assert fit_curve(curve_of(records)).switches == (1 << 20,)


def test_a_curve_whose_points_are_far_from_the_line_is_a_poor_fit_whatever_their_signs(
    curve_of: Any, record: Any
) -> None:
    """Every other size 30 % up or down: no pattern in the signs that the runs test would mind."""
    records = [record(8 << i, (ALPHA + (8 << i) / BANDWIDTH) * (1.3 if i % 2 else 1 / 1.3)) for i in range(24)]

    fitted = fit_curve(curve_of(records))

    assert fitted.quality == "poor"
    assert any("more than 10 % off" in note for note in fitted.notes)


def test_good_curves_are_rarely_called_poor(curve_of: Any) -> None:
    fits = [fit_curve(curve_of(noise=0.05, seed=seed)) for seed in range(100)]

    assert sum(fitted.quality == "poor" for fitted in fits) <= 4


def test_sizes_without_a_right_answer_are_left_out_and_named(curve_of: Any, record: Any) -> None:
    records = [record(8 << i, ALPHA + (8 << i) / BANDWIDTH, check="wrong" if i == 5 else "ok") for i in range(24)]

    fitted = fit_curve(curve_of(records))

    assert fitted.points == 23
    assert fitted.notes == ("left out, without a time or a right answer: 256",)


def test_a_run_with_few_sizes_is_left_out_of_the_spread(curve_of: Any, record: Any) -> None:
    records = [record(8 << i, ALPHA + (8 << i) / BANDWIDTH, run) for run in (1, 2) for i in range(24)]
    records += [record(8, ALPHA, 3)]

    fitted = fit_curve(curve_of(records))

    assert fitted.runs == 2
    assert "1 of 3 runs left out: fewer than 4 sizes" in fitted.notes


@pytest.mark.parametrize(
    ("mode", "note"),
    [
        ("sync", "alpha and B come from half a round trip (mode sync)"),
        ("pipe", "alpha and B come from a one-way stream with a window (mode pipe)"),
    ],
)
def test_point_to_point_says_which_measurement_it_comes_from(curve_of: Any, mode: str, note: str) -> None:
    assert note in fit_curve(curve_of(op="p2p", mode=mode, ranks=2)).notes


def test_one_rank_is_refused(curve_of: Any) -> None:
    with pytest.raises(CannotTellError, match="nothing travels") as caught:
        fit_curve(curve_of(ranks=1))

    assert "--ranks 2" in caught.value.hint


def test_fewer_than_four_sizes_are_refused(curve_of: Any) -> None:
    with pytest.raises(CannotTellError, match="needs 4 sizes, there are 3"):
        fit_curve(curve_of(sizes=[8, 16, 32]))


def test_one_size_measured_often_is_refused(curve_of: Any) -> None:
    with pytest.raises(CannotTellError, match="needs 4 sizes, there is 1"):
        fit_curve(curve_of(sizes=[8], runs=5))


def test_a_curve_without_any_time_is_refused(curve_of: Any, record: Any) -> None:
    failed = [record(8 << i, None, status="failed", reason="died", check="skipped") for i in range(8)]

    with pytest.raises(CannotTellError, match="no size has a time"):
        fit_curve(curve_of(failed))


@pytest.mark.parametrize("broken", [0.0, -1e-6, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_and_named(curve_of: Any, record: Any, broken: float) -> None:
    records = [record(8 << i, broken if i == 3 else 1e-5) for i in range(8)]

    with pytest.raises(CannotTellError, match="64"):
        fit_curve(curve_of(records))


def test_curves_that_cannot_be_fitted_do_not_stop_the_others(curve_of: Any) -> None:
    fits, refusals = fit_curves([curve_of(), curve_of(ranks=1), curve_of(op="reduce")])

    assert [fitted.curve.key.op for fitted in fits] == ["allreduce", "reduce"]
    assert len(refusals) == 1


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_gives_finite_numbers_or_bounds_and_never_a_crash(curve_of: Any, record: Any, seed: int) -> None:
    """Times that have nothing to do with size: noise of a factor of e^3 over four or more sizes."""
    try:
        fitted = fit_curve(curve_of(noise=3.0, seed=seed, sizes=[8 << (3 * i) for i in range(4 + seed % 9)]))
    except CannotTellError:
        return

    for estimate in (fitted.alpha, fitted.bandwidth, fitted.n_half):
        values = (estimate.value, estimate.low, estimate.high, estimate.upper, estimate.lower)
        assert all(value is None or (math.isfinite(value) and value > 0) for value in values)


@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 60), st.sampled_from([1e-12, 1e-6, 1e-5, 1.0, 1e9]) | st.floats(1e-12, 1e9)),
        min_size=4,
        max_size=24,
        unique_by=lambda row: row[0],
    ),
    st.sampled_from([None, 1, 2, 3]),
)
def test_whatever_a_file_holds_a_fit_is_finite_or_refused_in_words(
    rows: list[tuple[int, float]], segments: int
) -> None:
    [curve] = curves(points([record_of(size, seconds) for size, seconds in rows]))
    try:
        fitted = fit_curve(curve, segments)
    except CannotTellError:
        return
    for estimate in (fitted.alpha, fitted.bandwidth, fitted.n_half, *(s.alpha for s in fitted.segments)):
        known = (estimate.value, estimate.low, estimate.high, estimate.upper, estimate.lower)
        assert all(value is None or 0 <= value < math.inf for value in known)
