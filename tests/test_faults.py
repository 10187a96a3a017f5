"""Ranks that die, hang or lie: the run ends, by name, with what was finished on disk and nothing left running."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import (
    HERE,
    OPENMPI,
    SMALL,
    SMALL_SIZES,
    Bench,
    Environment,
    a_bench,
    needs_mpich,
    needs_openmpi,
    needs_torch,
    of_kind,
    records_of,
    wait_until,
)

pytestmark = pytest.mark.launch

# The walk is ascending: 8, 64 and 512 are visited before the fault at 4096.
EMULATED = ("--op", "allreduce", "--backend", "emulated", *SMALL, "--output", "f.jsonl")
LONG = ("--op", "allreduce", "--no-plot", "--runs", "1", "--total-budget", "60s", "-e", "64K", "-f", "8")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


@pytest.mark.parametrize(
    ("at", "launcher"),
    [
        pytest.param(HERE, None, id="alone"),
        pytest.param(HERE, "mpiexec", marks=needs_mpich, id="MPICH"),
        pytest.param(OPENMPI, "mpirun", marks=needs_openmpi, id="Open MPI"),
        pytest.param(HERE, "torchrun", marks=needs_torch, id="torchrun"),
    ],
)
def test_a_killed_rank_is_named(bench: Bench, tmp_path: Path, at: Environment, launcher: str | None) -> None:
    prefix = at.launcher(launcher, 2) if launcher else []
    done = bench.run(*prefix, at.commbench, "sweep", *EMULATED, "--emulate", "die=1@4K", limit=60)
    assert done.code != 0
    assert "error: rank 1 on " in done.err
    assert "died while rank 0 was waiting for the others after checking allreduce 4K" in done.err
    [end] = of_kind(tmp_path / "f.jsonl", "end")
    assert (end["status"], end["fault"], end["exit_code"]) == ("failed", "died", 1)
    kept = {record["bytes"]: record["status"] for record in records_of(tmp_path / "f.jsonl")}
    assert kept == {8: "ok", 64: "ok", 512: "ok", 4096: "failed"}


def test_the_death_of_rank_0_has_a_witness(bench: Bench) -> None:
    done = bench.sweep(*EMULATED, "--emulate", "die=0@4K")
    assert done.code == 1
    assert "rank 0 is gone while rank 1 was" in done.error
    assert "allreduce 4K" in done.error


def test_a_hang_ends_within_the_timeout_and_says_who_was_where(bench: Bench, tmp_path: Path) -> None:
    done = bench.sweep(*EMULATED, "--emulate", "hang=1@4K", "--timeout", "2s")
    assert done.code == 1
    assert done.error.startswith("no progress for 2 s: ")
    assert "rank 0: waiting for the others after checking allreduce 4K" in done.error
    assert "rank 1: checking allreduce 4K" in done.error
    assert "--on-hang skip" in done.hint
    assert {r["bytes"]: r["status"] for r in records_of(tmp_path / "f.jsonl")}[4096] == "hung"


def test_on_hang_skip_measures_the_rest_with_fresh_processes(bench: Bench, tmp_path: Path) -> None:
    done = bench.sweep(*EMULATED, "--emulate", "hang=1@4K", "--timeout", "2s", "--on-hang", "skip")
    assert done.code == 1
    status = {record["bytes"]: record["status"] for record in records_of(tmp_path / "f.jsonl")}
    assert status == {size: "hung" if size == 4096 else "ok" for size in SMALL_SIZES}
    assert [run["launches"] for run in of_kind(tmp_path / "f.jsonl", "run")] == [1, 2]


def test_a_wrong_answer_fails_the_sweep_and_keeps_the_other_sizes(bench: Bench, tmp_path: Path) -> None:
    done = bench.sweep(*EMULATED, "--emulate", "wrong=1@4K")
    assert done.code == 1
    assert done.error == "allreduce at 4K: rank 1: element 3 is 2, expected 1"
    records = {record["bytes"]: record for record in records_of(tmp_path / "f.jsonl")}
    assert (records[4096]["status"], records[4096]["check"]) == ("failed", "wrong")
    assert all(records[size]["status"] == "ok" for size in SMALL_SIZES if size != 4096)


@needs_mpich
def test_a_stopped_mpi_rank_is_told_apart_from_a_busy_one(bench: Bench, tmp_path: Path) -> None:
    started = bench.start(
        HERE.commbench, "sweep", *LONG, "--backend", "mpi", "--ranks", "2", "--timeout", "4s", "--output", "f.jsonl"
    )
    assert wait_until(lambda: of_kind(tmp_path / "f.jsonl", "record"), 30), started.err
    [run] = of_kind(tmp_path / "f.jsonl", "run")
    os.kill(run["placement"][1]["pid"], signal.SIGSTOP)
    done = started.wait(30)
    assert done.code == 1
    assert "rank 1: silent for" in done.error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_stopped_sweep_keeps_its_records_and_resumes(bench: Bench, tmp_path: Path, number: int, code: int) -> None:
    started = bench.start(HERE.commbench, "sweep", *LONG, "--backend", "emulated", "--output", "f.jsonl")
    assert wait_until(lambda: of_kind(tmp_path / "f.jsonl", "record"), 30), started.err
    started.signal(number)
    done = started.wait(20)
    assert done.code == code
    [end] = of_kind(tmp_path / "f.jsonl", "end")
    assert (end["status"], end["exit_code"]) == ("interrupted", code)
    assert bench.sweep("--resume", "f.jsonl", "--no-plot", "--total-budget", "1s").code == 0
    finished = [r for r in records_of(tmp_path / "f.jsonl") if "partial" not in r["flags"]]
    assert sorted(record["bytes"] for record in finished) == SMALL_SIZES


@needs_mpich
def test_ranks_do_not_outlive_a_killed_parent(bench: Bench, tmp_path: Path) -> None:
    started = bench.start(HERE.commbench, "sweep", *LONG, "--backend", "mpi", "--ranks", "2", "--output", "f.jsonl")
    assert wait_until(lambda: of_kind(tmp_path / "f.jsonl", "record"), 30), started.err
    started.signal(signal.SIGKILL)
    started.wait(10)
    assert bench.left(patience=10) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110 - a device
def test_a_full_disk_is_one_line(bench: Bench) -> None:
    done = bench.sweep(*EMULATED[:-1], "/dev/full", "--force")
    assert done.code == 1
    assert "/dev/full" in done.error
    assert "Traceback" not in done.err
