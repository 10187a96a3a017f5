from __future__ import annotations

import json
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
