"""A sweep of a process that somebody's launcher started: one launch, this process is one of its ranks."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from commbench.backends.base import World
from commbench.errors import CommbenchError, UsageError
from commbench.job import Job
from commbench.jobs.runs import Desk, as_typed
from commbench.measure.engine import run_rank
from commbench.results import dump_line
from commbench.spec import Sweep

_PREFIXES = {"mpi": "mpirun -n {size}", "slurm": "srun -n {size}"}


def measure_as_rank(
    sweep: Sweep,
    world: World,
    desk: Desk | None,
    *,
    run: int,
    command: tuple[str, ...],
    complain: Callable[[str], None],
) -> int:
    """Be this rank until the launch is over; returns the exit code.

    Args:
        sweep: settled for this launcher.
        world: this rank.
        desk: on rank 0 where the lines go, None elsewhere.
        run: the number of this run in its file.
        command: for the record.
        complain: called on rank 0, perhaps from another thread, with why the launch ends at once.
    """
    identity = uuid.uuid4().hex[:12]
    job = Job(sweep=sweep, run=run, seconds=sweep.total_budget, session=identity, launch=identity, command=command)
    lock = threading.Lock()

    def emit(line: Mapping[str, Any]) -> None:
        assert desk is not None
        # What a parent would read from a pipe, so that both ways are one.
        line = json.loads(dump_line(line))
        if line.get("kind") != "end" or not line["fault"]:
            with lock:
                desk.take(line)
            return
        with lock, suppress(CommbenchError):  # the file may be what went wrong
            desk.take(line)
        desk.writer.close()  # the process ends at once, and a file without a line must not stay
        complain(line["reason"])

    return run_rank(job, world, emit if desk is not None else _nobody)


def leave_launch(sweep: Sweep, world: World) -> None:
    """Rank 0 cannot measure: meet the other ranks only to tell them, for they would wait for it in MPI_Init."""
    job = Job(sweep=sweep, run=1, seconds=0.0, session="", launch="")
    run_rank(job, world, _nobody, refused=True)


def refuse_many_launches(sweep: Sweep, world: World, command: tuple[str, ...]) -> None:
    """A rank can take part in one launch; several need a parent.

    Raises:
        UsageError: with the command that works.
    """
    if sweep.runs == 1:
        return
    prefix = _PREFIXES.get(world.launcher, "").format(size=world.size)
    again = as_typed(command) + (f" --launcher '{prefix}'" if prefix else "")
    raise UsageError(
        f"--runs {sweep.runs}: this process is one rank of a launch, it cannot start others",
        f"start it once and let it launch: {again}",
    )


def _nobody(_line: Mapping[str, Any]) -> None:
    pass
