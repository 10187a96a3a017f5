"""One rank of somebody's launcher: what it refuses, and what its lines become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commbench.backends.base import World
from commbench.errors import UsageError
from commbench.job import Job
from commbench.jobs import as_rank
from commbench.jobs.as_rank import measure_as_rank, refuse_many_launches
from commbench.jobs.runs import Desk
from commbench.measure.lines import end_line
from commbench.measure.liveness import Fault
from commbench.results import Writer, load
from commbench.spec import Sweep

COMMAND = ("commbench", "sweep", "--op", "allreduce", "--runs", "3")


def sweep_of(runs: int) -> Sweep:
    return Sweep(ops=("allreduce",), backend="emulated", ranks=4, runs=runs, total_budget=7.0)


@pytest.mark.parametrize(
    ("launcher", "again"),
    [
        ("mpi", "commbench sweep --op allreduce --runs 3 --launcher 'mpirun -n 16'"),
        ("slurm", "commbench sweep --op allreduce --runs 3 --launcher 'srun -n 16'"),
        ("torchrun", "commbench sweep --op allreduce --runs 3"),
    ],
)
def test_a_rank_cannot_start_several_launches_and_says_which_command_can(launcher: str, again: str) -> None:
    with pytest.raises(UsageError, match=r"^--runs 3: this process is one rank of a launch") as caught:
        refuse_many_launches(sweep_of(3), World(0, 16, 0, 8, launcher), COMMAND)
    assert caught.value.hint == f"start it once and let it launch: {again}"


def test_words_that_a_shell_would_split_are_quoted() -> None:
    with pytest.raises(UsageError) as caught:
        refuse_many_launches(sweep_of(2), World(0, 2, 0, 2, "torchrun"), ("commbench", "sweep", "--output", "a b"))
    assert caught.value.hint.endswith("commbench sweep --output 'a b'")


def test_one_launch_is_what_a_rank_is_for() -> None:
    refuse_many_launches(sweep_of(1), World(0, 16, 0, 8, "mpi"), COMMAND)


class Silent:
    """A view that shows nothing."""

    def run(self, header: Any) -> None: ...
    def note(self, text: str) -> None: ...
    def now(self, line: Any) -> None: ...
    def record(self, record: Any) -> None: ...


Emit = Callable[[Any], None]


def test_the_lines_of_rank_0_are_filed_and_a_fault_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def run_rank(job: Job, world: World, emit: Emit) -> int:
        jobs.append(job)
        emit({"kind": "run", "schema": 1, "run": job.run, "launch": job.launch, "ranks": 4, "points": 1})
        emit(end_line(job, Fault("died", "rank 2 died")))
        return 1

    monkeypatch.setattr(as_rank, "run_rank", run_rank)
    complaints: list[str] = []
    writer = Writer(tmp_path / "x.jsonl")
    code = measure_as_rank(
        sweep_of(1),
        World(0, 4, 0, 4, "mpi"),
        Desk(writer, Silent()),
        run=3,
        command=COMMAND,
        complain=complaints.append,
    )
    writer.close()

    results = load(writer.path)
    assert (code, complaints) == (1, ["rank 2 died"])
    assert ([run["run"] for run in results.runs], [end["status"] for end in results.ends]) == ([3], ["failed"])
    [job] = jobs
    assert (job.run, job.seconds, job.command, job.launch) == (3, 7.0, COMMAND, job.session)


def test_a_launch_that_went_well_is_not_complained_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_rank(job: Job, world: World, emit: Emit) -> int:
        emit(end_line(job, None, "1 of 3 points failed"))
        return 1

    monkeypatch.setattr(as_rank, "run_rank", run_rank)
    complaints: list[str] = []
    writer = Writer(tmp_path / "x.jsonl")
    desk = Desk(writer, Silent())
    measure_as_rank(sweep_of(1), World(0, 4, 0, 4, "mpi"), desk, run=1, command=(), complain=complaints.append)
    writer.close()

    assert complaints == []  # the desk tells of points that failed


def test_the_other_ranks_have_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_rank(job: Job, world: World, emit: Emit) -> int:
        emit({"kind": "now"})
        return 0

    monkeypatch.setattr(as_rank, "run_rank", run_rank)
    world = World(1, 4, 1, 4, "mpi")

    assert measure_as_rank(sweep_of(1), world, None, run=1, command=(), complain=pytest.fail) == 0
