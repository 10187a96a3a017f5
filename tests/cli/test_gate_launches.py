"""`commbench gate` with real launches: two emulated sides with a known difference, one that is wrong, hangs or dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import HERE, Bench, Outcome, a_bench, of_kind, records_of

pytestmark = pytest.mark.launch

SHORT = (
    "--op",
    "allreduce",
    "--backend",
    "emulated",
    "--ranks",
    "2",
    "-e",
    "16K",
    "-f",
    "2",
    "--total-budget",
    "500ms",
)
TRUTH = "alpha=5us,noise=10%"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


def gate(bench: Bench, a: str, b: str, *options: str, sweep: tuple[str, ...] = SHORT) -> Outcome:
    more = ("--pairs", "4", "--output", "x.jsonl", "--json", *options)
    return bench.run(HERE.commbench, "gate", "--a", a, "--b", b, *more, "--", *sweep, limit=170)


@pytest.mark.parametrize("how", ["visits", "launches"])
def test_the_same_truth_on_both_sides_passes(bench: Bench, tmp_path: Path, how: str) -> None:
    side = f"--emulate {TRUTH}"
    done = gate(bench, side, side, "--alternate", how)
    document = json.loads(done.out)
    [curve] = document["curves"]

    assert (done.code, document["verdict"], curve["pairs"]) == (0, "pass", 4), done.err
    assert abs(curve["level_ratio"]["value"] - 1) < 0.01
    assert curve["level_ratio"]["value"] != 1  # two sides, not one twice
    for name in "ab":
        runs = of_kind(tmp_path / f"x-{name}.jsonl", "run")
        assert [(run["pair"], run["side"]) for run in runs] == [(k, name) for k in (1, 2, 3, 4)]
        assert len(records_of(tmp_path / f"x-{name}.jsonl")) == 4 * 12


def test_a_slower_truth_is_found_and_the_files_say_so_again(bench: Bench) -> None:
    done = gate(bench, f"--emulate {TRUTH}", "--emulate alpha=5.5us,noise=10%")
    again = bench.run(HERE.commbench, "gate", "x-a.jsonl", "x-b.jsonl", "--json")
    document = json.loads(done.out)

    assert (done.code, again.code, document["exit_code"]) == (3, 3, 3), done.err
    assert json.loads(again.out)["curves"] == document["curves"]
    [hit] = [hit for hit in document["curves"][0]["hits"] if hit["family"] == "level"]
    assert hit["ratio"]["value"] == pytest.approx(1.10, abs=0.02)
    assert document["curves"][0]["pairs"] == 8  # a second look


@pytest.mark.parametrize(("fault", "family"), [("wrong", "wrong"), ("hang", "hang"), ("die", "hang")])
def test_a_candidate_that_is_wrong_hangs_or_dies_is_a_regression(bench: Bench, fault: str, family: str) -> None:
    sweep = (*SHORT, "--timeout", "5s")
    done = gate(bench, f"--emulate {TRUTH}", f"--emulate {TRUTH},{fault}=1@64", sweep=sweep)

    assert done.code == 3, done.err
    assert [(hit["family"], hit["where"]) for hit in json.loads(done.out)["curves"][0]["hits"]] == [(family, "64")]


def test_a_baseline_that_is_wrong_is_refused(bench: Bench) -> None:
    done = gate(bench, f"--emulate {TRUTH},wrong=1@64", f"--emulate {TRUTH}")

    assert done.code == 4, done.err
    assert "the baseline is bad" in json.loads(done.out)["curves"][0]["reasons"][0]


def test_a_side_that_cannot_start_could_not_be_measured(bench: Bench) -> None:
    done = gate(bench, f"--emulate {TRUTH}", "/bin/false")

    assert done.code == 1
    assert "side b could not be measured" in done.err
    assert not (bench.folder / "x-b.jsonl").exists()


def test_a_sweep_that_misses_a_limit_exits_3(bench: Bench) -> None:
    sweep = ("--op", "allreduce", "--backend", "emulated", "--ranks", "2", "-e", "1K", "--runs", "1", "--no-plot")
    limits = ("--emulate", "alpha=5us", "--total-budget", "200ms", "--expect", "allreduce@8 time<=4us")
    done = bench.sweep(*sweep, *limits, "--output", "y.jsonl")

    assert done.code == 3, done.err
    assert "worse   allreduce@8 time<=4us: 5.00 us" in done.out
    kept = bench.sweep(*sweep, *limits[:-1], "allreduce@8 time<=6us", "--output", "z.jsonl", "--json")
    assert kept.code == 0
    assert json.loads(kept.out)["gate"]["verdict"] == "pass"
