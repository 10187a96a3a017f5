from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commbench.cli import run


def test_fit_of_one_curve_is_shown_in_full(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(records_of(runs=3))]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert "alpha   5.00 us [5.00 us, 5.00 us]" in out
    assert "B       10.0 GB/s [10.0 GB/s, 10.0 GB/s], bus 15.0 GB/s" in out
    assert "fit     good, 24 sizes, intervals 95 % over 3 runs" in out


def test_fit_of_several_curves_is_a_table(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(records_of(name=f"{op}.jsonl", op=op)) for op in ("allreduce", "reduce")]

    assert run(["fit", *files]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if "±0.0%" in line] == [["allreduce", "5.000"], ["reduce", "5.000"]]


def test_fit_as_json_and_markdown(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(records_of())

    assert run(["fit", path, "--json"]) == 0
    [curve] = json.loads(capsys.readouterr().out)["curves"]
    assert curve["op"] == "allreduce"
    assert run(["fit", path, "--markdown"]) == 0
    assert "| allreduce | 5.000 ±0.0% |" in capsys.readouterr().out


def test_nothing_to_fit_exits_4(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(records_of(ranks=1))]) == 4

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].startswith("error: allreduce on 1 rank: nothing travels")


def test_a_file_without_records_exits_4(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(records_of([]))]) == 4
    assert "no record" in capsys.readouterr().err


def test_a_curve_that_cannot_be_fitted_is_a_warning_beside_those_that_can(
    records_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(records_of(name="a.jsonl")), str(records_of(name="b.jsonl", sizes=[8, 16], op="reduce"))]

    assert run(["fit", *files]) == 0

    out, err = capsys.readouterr()
    assert "alpha" in out
    assert err == "warning: no fit: reduce: a fit needs 4 sizes, there are 2\n"


def test_a_csv_file_is_fitted_and_its_warnings_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.csv"
    path.write_text("bytes,seconds,node\n" + "".join(f"{8 << i},{5e-6 + (8 << i) / 1e10},a\n" for i in range(24)))

    assert run(["fit", str(path)]) == 0

    out, err = capsys.readouterr()
    assert out.splitlines()[0].rstrip() == "unknown operation"
    assert "alpha   5.00 us [5.00 us, 5.00 us]" in out
    assert err == f"warning: {path}: ignored columns: node; perhaps meant: node for mode\n"


def test_a_csv_file_in_other_units_exits_1_with_the_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.csv"
    path.write_text("bytes,time_us\n8,5\n")

    assert run(["fit", str(path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: {path}: line 1: no column seconds among bytes, time_us",
        "hint: times are in seconds: divide time_us by 1e6 and name the column seconds",
    ]


@pytest.mark.parametrize(("segments", "count"), [("auto", 2), ("1", 1), ("3", 3)])
def test_the_number_of_segments_can_be_chosen(
    records_of: Any, record: Any, segments: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [8 << i for i in range(31)]
    path = records_of([record(s, 5e-6 + s / 5e9 if s < 1 << 18 else 20e-6 + s / 1e10) for s in sizes])

    assert run(["fit", str(path), "--segments", segments, "--json"]) == 0
    [curve] = json.loads(capsys.readouterr().out)["curves"]
    assert len(curve["segments"]) == count


def test_another_number_of_segments_is_a_usage_error(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(records_of()), "--segments", "4"]) == 2
    assert "--segments" in capsys.readouterr().err


def test_too_few_sizes_for_the_segments_asked_for_exit_4(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(records_of(sizes=[8, 16, 32, 64, 128])), "--segments", "2"]) == 4
    assert "2 segments need 4 sizes each, there are 5" in capsys.readouterr().err
