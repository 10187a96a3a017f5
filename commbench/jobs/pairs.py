"""The parent of a gate: pairs of launches, one of each side, in one job; more of them where the first leave doubt."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commbench.analyze.cells import Replicate
from commbench.analyze.gate import Comparison, compare, undecided
from commbench.analyze.gate_rule import MARGIN, more_pairs
from commbench.backends import about
from commbench.errors import CommbenchError, LaunchError, StoppedError, UsageError
from commbench.job import Job
from commbench.jobs.launch import Launch, command_lines
from commbench.jobs.probe import Mpi
from commbench.jobs.runs import Desk, close_launch, sigterm_stops
from commbench.jobs.together import Outcome, run_together
from commbench.results import load
from commbench.spec import Point, Sweep

VISITS = 8
_MEASURED_AGAIN = 2
_JUDGE = "whole pairs are kept: `commbench gate NAME-a.jsonl NAME-b.jsonl` judges them"
_LEAST_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the gate.

    Attributes:
        name: "a" is the baseline, "b" the candidate.
        sweep: settled.
        launcher: the user's prefix that starts the ranks.
        mpi: the MPI whose mpiexec starts them, where there is no such prefix.
        environment: set for its launches alone.
        python: the words that start the interpreter of its ranks.
    """

    name: str
    sweep: Sweep
    launcher: str | None
    mpi: Mpi | None
    environment: Mapping[str, str]
    python: tuple[str, ...]


class Watcher(Protocol):
    """What a gate tells while it runs."""

    def pair(self, number: int, last: int, what: str) -> None:
        """A pair of launches begins."""
        ...

    def done(self, number: int, seconds: float) -> None:
        """It is over."""
        ...

    def say(self, text: str) -> None:
        """How the gate goes on."""
        ...


