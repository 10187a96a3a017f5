"""`commbench sweep` as a user runs it: own launches on every back end, files, formats, appending and resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import (
    HERE,
    SMALL,
    SMALL_SIZES,
    Bench,
    a_bench,
    lines_of,
    needs_mpich,
    needs_torch,
    of_kind,
    records_of,
)

pytestmark = pytest.mark.launch

EMULATED = ("--op", "allreduce", "--backend", "emulated", "--ranks", "2", *SMALL)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


@pytest.mark.parametrize(
    "backend",
    [pytest.param("mpi", marks=needs_mpich), pytest.param("gloo", marks=needs_torch), "emulated"],
)
def test_a_sweep_writes_every_size_and_shows_the_table(bench: Bench, tmp_path: Path, backend: str) -> None:
    done = bench.sweep("--op", "allreduce", "--backend", backend, "--ranks", "2", *SMALL, "--output", "one.jsonl")
    assert done.code == 0, done.err
    kinds = [line["kind"] for line in lines_of(tmp_path / "one.jsonl")]
    assert (kinds[0], kinds[-1]) == ("run", "end")
    assert kinds.count("trace") == len(SMALL_SIZES)
    records = records_of(tmp_path / "one.jsonl")
    assert sorted(record["bytes"] for record in records) == SMALL_SIZES
    assert all(record["status"] == "ok" and record["check"] == "ok" for record in records)
    assert all(record["seconds"]["median"] > 0 and "partial" not in record["flags"] for record in records)
    [end] = of_kind(tmp_path / "one.jsonl", "end")
    assert (end["status"], end["exit_code"]) == ("complete", 0)
    assert done.out.startswith("allreduce sum · float32 · 2 ranks on ")
    assert "\x1b" not in done.out + done.err


def test_the_fit_of_an_emulated_sweep_is_the_truth_it_was_given(bench: Bench) -> None:
    spec = "alpha=7us,bandwidth=4GB/s,noise=3%"
    options = ("--op", "allgather", "--backend", "emulated", "--ranks", "2", "--emulate", spec, "--total-budget", "3s")
    done = bench.sweep(*options, "--no-plot", "--json", limit=120)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert set(document) == {"file", "show", "fit"}
    assert set(document["show"]) >= {"records", "points", "findings"}
    [curve] = document["fit"]["curves"]
    assert curve["alpha_seconds"]["value"] == pytest.approx(7e-6, rel=0.02)
    assert curve["bandwidth_bytes_per_second"]["value"] == pytest.approx(4e9, rel=0.02)
    for name, truth in (("alpha_seconds", 7e-6), ("bandwidth_bytes_per_second", 4e9)):
        assert curve[name]["low"] <= truth <= curve[name]["high"]
    assert curve["runs"] == 3
    [file] = (bench.folder / "results").glob("*-allgather-emulated-auto-2r.jsonl")
    assert document["file"] == f"results/{file.name}"


def test_one_seed_gives_one_result_and_another_seed_another(bench: Bench, tmp_path: Path) -> None:
    medians = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        file = f"{name}.jsonl"
        assert bench.sweep(*EMULATED, "--emulate", "noise=5%", "--seed", seed, "-n", "50", "--output", file).code == 0
        medians.append({r["bytes"]: r["seconds"]["median"] for r in records_of(tmp_path / file)})
    assert medians[0] == medians[1]
    assert medians[0] != medians[2]


def test_iters_takes_exactly_so_many_samples(bench: Bench, tmp_path: Path) -> None:
    assert bench.sweep(*EMULATED, "-n", "77", "--output", "n.jsonl").code == 0
    records = records_of(tmp_path / "n.jsonl")
    assert {(record["samples"], record["stop"]) for record in records} == {(77, "iterations")}


POINT = ["op", "in_place", "dtype", "redop", "root", "bytes", "ranks", "backend", "device", "path", "mode", "cache"]
MEASURED = ["seconds", "algbw_bytes_per_second", "busbw_bytes_per_second"]
RECORD = [*POINT, "run", *MEASURED, "samples", "proven_path", "status", "statistic", "check", "flags"]
ESTIMATES = ["alpha_seconds", "bandwidth_bytes_per_second", "bus_bandwidth_bytes_per_second", "n_half_bytes"]


def test_the_json_document_has_the_keys_that_others_rely_on(bench: Bench) -> None:
    """design.md section 6: base units, one document, nothing else on stdout."""
    done = bench.sweep(*EMULATED, "--json", "--output", "j.jsonl")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert list(document) == ["file", "show", "fit"]
    assert document["file"] == "j.jsonl"
    assert list(document["show"]) == ["records", "points", "findings"]
    [record, *_], [point, *_] = document["show"]["records"], document["show"]["points"]
    assert sorted(record) == sorted(RECORD)
    assert set(record["seconds"]) == {"median", "low", "high", "p5", "p95", "min", "max"}
    assert set(point) >= {*POINT, "runs", "interval", *MEASURED}
    assert (point["runs"], point["interval"]) == (1, "within_run")
    [curve] = document["fit"]["curves"]
    keys = [key for key in POINT if key != "bytes"]
    assert set(curve) == {*keys, "points", "runs", *ESTIMATES, "segments", "quality", "largest_residual", "notes"}
    assert set(curve["segments"][0]) == {"from_bytes", "to_bytes", "alpha_seconds", "bandwidth_bytes_per_second"}
    assert set(curve["alpha_seconds"]) == {"value", "low", "high"}
    assert curve["alpha_seconds"]["value"] == pytest.approx(5e-6, rel=1e-3)


def test_progress_goes_to_stderr_and_only_data_to_stdout(bench: Bench) -> None:
    done = bench.sweep("--op", "allreduce,all-gather", *EMULATED[2:], "--output", "two.jsonl")
    assert done.code == 0, done.err
    first, *progress = done.err.splitlines()
    assert first == "emulated on host memory (--backend): 2 ranks, 10 points x 1 run, at most 0.2 s of measuring"
    assert progress[0] == "run 1 of 1: 10 points, 2 ranks"
    assert [line.split()[0] for line in done.out.splitlines() if " · float32 · " in line] == ["allreduce", "allgather"]
    assert done.out.splitlines()[-1] == "files   two.jsonl"
    assert not any(line.startswith(("run 1", "now:", "emulated on")) for line in done.out.splitlines())


@needs_mpich
def test_what_only_some_operations_have_is_measured_and_named(bench: Bench, tmp_path: Path) -> None:
    options = ("--imbalance", "1.25", "--bidirectional", "--mode", "pipe", "--ranks", "2", "--output", "v.jsonl")
    done = bench.sweep("--op", "alltoallv,p2p,reduce_scatter", "--backend", "mpi", "-d", "int32", *SMALL, *options)
    assert done.code == 0, done.err
    records = records_of(tmp_path / "v.jsonl")
    assert {(r["op"], r.get("variant"), r["redop"], r["dtype"]) for r in records} == {
        ("alltoallv", "imbalance=1.25", None, "int32"),
        ("p2p", "pair=0,1;bidirectional", None, "int32"),
        ("reduce_scatter", None, "sum", "int32"),
    }
    assert {(r["mode"], r["check"]) for r in records} == {("pipe", "ok")}
    assert "alltoallv imbalance 1.25" in done.out


@needs_mpich
def test_modes_forms_and_caches_are_curves_of_their_own(bench: Bench, tmp_path: Path) -> None:
    options = ("--mode", "sync,pipe", "--in-place", "both", "--cache", "rotated", "--ranks", "2")
    done = bench.sweep("--op", "allreduce", "--backend", "mpi", *SMALL, *options, "--output", "m.jsonl")
    assert done.code == 0, done.err
    curves = {(r["mode"], r["in_place"], r["cache"]) for r in records_of(tmp_path / "m.jsonl")}
    assert curves == {(mode, form, "rotated") for mode in ("sync", "pipe") for form in (False, True)}


def test_all_operations_run_on_the_emulated_back_end(bench: Bench, tmp_path: Path) -> None:
    assert bench.sweep("--op", "all", *EMULATED[2:], "--bidirectional", "--output", "all.jsonl").code == 0
    records = records_of(tmp_path / "all.jsonl")
    assert len({record["op"] for record in records}) == 11
    variants = {record["op"]: record.get("variant") for record in records}
    assert variants["alltoallv"] == "imbalance=1.5"
    assert variants["p2p"] == "pair=0,1;bidirectional"
    assert variants["allreduce"] is None


def test_a_plot_lies_beside_the_results(bench: Bench, tmp_path: Path) -> None:
    options = [option for option in EMULATED if option != "--no-plot"]
    assert bench.sweep(*options, "--output", "results/x.jsonl").code == 0
    assert (tmp_path / "plots" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plots" / "x.svg").read_text().startswith("<?xml")


def test_append_numbers_the_runs_on(bench: Bench, tmp_path: Path) -> None:
    for _ in range(2):
        done = bench.sweep(*EMULATED, "--append", "all.jsonl")
        assert done.code == 0
    assert [line["run"] for line in of_kind(tmp_path / "all.jsonl", "run")] == [1, 2]
    assert "run 2 of 2: " in done.err
    shown = bench.run(HERE.commbench, "show", "all.jsonl", "--json")
    assert {point["runs"] for point in json.loads(shown.out)["points"]} == {2}


def test_an_existing_file_is_refused_before_anything_is_measured(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "there.jsonl").write_text("precious\n")
    done = bench.sweep(*EMULATED, "--output", "there.jsonl")
    assert done.code == 1
    assert done.error == "there.jsonl: exists already"
    assert "--force" in done.hint
    assert (tmp_path / "there.jsonl").read_text() == "precious\n"
    assert bench.sweep(*EMULATED, "--output", "there.jsonl", "--force").code == 0


def test_resume_measures_what_is_missing_and_nothing_else(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    assert bench.sweep(*EMULATED, "--runs", "2", "--output", file.name).code == 0
    whole = file.read_text().splitlines(keepends=True)
    # As a kill would leave it: the second run after two finished sizes, in the middle of a line.
    second = [number for number, line in enumerate(whole) if '"kind":"run"' in line][1]
    finished = [n for n, line in enumerate(whole) if n > second and '"kind":"trace"' in line][1]
    file.write_text("".join(whole[: finished + 1]) + whole[finished + 1][:40])
    kept = {(r["run"], r["bytes"]) for r in records_of(file) if "partial" not in r["flags"]}
    done = bench.sweep("--resume", file.name, "--no-plot")
    assert done.code == 0, done.err
    records = records_of(file)
    assert sorted((r["run"], r["bytes"]) for r in records) == [(run, size) for run in (1, 2) for size in SMALL_SIZES]
    again = {(r["run"], r["bytes"]) for r in records if "resumed" in r["flags"]}
    assert again == {(run, size) for run in (1, 2) for size in SMALL_SIZES} - kept
    before = file.read_text()
    assert bench.sweep("--resume", file.name, "--no-plot").code == 0
    assert file.read_text() == before


def test_resume_refuses_another_question_and_another_machine(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    assert bench.sweep(*EMULATED, "--ranks", "2", "--output", file.name).code == 0
    before = file.read_text()
    for options in (("--dtype", "float64"), ("--emulate", "alpha=9us"), ("--ranks", "3"), ("--op", "reduce")):
        done = bench.sweep("--resume", file.name, *options)
        assert done.code == 2
        assert options[0].removeprefix("--") in done.error
        assert done.out == ""
        assert file.read_text() == before
    head, *rest = before.splitlines()
    run = json.loads(head)
    run["key"]["cpu_model"] = "Z80"
    lines = [json.dumps(run), *[line for line in rest if '"bytes":32768' not in line]]
    file.write_text(elsewhere := "\n".join(lines) + "\n")
    done = bench.sweep("--resume", file.name, "--no-plot")
    assert done.code == 2
    assert "cpu_model = 'Z80'" in done.error
    assert done.out == ""
    assert file.read_text() == elsewhere


@needs_mpich
def test_one_rank_is_allowed_and_warned_about_but_not_fitted(bench: Bench) -> None:
    done = bench.sweep("--op", "allreduce", "--backend", "mpi", "--ranks", "1", *SMALL)
    assert done.code == 0, done.err
    assert "nothing travels" in done.err
    assert "fit     none" in done.out


def test_quick_is_one_run(bench: Bench, tmp_path: Path) -> None:
    done = bench.sweep(
        "--op", "allreduce", "--backend", "emulated", "--quick", "-n", "20", "-e", "64", "--output", "q.jsonl"
    )
    assert done.code == 0, done.err
    assert [line["run"] for line in of_kind(tmp_path / "q.jsonl", "run")] == [1]


def test_a_slow_rank_is_named_with_its_share(bench: Bench, tmp_path: Path) -> None:
    options = ("--ranks", "3", "--emulate", "slow_rank=2:1.5", "--output", "s.jsonl")
    assert bench.sweep(*EMULATED, *options).code == 0
    for record in records_of(tmp_path / "s.jsonl"):
        assert record["slowest"] == [2, 1.0]
        assert "one_rank_last" in record["flags"]
        truth = 5e-6 + record["bytes"] / 10e9
        assert math.isclose(record["seconds"]["median"], 1.5 * truth, rel_tol=1e-9)
