from __future__ import annotations

from typing import Any

import pytest

from commbench.cli import run


def test_show_prints_a_table_and_the_fit_of_each_curve(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    both = records_of(name="a.jsonl"), records_of(name="b.jsonl", mode="pipe")

    assert run(["show", *map(str, both)]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if line.startswith("mode")] == [
        "mode sync · cache hot · in place · path auto · not proven",
        "mode pipe · cache hot · in place · path auto · not proven",
    ]
    assert out.count("alpha   5.00 us") == 2
    assert out.count("\n\n") == 1  # one empty line between the two


def test_show_averages_files_of_one_setting_as_runs(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(["show", str(records_of(name="a.jsonl", runs=2)), str(records_of(name="b.jsonl"))])

    assert "95 % interval over 3 runs" in " ".join(capsys.readouterr().out.split())


def test_show_says_what_is_odd_and_still_exits_0(
    records_of: Any, record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = records_of([record(8), record(16, check="wrong", status="failed", reason="rank 2: element 0")], status=None)

    assert run(["show", str(path)]) == 0

    out = capsys.readouterr().out
    assert "bad     wrong answer at 16: rank 2: element 0" in out
    assert "run 1 has not ended" in out


def test_show_as_markdown_is_a_table(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(records_of()), "--markdown"]) == 0
    assert "| size | count |" in capsys.readouterr().out


def test_two_formats_at_once_are_refused(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(records_of()), "--markdown", "--json"]) == 2
    assert "exclude each other" in capsys.readouterr().err
