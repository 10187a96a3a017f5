"""Ranks that die, hang or lie: the run ends, by name, with what was finished on disk and nothing left running."""

from __future__ import annotations

import os
import signal
import socket
import time
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
    Started,
    a_bench,
    free_port,
    needs_mpich,
    needs_openmpi,
    needs_torch,
    of_kind,
    records_of,
    wait_until,
)

pytestmark = pytest.mark.launch

# The walk is ascending: 8, 64 and 512 are visited before the fault at 4096.
EMULATED = ("--op", "allreduce", "--backend", "emulated", "--ranks", "2", *SMALL, "--output", "f.jsonl")
LONG = ("--op", "allreduce", "--no-plot", "--runs", "1", "--total-budget", "60s", "-e", "64K", "-f", "8")


def pids(file: Path, started: Started) -> list[int]:
    """The ranks' process numbers, when they have begun to measure."""
    assert wait_until(lambda: of_kind(file, "record"), 30), started.err
    [run] = of_kind(file, "run")
    return [rank["pid"] for rank in run["placement"]]


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


@pytest.mark.parametrize(
    ("at", "backend", "victim"),
    [
        pytest.param(HERE, "mpi", 1, marks=needs_mpich, id="MPICH"),
        pytest.param(OPENMPI, "mpi", 1, marks=needs_openmpi, id="Open MPI"),
        pytest.param(HERE, "mpi", 0, marks=needs_mpich, id="MPICH, rank 0"),
        pytest.param(HERE, "gloo", 1, marks=needs_torch, id="Gloo"),
    ],
)
def test_a_rank_that_is_killed_in_the_middle_of_a_collective_is_named(
    bench: Bench, tmp_path: Path, at: Environment, backend: str, victim: int
) -> None:
    """MPI's survivors spin for ever, Gloo's complain about a connection: the one to name is the one that died."""
    started = bench.start(at.commbench, "sweep", *LONG, "--backend", backend, "--ranks", "2", "--output", "f.jsonl")
    pid = pids(tmp_path / "f.jsonl", started)[victim]
    os.kill(pid, signal.SIGKILL)
    done = started.wait(20)
    assert done.code == 1
    assert (f"rank 1 on {socket.gethostname()} (pid {pid}) died while rank 0 was " if victim else "rank 0 is gone") in (
        done.error
    )
    assert " allreduce " in done.error
    assert done.hint.startswith("finished records are kept; --resume")
    assert bench.left() == []
    assert bench.shared_memory() == set()
    [end] = of_kind(tmp_path / "f.jsonl", "end")
    assert (end["status"], end["exit_code"]) == ("failed", 1)
    assert "allreduce sum · float32" in done.out


@needs_mpich
def test_a_stopped_rank_does_not_keep_its_launcher_waiting(bench: Bench, tmp_path: Path) -> None:
    """Mpiexec waits for all of its processes, and a stopped one does not notice that the others have gone."""
    started = bench.start(
        *HERE.launcher("mpiexec", 2, HERE.commbench, "sweep", *LONG, "--timeout", "3s", "--output", "f.jsonl")
    )
    os.kill(pids(tmp_path / "f.jsonl", started)[1], signal.SIGSTOP)
    done = started.wait(30)
    assert done.code != 0
    assert "rank 1: silent for" in done.error
    [end] = of_kind(tmp_path / "f.jsonl", "end")
    assert (end["status"], end["fault"]) == ("failed", "hung")


