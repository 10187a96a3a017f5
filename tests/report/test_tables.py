from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commbench.analyze.datasets import Dataset, datasets
from commbench.analyze.finding import BROKEN, ODD, Finding
from commbench.analyze.fit import fit_curve
from commbench.analyze.setting import Setting
from commbench.analyze.summary import points
from commbench.report.tables import (
    COLUMNS,
    curve_table,
    curve_view,
    dataset_views,
    finding_lines,
    fit_lines,
    fits_view,
    interval_words,
    plain_row,
    row_cells,
)
from commbench.results import load
from commbench.spec import Point

GOLDEN = Path(__file__).parent.parent / "golden"

# T = 10 us + D / 1.024 GB/s: a further us for every KiB, n_1/2 = 10K.
SIZES = [1 << i for i in range(3, 24)]


def text_of(view: Any, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_a_row_holds_size_count_time_interval_rates_p95_and_check(record: Any) -> None:
    """1 MiB in 1048.576 us is 1 GB/s, 1.5 on the bus; the interval of ±10 % and p95 at 1.2 are the factory's."""
    [point] = points([record(1 << 20, 1048.576e-6)])

    assert dict(zip(COLUMNS, row_cells(point), strict=True)) == {
        "size": "1M",
        "count": "262144",
        "time(us)": "1049",
        "±%": "10",
        "algbw": "1.00",
        "busbw": "1.50",
        "p95": "1258",
        "check": "ok",
    }


def test_a_point_that_was_not_measured_yet_has_a_size_and_a_count(record: Any) -> None:
    point: Point = record(64).point

    assert row_cells(point) == ("64", "16", "", "", "", "", "", "")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "ok"),
        ({"check": "skipped"}, "-"),
        ({"check": "wrong", "status": "failed"}, "WRONG"),
        ({"check": "skipped", "status": "hung", "seconds": None}, "hung"),
        ({"flags": ("drift",)}, "ok *"),
    ],
)
def test_the_last_column_is_the_verdict_on_the_row(record: Any, changes: dict[str, Any], verdict: str) -> None:
    [point] = points([record(**changes)])

    assert row_cells(point)[-1] == verdict


def test_a_point_without_a_time_shows_dashes(record: Any) -> None:
    [point] = points([record(8, None, status="failed", check="skipped")])

    assert row_cells(point) == ("8", "2", "-", "-", "-", "-", "-", "failed")


def test_plain_rows_line_up_under_their_names_and_fit_80_columns(record: Any) -> None:
    [point] = points([record(1 << 30, 0.123456, flags=("drift",))])

    names, row = plain_row(), plain_row(row_cells(point))

    assert [names.index(name) + len(name) for name in ("size", "busbw")] == [
        row.index(cell) + len(cell) for cell in ("1G", "13.0")
    ]
    assert max(len(names), len(row)) < 80


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_of_a_curve_is_the_golden_one(curve_of: Any, width: int) -> None:
    """Times are 10 us + 1 us a KiB exactly, so alpha, B and n_1/2 are 10 us, 1.024 GB/s and 10K."""
    curve = curve_of(alpha=1e-5, bandwidth=1.024e9, sizes=SIZES, proven_path="shm")
    placed = type(curve)(curve.key, curve.points, Setting("MPICH 5.0.1", ("node1",), "2 x AMD EPYC 9354"))

    assert text_of(curve_view(placed), width) == (GOLDEN / f"curve-{width}.txt").read_text()


def test_a_table_in_a_pipe_has_no_escape_codes_and_no_line_beyond_80(curve_of: Any) -> None:
    text = text_of(curve_view(curve_of(runs=3, noise=0.03, flags=("drift", "unstable"))))

    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_rows_measured_and_rows_to_come_stand_in_one_table(record: Any) -> None:
    rows = [*points([record(8)]), record(16).point]

    lines = text_of(curve_table(rows)).splitlines()

    assert [line.split()[0] for line in lines[2:]] == ["8", "16"]


def test_fit_lines_give_values_with_intervals(curve_of: Any) -> None:
    lines = fit_lines(fit_curve(curve_of(alpha=1e-5, bandwidth=1.024e9, sizes=SIZES)))

    assert lines[:5] == [
        "alpha   10.0 us [10.0 us, 10.0 us]",
        "B       1.02 GB/s [1.02 GB/s, 1.02 GB/s], bus 1.54 GB/s",
        "n_1/2   10.0K [10.0K, 10.0K]",
        "rate    half of B from 10.0K on, 90 % of B from 90.0K on",
        "fit     good, 21 sizes, intervals 95 % within one run",
    ]


def switched(record: Any) -> list[Any]:
    """5 us + D/5 GB/s below 256 KiB, 20 us + D/10 GB/s from there."""
    sizes = [8 << i for i in range(31)]
    return [record(s, 5e-6 + s / 5e9 if s < 1 << 18 else 20e-6 + s / 1e10) for s in sizes]


def test_segments_are_listed_and_counted(curve_of: Any, record: Any) -> None:
    """Half of 10 GB/s is reached by the switch itself, 90 % at 9 x 20 us x 10 GB/s = 1.8 MB; alpha above is 20 us."""
    lines = fit_lines(fit_curve(curve_of(switched(record))))

    assert lines[3:6] == [
        "rate    half of B from 256K on, 90 % of B from 1.72M on",
        "lines   8 to 128K: alpha 5.00 us ±0.0%, B 5.00 GB/s ±0.0%",
        "        256K to 8G: alpha <= 20.0 us, B 10.0 GB/s ±0.0%",
    ]
    assert lines[6].startswith("fit     good, 2 segments, 31 sizes")


