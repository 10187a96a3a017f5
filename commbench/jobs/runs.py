"""The parent of a sweep: one launch per run, lines into the results file, views informed, faults judged."""

from __future__ import annotations

import shlex
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from commbench.backends import about
from commbench.errors import CommbenchError, MeasurementError, ResultsError, StoppedError, UsageError
from commbench.job import Job
from commbench.jobs.launch import KEPT, Launch, command_lines
from commbench.jobs.probe import Mpi
from commbench.jobs.resume import Progress, is_finished
from commbench.measure.lines import end_line
from commbench.measure.liveness import Fault
from commbench.records import Record
from commbench.results import Writer
from commbench.spec import Point, Sweep
from commbench.units import format_size

_FILED = ("run", "record", "trace", "end")
_SKIP = ", --on-hang skip goes on without that point"


class View(Protocol):
    """What a sweep tells while it runs: a terminal's live table, a log's plain lines, or nothing."""

    def run(self, header: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def now(self, line: Mapping[str, Any]) -> None: ...

    def record(self, record: Record) -> None: ...


@dataclass(slots=True)
class Desk:
    """Where rank 0's lines arrive: filed, shown, and counted.

    Attributes:
        finished: (point, run) that need no further launch.
        problems: reasons of failed, hung and wrong points.
        launch: the last one that began in the file.
        open: it is not closed there.
    """

    writer: Writer
    view: View
    finished: set[tuple[Point, int]] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    hung: set[Point] = field(default_factory=set)
    ranks: int = 0
    launch: str = ""
    open: bool = False

    def take(self, line: Mapping[str, Any]) -> None:
        """One line of rank 0."""
        kind = line.get("kind")
        # The end of a launch that never began is not filed: nothing was measured, and no file should say so.
        if kind in _FILED and (kind != "end" or self.open):
            self.writer.write(line)
        if kind in ("run", "end"):
            self.open = kind == "run"
        if kind == "run":
            self.ranks, self.launch = int(line["ranks"]), str(line["launch"])
            self.view.run(line)
        elif kind == "record":
            record = Record.from_json(line)
            if is_finished(record):
                self.finished.add((record.point, record.run))
            if record.status == "hung":
                self.hung.add(record.point)
            if record.status != "ok":
                self.problems.append(f"{record.point.op} at {format_size(record.point.bytes)}: {record.reason}")
            self.view.record(record)
        elif kind == "note":
            self.view.note(str(line["text"]))
        elif kind == "now":
            self.view.now(line)

    def raise_problems(self) -> None:
        """End a sweep that went through but had points that failed.

        Raises:
            MeasurementError: naming the first.
        """
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise MeasurementError(self.problems[0] + more, "the records are kept; `commbench show` lists them")


@dataclass(frozen=True, slots=True)
class Parent:
    """How this command starts its launches; `first_run` numbers the runs on when a file has some already."""

    sweep: Sweep
    command: tuple[str, ...]
    launcher: str | None = None
    mpi: Mpi | None = None
    first_run: int = 1
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def measure(self, desk: Desk, progress: Progress | None = None) -> None:
        """All runs of the sweep, or those parts of them that `progress` says are missing.

        Raises:
            MeasurementError, LaunchError: a launch could not be completed; what it had finished is filed.
            StoppedError: Ctrl-C or SIGTERM; likewise.
        """
        if progress is not None:
            desk.finished |= progress.finished
        with sigterm_stops():
            for run in range(self.first_run, self.first_run + self.sweep.runs):
                self._one_run(desk, run, progress)
        desk.raise_problems()

    def _one_run(self, desk: Desk, run: int, progress: Progress | None) -> None:
        launches = progress.launches.get(run, 0) if progress else 0
        key = progress.key if progress else {}
        left = self.sweep.total_budget / self.sweep.runs
        only = self._missing(desk, run, progress.key["ranks"]) if launches and progress else None
        while only is None or only:
            launches += 1
            job = Job(
                sweep=self.sweep,
                run=run,
                seconds=left,
                session=self.session,
                launch=uuid.uuid4().hex[:12],
                launches=launches,
                only=None if only is None else tuple(only),
                expect=key,
                command=self.command,
            )
            began, hung_before = time.monotonic(), len(desk.hung)
            end = self._launch(job, desk)
            fault, reason = end["fault"], end["reason"]
            kept = KEPT if desk.launch == job.launch else ""
            if not fault:
                return
            if fault == "stopped":
                raise StoppedError(reason, kept, exit_code=end["exit_code"])
            if end["exit_code"] == UsageError.exit_code:
                raise UsageError(reason)
            if fault != "hung" or self.sweep.on_hang == "stop" or len(desk.hung) == hung_before:
                raise MeasurementError(reason, kept + (_SKIP if fault == "hung" else ""))
            # Fresh processes for what is left: a communicator that hung once cannot be trusted.
            left = max(left - (time.monotonic() - began), 1.0)
            only = [point for point in self._missing(desk, run, desk.ranks) if point not in desk.hung]

    def _missing(self, desk: Desk, run: int, ranks: int) -> list[Point]:
        points, _ = self.sweep.points(ranks, about(self.sweep.backend).capabilities)
        return [point for point in points if (point, run) not in desk.finished]

    def _launch(self, job: Job, desk: Desk) -> Mapping[str, Any]:
        commands = command_lines(job, launcher=self.launcher, mpi=self.mpi)
        with Launch(job, commands) as launch:
            try:
                end = launch.run(desk.take)
            except KeyboardInterrupt as interrupt:
                stopped = StoppedError("stopped by Ctrl-C", KEPT)
                close_launch(job, desk, stopped)
                raise stopped from interrupt
            except CommbenchError as error:
                close_launch(job, desk, error)
                raise
            desk.take(end)
            return end


def close_launch(job: Job, desk: Desk, error: CommbenchError) -> None:
    """File how a launch ended that could not say so itself."""
    if isinstance(error, ResultsError):
        return
    stopped = isinstance(error, StoppedError)
    code = error.stop_code if isinstance(error, StoppedError) else error.exit_code
    desk.take(end_line(job, Fault("stopped" if stopped else "failed", error.message, code)))


@contextmanager
def sigterm_stops() -> Iterator[None]:
    """SIGTERM (Slurm's time limit, a container's stop) ends the command as Ctrl-C does, with exit code 1."""

    def stop(_number: int, _frame: object) -> NoReturn:
        raise StoppedError("stopped by SIGTERM", KEPT, exit_code=1)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def this_command() -> tuple[str, ...]:
    """The user's command line, as it would be typed again."""
    return ("commbench", *sys.argv[1:])


def as_typed(command: tuple[str, ...]) -> str:
    return shlex.join(command)