@needs_mpich
def test_a_stopped_mpi_rank_is_told_apart_from_a_busy_one(bench: Bench, tmp_path: Path) -> None:
    started = bench.start(
        HERE.commbench, "sweep", *LONG, "--backend", "mpi", "--ranks", "2", "--timeout", "3s", "--output", "f.jsonl"
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
    if number == signal.SIGTERM:
        return
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


def test_ranks_do_not_outlive_a_killed_parent_even_when_they_hang(bench: Bench, tmp_path: Path) -> None:
    """Nothing they say reaches anybody: what they print fails, and that must not stop them from ending."""
    started = bench.start(HERE.commbench, "sweep", *EMULATED, "--emulate", "hang=1@8", "--timeout", "60s")
    assert wait_until(lambda: of_kind(tmp_path / "f.jsonl", "run"), 30), started.err
    started.signal(signal.SIGKILL)
    started.wait(10)
    assert bench.left(patience=8) == []


def test_a_second_ctrl_c_does_not_stop_the_tidying_up(bench: Bench, tmp_path: Path) -> None:
    started = bench.start(HERE.commbench, "sweep", *LONG, "--backend", "emulated", "--output", "f.jsonl")
    pids(tmp_path / "f.jsonl", started)
    for _ in range(5):
        started.signal(signal.SIGINT)
        time.sleep(0.05)
    done = started.wait(20)
    assert done.code in (130, -signal.SIGINT)
    assert "Traceback" not in done.err
    assert bench.left() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_sweep_that_is_stopped_before_its_ranks_have_come_leaves_no_file(
    bench: Bench, tmp_path: Path, number: int, code: int
) -> None:
    started = bench.start(HERE.commbench, "sweep", *EMULATED, "--launcher", "sh -c 'sleep 60' --")
    assert wait_until(lambda: "on host memory" in started.err, 30), started.err
    time.sleep(0.5)
    started.signal(number)
    done = started.wait(20)
    assert done.code == code
    assert done.error.startswith("stopped by ")
    assert not (tmp_path / "f.jsonl").exists()


def test_a_launcher_that_starts_nothing_of_ours_is_given_up_after_the_init_timeout(
    bench: Bench, tmp_path: Path
) -> None:
    done = bench.sweep(*EMULATED, "--launcher", "sh -c 'sleep 60' --", "--init-timeout", "1s")
    assert done.code == 1
    assert done.error == "rank 0 has been silent for 6 s; it was starting"
    assert done.hint == "raise --init-timeout"
    assert not (tmp_path / "f.jsonl").exists()


@needs_mpich
@pytest.mark.parametrize(
    ("whom", "number", "name", "code"), [("rank 0", 15, "SIGTERM", 1), ("mpiexec", 2, "SIGINT", 130)]
)
def test_a_signal_to_somebody_elses_launch_closes_the_file(
    bench: Bench, tmp_path: Path, whom: str, number: int, name: str, code: int
) -> None:
    started = bench.start(*HERE.launcher("mpiexec", 2, HERE.commbench, "sweep", *LONG, "--output", "f.jsonl"))
    rank_0 = pids(tmp_path / "f.jsonl", started)[0]
    os.kill(rank_0 if whom == "rank 0" else started.process.pid, number)
    done = started.wait(20)
    assert done.code != 0  # 9 when Hydra is quicker than the other rank
    assert done.error.startswith(f"stopped by {name} while ")
    [end] = of_kind(tmp_path / "f.jsonl", "end")
    assert (end["status"], end["exit_code"]) == ("interrupted", code)


@needs_mpich
def test_a_rank_that_waits_in_mpi_init_for_one_that_never_comes_can_be_stopped(bench: Bench) -> None:
    """mpi4py holds the interpreter lock there: neither a handler in Python nor the watchdog would run."""
    started = bench.start(*HERE.launcher("mpiexec", 1, HERE.commbench, "sweep", *LONG), ":", "-n", "1", "sleep", "60")
    assert wait_until(lambda: "on host memory" in started.err, 30), started.err
    time.sleep(1.5)
    started.signal(signal.SIGTERM)
    assert started.wait(15).code != 0


# A file system that is full, without one: writes fail beyond so many bytes.
FULL = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
os.execv(sys.argv[1], sys.argv[1:])
"""
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost"}


def test_a_full_disk_is_one_line_and_what_was_written_is_shown(bench: Bench, tmp_path: Path) -> None:
    done = bench.run(HERE.python, "-c", FULL, HERE.commbench, "sweep", *EMULATED)
    assert done.code == 1
    assert done.error == "f.jsonl: cannot be written: File too large"
    assert done.hint == "what was written before is kept"
    assert "Traceback" not in done.err
    assert (tmp_path / "f.jsonl").stat().st_size == 16384
    assert done.out.startswith("allreduce sum · float32")


def test_a_full_disk_ends_somebody_elses_launch_in_one_line_too(bench: Bench) -> None:
    step = STEP | {"MASTER_PORT": str(free_port())}
    ranks = [
        bench.start(
            *(HERE.python, "-c", FULL, HERE.commbench, "sweep", *EMULATED),
            environment=step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]
    done, other = [rank.wait(30) for rank in ranks]
    assert (done.code, other.code) == (1, 1)
    assert done.error.startswith("f.jsonl: cannot be written: File too large")
    assert "Traceback" not in done.err + other.err


LATE = """
import sys, time
from commbench.measure import control
meet = control.SocketControl.barrier
def barrier(self):
    meet(self)
    time.sleep(1.0 if self.world.rank == 1 else 0.0)
control.SocketControl.barrier = barrier
sys.argv[0] = "commbench"
from commbench.cli import main
main()
"""


def test_a_rank_that_leaves_late_has_not_lost_rank_0(bench: Bench) -> None:
    """Rank 0 may be gone before another rank has left the last barrier; its launcher must not see a failure."""
    step = STEP | {"MASTER_PORT": str(free_port())}
    ranks = [
        bench.start(
            *(HERE.python, "-c", LATE, "sweep", *EMULATED),
            environment=step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]
    outcomes = [rank.wait(30) for rank in ranks]
    assert [(one.code, "gone" in one.err) for one in outcomes] == [(0, False), (0, False)]