def test_a_table_of_fits_names_the_switches_and_lists_the_lines_below(curve_of: Any, record: Any) -> None:
    fits = [fit_curve(curve_of(switched(record))), fit_curve(curve_of(mode="pipe"))]

    lines = text_of(fits_view(fits)).splitlines()

    [row] = [line for line in lines if line.startswith("mode sync ")]
    assert row.split() == ["mode", "sync", "5.000", "±0.0%", "10.0", "±0.0%", "15.0", "48.8K", "256K", "good"]
    assert "mode sync: 8 to 128K: alpha 5.00 us ±0.0%, B 5.00 GB/s ±0.0%" in lines
    assert max(map(len, lines)) <= 80


def test_a_share_of_b_that_only_a_longer_sweep_would_reach_is_marked(curve_of: Any) -> None:
    """The sweep ends at 256K, 9 n_1/2 is 439K."""
    lines = fit_lines(fit_curve(curve_of(sizes=[8 << i for i in range(16)])))

    assert "rate    half of B from 48.8K on, 90 % of B from 439K on (beyond the sweep)" in lines


def test_of_a_file_that_says_little_no_more_is_shown(curve_of: Any) -> None:
    unknown = dict.fromkeys(("op", "dtype", "backend", "device", "path", "mode", "cache"), "unknown")
    curve = curve_of(**unknown, redop=None, ranks=0, in_place=False, sizes=[8, 16])
    placed = type(curve)(curve.key, curve.points, Setting(source="old/times.csv"))

    lines = text_of(curve_view(placed)).splitlines()

    assert lines[:2] == ["unknown operation", "old/times.csv"]
    assert lines[4].split()[:2] == ["8", "-"]  # no count without a data type
    assert "fit     none: unknown operation: a fit needs 4 sizes, there are 2" in lines
    assert not any("out of place" in line or "not proven" in line for line in lines)


def test_what_is_not_identified_is_shown_with_its_bound(curve_of: Any) -> None:
    lines = fit_lines(fit_curve(curve_of(sizes=[1 << i for i in range(20, 30)], noise=0.02)))

    assert lines[0].startswith("alpha   not identified, <= ")


def test_a_curve_that_cannot_be_fitted_says_why(curve_of: Any) -> None:
    text = text_of(curve_view(curve_of(sizes=[8, 16])))

    assert "fit     none: allreduce: a fit needs 4 sizes, there are 2" in text


@pytest.mark.parametrize(
    ("runs", "words"),
    [([], "within one run"), ([1, 1], "within one run"), ([3, 3], "over 3 runs"), ([1, 3], "over 1 to 3 runs")],
)
def test_the_interval_is_named(runs: list[int], words: str) -> None:
    assert interval_words(runs) == words


def finding(record: Any, number: int = 0, **changes: Any) -> Finding:
    usual: dict[str, Any] = {"kind": "dip", "sizes": (16,), "text": f"text {number}", "severity": ODD, "pointed": True}
    return Finding(key=record().point.curve, **usual | changes)


def test_at_most_five_findings_are_printed_and_the_others_counted(record: Any) -> None:
    found = [finding(record, number) for number in range(7)]

    assert finding_lines(found[:5]) == [f"odd     text {number}" for number in range(5)]
    assert finding_lines(found) == [*(f"odd     text {number}" for number in range(5)), "        and 2 more in --json"]
    assert finding_lines([]) == []


def test_what_is_broken_is_labelled_so(record: Any) -> None:
    assert finding_lines([finding(record, severity=BROKEN, text="hung at 8")]) == ["bad     hung at 8"]


def test_the_text_of_a_finding_is_wrapped_under_itself(curve_of: Any, record: Any) -> None:
    lines = text_of(curve_view(curve_of(), [finding(record, text="word " * 30)])).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("        word")


def test_rows_of_sizes_that_a_finding_points_at_are_marked(curve_of: Any, record: Any) -> None:
    found = [finding(record), finding(record, kind="step", sizes=(32, 64), pointed=False)]

    lines = text_of(curve_view(curve_of(sizes=[8, 16, 32, 64]), found)).splitlines()

    assert [line.split()[0] for line in lines if line.endswith("ok *")] == ["16"]
    assert "*: odd, see below" in " ".join(lines)


def test_several_fits_stand_in_one_table_under_what_tells_them_apart(curve_of: Any) -> None:
    fits = [
        fit_curve(curve_of(alpha=alpha, bandwidth=1.024e9, mode=mode))
        for alpha, mode in ((1e-5, "sync"), (5e-6, "pipe"))
    ]

    lines = text_of(fits_view(fits)).splitlines()

    assert lines[0].startswith("allreduce · sum · float32 · 4 ranks · mpi")
    rows = [line.split() for line in lines if line.startswith(("mode sync ", "mode pipe "))]
    assert [(row[1], row[2]) for row in rows] == [("sync", "10.00"), ("pipe", "5.000")]


def test_hostile_text_in_a_results_file_reaches_no_terminal(records_of: Any) -> None:
    evil = "\x1b[2J[bold]\r\nnode\u202e"
    path = records_of(
        backend=evil,
        path=evil,
        proven_path=evil,
        flags=(evil,),
        header={
            "nodes": [{"hostname": evil, "cpu_model": evil}],
            "libraries": {evil: evil},
            "environment": {evil: evil},
        },
        status=evil,
    )

    found = datasets([load(path)])
    text = "".join(map(text_of, dataset_views(found)))

    assert "[bold]" in text  # shown, not obeyed
    assert not set(text) & {"\x1b", "\r", "\u202e"}


def test_a_dataset_without_records_shows_what_its_launch_says() -> None:
    [view] = dataset_views([Dataset(Setting(), ("a",), (), ("run 1 failed: no route to host",))])

    assert text_of(view) == "run 1 failed: no route to host\n"
