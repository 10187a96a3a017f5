from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commbench.cli import run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_plot_writes_both_formats_under_plots_and_prints_their_names(
    records_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(records_of(name="h200.jsonl"))

    for _ in range(2):  # again over its own files
        assert run(["plot", path]) == 0
        assert capsys.readouterr().out.split() == ["plots/h200.png", "plots/h200.svg"]
    assert Path("plots/h200.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "written"),
    [
        (["--format", "svg"], ["plots/results.svg"]),
        (["--output", "a/b.svg"], ["a/b.svg"]),
        (["--output", "b.PNG", "--format", "png"], ["b.png"]),
        (["--output", "nccl-2.27"], ["nccl-2.27.png", "nccl-2.27.svg"]),
    ],
)
def test_the_ending_or_the_option_chooses_the_format(
    records_of: Any, capsys: pytest.CaptureFixture[str], options: list[str], written: list[str]
) -> None:
    assert run(["plot", str(records_of()), *options]) == 0
    assert capsys.readouterr().out.split() == written
    assert all(Path(name).exists() for name in written)


def test_ending_and_option_that_disagree_are_refused(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", str(records_of()), "--output", "x.png", "--format", "svg"]) == 2
    assert "--format says svg" in capsys.readouterr().err


def test_json_names_the_files_and_is_no_contract(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", str(records_of()), "--format", "svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"contract": False, "files": ["plots/results.svg"]}


def test_markdown_is_an_image(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plot", str(records_of()), "--format", "svg", "--markdown"]) == 0
    assert capsys.readouterr().out == "![results](<plots/results.svg>)\n"


def test_nothing_to_draw_exits_4(records_of: Any, record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = records_of([record(8, None, status="failed", reason="x", check="skipped")])

    assert run(["plot", str(path)]) == 4
    assert not Path("plots").exists()
