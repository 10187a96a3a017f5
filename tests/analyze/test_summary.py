from __future__ import annotations

import math
from typing import Any

import pytest

from commbench.analyze.summary import curves, points


def only(records: list[Any]) -> Any:
    [summary] = points(records)
    return summary


def test_one_run_keeps_its_own_median_and_interval(record: Any) -> None:
    summary = only([record(1000, 2e-6)])

    assert (summary.runs, summary.interval) == (1, "within_run")
    assert (summary.seconds.median, summary.seconds.low, summary.seconds.high) == (2e-6, 0.9 * 2e-6, 1.1 * 2e-6)


def test_three_runs_give_the_geometric_mean_and_the_t_interval_of_their_medians(record: Any) -> None:
    """Logs of 1, 2, 4 us are log 2 apart: sd = log 2, t(.975, 2) = 4.3027, half-width 4.3027 log 2 / sqrt 3."""
    summary = only([record(8, median, run) for run, median in enumerate((1e-6, 2e-6, 4e-6), 1)])

    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert (summary.runs, summary.interval) == (3, "runs")
    assert summary.seconds.median == pytest.approx(2e-6)
    assert summary.seconds.low == pytest.approx(2e-6 / math.exp(half), rel=1e-5)
    assert summary.seconds.high == pytest.approx(2e-6 * math.exp(half), rel=1e-5)


def test_quantiles_are_averaged_over_runs_and_extremes_are_over_all(record: Any) -> None:
    summary = only([record(8, 1e-6, 1), record(8, 4e-6, 2)])

    assert summary.seconds.p95 == pytest.approx(1.2 * 2e-6)
    assert (summary.seconds.min, summary.seconds.max) == (0.8 * 1e-6, 3.0 * 4e-6)
    assert summary.samples == 200


def test_rates_come_from_the_median(record: Any) -> None:
    """1 MB in 1 ms is 1 GB/s; an all-reduce on 4 ranks puts 2 x 3/4 of it on the bus."""
    summary = only([record(1_000_000, 1e-3)])

    assert summary.algbw == pytest.approx(1e9)
    assert summary.busbw == pytest.approx(1.5e9)


def test_a_time_of_zero_has_no_rate(record: Any) -> None:
    assert only([record(8, 0.0)]).algbw is None
    assert only([record(8, 0.0, 1), record(8, 1e-6, 2)]).seconds.low is None


def test_status_and_check_are_the_worst_of_the_runs(record: Any) -> None:
    summary = only(
        [
            record(8, 1e-6, 1),
            record(8, 1e-6, 2, check="wrong", status="failed", reason="element 3 is 1, expected 2"),
            record(8, None, 3, status="hung", reason="no progress for 60 s", check="skipped"),
        ]
    )

    assert (summary.status, summary.check, summary.reason) == ("hung", "wrong", "no progress for 60 s")
    assert summary.runs == 2
    assert not summary.is_sound


def test_flags_are_the_union_worst_first(record: Any) -> None:
    summary = only([record(run=1, flags=("too_short", "drift")), record(run=2, flags=("two_modes", "from_the_future"))])

    assert summary.flags == ("two_modes", "drift", "too_short", "from_the_future")


def test_partial_records_count_only_where_no_run_has_finished(record: Any) -> None:
    partial = record(8, 9e-6, 2, flags=("partial",), check="skipped")

    assert only([partial]).runs == 1
    both = only([record(8, 1e-6, 1), partial])
    assert (both.runs, both.seconds.median, both.check) == (1, 1e-6, "ok")
    assert "partial" in both.flags


def test_of_several_records_in_one_run_the_last_counts(record: Any) -> None:
    """As a running sweep sees them: a visit that did not finish the point, then the one that did."""
    summary = only([record(8, 9e-6, flags=("partial",)), record(8, 1e-6), record(8, 5e-6, flags=("partial",))])

    assert (summary.runs, summary.seconds.median, summary.flags) == (1, 1e-6, ())


def test_paths_that_were_proven_in_different_runs_are_all_named(record: Any) -> None:
    assert only([record(run=1, proven_path="tcp"), record(run=2, proven_path="rdma")]).proven_path == "rdma, tcp"
    assert only([record()]).proven_path is None


def test_curves_hold_points_that_differ_in_bytes_only_in_ascending_order(record: Any) -> None:
    mixed = [record(64), record(8), record(8, mode="pipe")]

    sync, pipe = curves(points(mixed))

    assert [point.point.bytes for point in sync.points] == [8, 64]
    assert (sync.key.mode, sync.key.bytes, pipe.key.mode) == ("sync", 0, "pipe")