@dataclass(slots=True)
class Pairs:
    """Measures both sides, pair by pair.

    Attributes:
        sides, desks: baseline and candidate, and where their lines go.
        command: the user's, for the record.
        pairs: of the first look.
        seconds: of measuring, in one launch of all points.
        turns: two launches at once that alternate visit by visit; else one launch after the other.
        margin: the slowdown that a pass rules out.
        broken: a launch failed after it had begun, or a point did: what is there is judged as it is.
    """

    sides: Sequence[Side]
    desks: Sequence[Desk]
    command: tuple[str, ...]
    watcher: Watcher
    pairs: int
    seconds: float
    turns: bool
    margin: float = MARGIN
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    broken: bool = False

    def measure(self) -> frozenset[Point]:
        """All pairs, as many as it takes; returns the curves that the first look settled.

        Raises:
            LaunchError: a side could not be started.
            UsageError: a rank refused the question.
            StoppedError: Ctrl-C or SIGTERM.
        """
        with sigterm_stops():
            self._measure(range(1, self.pairs + 1), None)
            found = [] if self.broken else self._compared()
            unsettled = [one.key for one in found if undecided(one, self.margin)]
            if unsettled:
                self._second_look(unsettled, len(found))
        return frozenset(one.key for one in found) - set(unsettled)

    def _second_look(self, curves: Sequence[Point], of: int) -> None:
        last = self.pairs + more_pairs(self.pairs, of)
        which = f"{len(curves)} of {of} curves" if of > 1 else "the first pairs leave doubt"
        self.watcher.say(f"{which}{' are undecided' if of > 1 else ''}: {last - self.pairs} more pairs")
        points = [point for point in self._points() if point.curve in curves]
        self._measure(range(self.pairs + 1, last + 1), points)

    def _measure(self, numbers: range, only: Sequence[Point] | None) -> None:
        for number in numbers:
            self._pair(number, numbers[-1], only)
            if self.broken:
                return
        for again in range(_MEASURED_AGAIN):
            lacking = self._lacking(numbers)
            for (_, number), points in lacking.items():
                self._pair(number, numbers[-1], points, launches=2 + again)
                if self.broken:
                    return
            if not lacking:
                return

    def _lacking(self, numbers: range) -> dict[Replicate, list[Point]]:
        """Cells whose sides met different states of the cores."""
        found: dict[Replicate, list[Point]] = {}
        for one in self._compared():
            for at, points in one.unmatched().items():
                if at[1] in numbers:
                    found.setdefault(at, []).extend(points)
        return found

    def _compared(self) -> list[Comparison]:
        baseline, candidate = (load(desk.writer.path) for desk in self.desks)
        return compare(baseline, candidate)

    def _points(self) -> list[Point]:
        sweep = self.sides[0].sweep
        return sweep.points(self.desks[0].ranks, about(sweep.backend).capabilities)[0]

    def _pair(self, number: int, last: int, only: Sequence[Point] | None, launches: int = 1) -> None:
        begun = time.monotonic()
        what = "" if only is None else f"{len(only)} points"
        self.watcher.pair(number, last, f"{what} again" if launches > 1 else what)
        share = 1.0 if only is None else len(only) / max(len(self._points()), 1)
        jobs = [
            Job(
                sweep=side.sweep,
                run=number,
                seconds=max(self.seconds * share, _LEAST_SECONDS),
                session=self.session,
                launch=uuid.uuid4().hex[:12],
                launches=launches,
                environment=dict(side.environment),
                only=None if only is None else tuple(only),
                command=self.command,
                pair=number,
                side=side.name,
                visits=VISITS if self.turns else None,
            )
            for side in self.sides
        ]
        # Whoever comes second finds caches and page tables as the first left them.
        order = [0, 1]
        random.Random(f"{self.sides[0].sweep.seed} {number} {launches}").shuffle(order)  # noqa: S311 - an order
        together = self._together if self.turns else self._after_each_other
        for index, outcome in together(jobs, order).items():
            self._conclude(index, jobs[index], outcome)
        self.watcher.done(number, time.monotonic() - begun)

    def _together(self, jobs: Sequence[Job], order: Sequence[int]) -> dict[int, Outcome]:
        with contextlib.ExitStack() as stack, self._stopped_by_the_user(jobs):
            launches = [stack.enter_context(self._launch(index, jobs[index])) for index in (0, 1)]
            return run_together(launches, [desk.take for desk in self.desks], order[0])

    def _after_each_other(self, jobs: Sequence[Job], order: Sequence[int]) -> dict[int, Outcome]:
        ends: dict[int, Outcome] = {}
        with self._stopped_by_the_user(jobs):
            for index in order:
                with self._launch(index, jobs[index]) as launch:
                    try:
                        ends[index] = launch.run(self.desks[index].take)
                    except LaunchError as error:
                        ends[index] = error
                if self.desks[index].launch != jobs[index].launch:
                    break  # it never began: there is no pair
        return ends

    def _launch(self, index: int, job: Job) -> Launch:
        side = self.sides[index]
        return Launch(job, command_lines(job, launcher=side.launcher, mpi=side.mpi, python=side.python))

    @contextlib.contextmanager
    def _stopped_by_the_user(self, jobs: Sequence[Job]) -> Iterator[None]:
        try:
            yield
        except (KeyboardInterrupt, CommbenchError) as error:
            why: CommbenchError = StoppedError("stopped by Ctrl-C", _JUDGE)
            if isinstance(error, CommbenchError):
                why = error
            if isinstance(error, StoppedError):
                why = StoppedError(error.message, _JUDGE, exit_code=error.stop_code)
            for job, desk in zip(jobs, self.desks, strict=True):
                if desk.open:
                    close_launch(job, desk, why)
            raise why from error

    def _conclude(self, index: int, job: Job, outcome: Outcome) -> None:
        """File how a launch ended, and see whether that ends the gate."""
        side, desk = self.sides[index], self.desks[index]
        if isinstance(outcome, CommbenchError):
            close_launch(job, desk, outcome)
            fault, reason, code, hint = "failed", outcome.message, outcome.exit_code, outcome.hint
        else:
            desk.take(outcome)
            fault, reason, code, hint = str(outcome["fault"]), str(outcome["reason"]), int(outcome["exit_code"]), ""
        if fault == "stopped":
            raise StoppedError(reason, _JUDGE, exit_code=code)
        if fault and code == UsageError.exit_code:
            raise UsageError(f"side {side.name}: {reason}")
        if fault and desk.launch != job.launch:
            raise LaunchError(f"side {side.name} could not be measured: {reason}", hint)
        self.broken = self.broken or bool(fault) or bool(desk.problems)
