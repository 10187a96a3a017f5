from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commbench.cli import run

# 5 us + D / 10 GB/s and 15 us + D / 30 GB/s take the same time at 150,000 bytes, 146.5K.
FAST_START = {"alpha": 5e-6, "bandwidth": 1e10, "runs": 3, "noise": 0.01}
FAST_END = {"alpha": 15e-6, "bandwidth": 3e10, "runs": 3, "noise": 0.01, "seed": 2}


@pytest.fixture
def pair(records_of: Any) -> list[str]:
    return [str(records_of(name="shm.jsonl", **FAST_START)), str(records_of(name="p2p.jsonl", **FAST_END))]


def test_two_files_are_put_side_by_side(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert "A  shm · 3 runs\nB  p2p · 3 runs\n" in out
    assert "crossing  shm is faster below, p2p above; equal at about 14" in out
    assert out.rstrip().endswith("Ratios, not a verdict: `commbench gate` judges.")
    assert max(map(len, out.splitlines())) <= 80


def test_before_and_after_of_one_setting_are_two_sides_and_not_further_runs(
    records_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records_of(name="before.jsonl", runs=3)
    after = records_of(name="after.jsonl", runs=3, alpha=1e-5, bandwidth=5e9)

    assert run(["compare", str(before), str(after)]) == 0
    assert "after is 2.000x (2.000 to 2.000) slower than before over the 24 common sizes." in capsys.readouterr().out


def test_folders_are_sides_of_further_runs(records_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, alpha in (("before", 5e-6), ("after", 7e-6)):
        (tmp_path / side).mkdir()
        for number in range(3):
            records_of(name=f"{side}/{number}.jsonl", alpha=alpha, noise=0.01, seed=number)

    assert run(["compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 0

    out = capsys.readouterr().out
    assert "A  before · 3 runs\nB  after · 3 runs\n" in out
    assert "95 % interval over 3 runs each" in out


def test_one_file_is_compared_within_itself(records_of: Any, record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(size, 1e-5, run_, mode=mode) for mode in ("sync", "pipe") for run_ in (1, 2) for size in (8, 16)]

    assert run(["compare", str(records_of(records))]) == 0
    assert "A  mode sync · 2 runs\nB  mode pipe · 2 runs\n" in capsys.readouterr().out


def test_unlike_with_unlike_exits_4_and_across_allows_it(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(records_of(name=f"{mode}.jsonl", mode=mode)) for mode in ("sync", "pipe")]

    assert run(["compare", *files]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: sync and pipe hold nothing alike: mode is sync and pipe",
        "hint: compare them all the same with --across mode",
    ]
    assert run(["compare", *files, "--across", "mode"]) == 0


def test_json_is_one_document(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["contract"] is False
    assert document["comparisons"][0]["pairs"][0]["alpha_ratio"]["value"] == pytest.approx(3, rel=0.05)


def test_markdown_is_a_table(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *pair, "--markdown"]) == 0
    assert "| size | A(us) | B(us) | B/A | low | high |" in capsys.readouterr().out


def test_plot_writes_a_picture_and_names_it(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "x.png"

    assert run(["compare", *pair, "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.endswith(f"{picture}\n")
    assert picture.stat().st_size > 10_000

    assert run(["compare", *pair, "--plot", str(picture), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err == f"{picture}\n"


def test_a_wrong_ending_is_refused_before_anything_is_shown(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *pair, "--plot", "x.pdf"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no .pdf is written" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["shm.jsonl", "shm.jsonl"], 2, "shm.jsonl: named twice"),
        (["shm.jsonl", "./shm.jsonl"], 2, "named twice"),
        (["shm.jsonl", "link.jsonl"], 2, "link.jsonl: named twice"),
        (["shm.jsonl", "nope.jsonl"], 1, "nope.jsonl: No such file or directory"),
        (["shm.jsonl", "empty"], 1, "no results file"),
        (["shm.jsonl", "p2p.jsonl", "--across", "bytes"], 2, "unknown key 'bytes'"),
        (["shm.jsonl", "p2p.jsonl", "--json", "--markdown"], 2, "exclude each other"),
        (["shm.jsonl"], 4, "shm: one curve, and nothing to compare it with"),
        (["shm.jsonl", "none.jsonl"], 4, "none: no record in it"),
        (["shm.jsonl", "zero.jsonl"], 4, "no size in common with a sound time in both"),
        (["shm.jsonl", "nan.jsonl"], 1, "seconds.median is nan"),
        (["shm.jsonl", "alone.jsonl"], 4, "alone: on 1 rank nothing travels"),
        (["shm.jsonl", "p2p.jsonl", "ranks8.jsonl"], 4, "shm and ranks8 hold nothing alike: ranks is 4 and 8"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_no_number(
    pair: list[str],
    records_of: Any,
    record: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    records_of([], name="none.jsonl")
    records_of([record(8, 0.0)], name="zero.jsonl")
    records_of(name="alone.jsonl", ranks=1)
    records_of(name="ranks8.jsonl", ranks=8)
    Path("nan.jsonl").write_text(Path("shm.jsonl").read_text().replace('"median":', '"median":NaN,"x":', 1))
    Path("link.jsonl").symlink_to("shm.jsonl")
    Path("empty").mkdir()

    assert run(["compare", *arguments]) == code

    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("error: ")


def test_files_of_one_name_in_two_folders_are_told_apart_by_path(
    records_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        Path(folder).mkdir()
        records_of(name=f"{folder}/x.jsonl")

    assert run(["compare", "a/x.jsonl", "b/x.jsonl"]) == 0
    assert "A  a/x.jsonl · 1 run\nB  b/x.jsonl · 1 run\n" in capsys.readouterr().out


def test_a_cut_file_is_compared_with_a_warning(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with Path(pair[1]).open("a") as file:
        file.write('{"kind":"rec')

    assert run(["compare", *pair]) == 0
    assert "warning: " in capsys.readouterr().err


@pytest.mark.launch
def test_emulated_sweeps_show_the_ratio_and_the_crossing_that_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, truth, seed in (
        ("a", "alpha=5us,bandwidth=10GB/s,noise=5%", 1),
        ("b", "alpha=15us,bandwidth=30GB/s,noise=5%", 2),
    ):
        sweep = "sweep --op allreduce --backend emulated --ranks 2 --runs 2 -b 1K -e 16M -f 4 -n 500 --no-plot"
        assert run([*sweep.split(), "--emulate", truth, "--seed", str(seed), "--output", f"{name}.jsonl"]) == 0
    capsys.readouterr()

    assert run(["compare", "a.jsonl", "b.jsonl", "--json"]) == 0

    [pair] = json.loads(capsys.readouterr().out)["comparisons"][0]["pairs"]
    # 500 samples of 5 % noise: a median is known to within 0.3 %.
    assert pair["sizes"][0]["ratio"]["value"] == pytest.approx((15 + 1024 / 3e4) / (5 + 1024 / 1e4), rel=0.02)
    assert pair["sizes"][-1]["ratio"]["value"] == pytest.approx(
        (15 + (1 << 24) / 3e4) / (5 + (1 << 24) / 1e4), rel=0.02
    )
    [crossing] = pair["crossings"]
    assert crossing["bytes"]["low"] < 150_000 < crossing["bytes"]["high"]
