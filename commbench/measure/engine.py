"""One rank's walk over a sweep: rank 0 leads, the others follow.

Rank 0 decides what comes next, tells the others, and emits the lines of the results file.

The points are walked in passes (each point at least three times), so that a machine that changes state for a
second does not decide one point's fate, and every point has a number early.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from commbench.backends import about, before_meeting, open_backend
from commbench.backends.base import Backend, World
from commbench.backends.buffers import bytes_needed
from commbench.errors import CommbenchError, MeasurementError, ResultsError
from commbench.job import Job
from commbench.measure import machine
from commbench.measure.control import Control, open_control
from commbench.measure.handover import Handover
from commbench.measure.lines import differences, end_line, record_of, refusal_of, run_line
from commbench.measure.liveness import Doing, Fault, Slot, Watchdog
from commbench.measure.timing import Timed, TimeLoop, label
from commbench.records import UNREAD, Check, Record, Status
from commbench.results import trace_line
from commbench.spec import Point
from commbench.stats import MIN_VISITS, is_precise
from commbench.units import format_size

Emit = Callable[[Mapping[str, Any]], None]

_SHORTEST_VISIT = 0.01
_LONGEST_VISIT = 0.3
# A hang of the launch that has the turn is noticed there, after one time-out; one that still starts has its own limit.
_TURNS = 3
# What is emulated on the two sides of a pair must not be the same noise.
_OTHER_SIDE = 500


def run_rank(
    job: Job, world: World, emit: Emit, turn: Callable[[], None] | None = None, *, refused: bool = False
) -> int:
    """Be one rank of `job`: meet the others, measure, return the exit code.

    Args:
        job: the launch.
        world: this rank.
        emit: receives the lines of the results file on rank 0, also from the watchdog's thread.
        turn: on rank 0 of a job that takes turns with another: returns when it is this job's.
        refused: on rank 0, nothing shall be measured: all leave as soon as they have met.
    """
    slot = Slot(Doing("starting", allowance=job.sweep.init_timeout))
    closing = Closing(job, emit)
    watchdog = Watchdog(world, slot, closing.on_fault, closing.on_beat)
    watchdog.start()
    try:
        if not refused:
            before_meeting(job.sweep, world)
        control = _meet(job, world, slot, watchdog)
        # Ranks of somebody's launcher each made up their own; rank 0's counts.
        shared = {"run": job.run, "launch": job.launch, "session": job.session, "refused": refused}
        shared = control.broadcast(shared)
        if shared.pop("refused"):
            control.barrier()
            watchdog.close()
            return CommbenchError.exit_code
        job = closing.job = replace(job, **shared)
        run = job.run + _OTHER_SIDE * (job.side == "b")
        backend = open_backend(job.sweep, control.world, control, run, machine.last_level_cache_bytes() or 0)
        engine = Engine(job, backend, control, slot, closing, turn)
        code = engine.lead() if world.rank == 0 else engine.follow()
    except CommbenchError as error:
        message = error.message + (f" ({error.hint})" if error.hint else "")
        watchdog.fail(message, error.exit_code, perhaps_another=isinstance(error, MeasurementError))
        raise
    except Exception as error:
        watchdog.fail(f"{type(error).__name__}: {error}", perhaps_another=True)
        raise
    watchdog.close()
    backend.close()
    return code


class Closing:
    """What rank 0 still owes the results file when the launch ends before its time."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job, self.emit = job, emit
        self.engine: Engine | None = None

    def on_beat(self, doing: Doing) -> None:
        """Once a second, from the watchdog's thread: what rank 0 is at, and how far."""
        line: dict[str, Any] = {"kind": "now", "phase": doing.phase, "what": doing.what, "allowance": doing.allowance}
        self.emit(line | (self.engine.progress() if self.engine is not None else {}))

    def on_fault(self, fault: Fault) -> None:
        """Called from the watchdog's thread, at any moment, once."""
        if self.engine is not None and self.engine.current is not None and fault.kind != "stopped":
            status: Status = "hung" if fault.kind == "hung" else "failed"
            with suppress(ResultsError):  # the file may be what is at fault
                self.emit(self.engine.record(self.engine.current, status=status, reason=fault.message).to_json())
        self.emit(end_line(self.job, fault))


def _meet(job: Job, world: World, slot: Slot, watchdog: Watchdog) -> Control:
    """Open the control plane and the liveness links; every rank then knows its place on its node."""
    sweep = job.sweep
    slot.set("meeting the other ranks", "", sweep.init_timeout)
    kind = about(sweep.backend).control
    token = job.launch if world.launcher == "parent" else "commbench"
    control = open_control(kind, world, sweep.thread_level, sweep.init_timeout, token)
    hosts = control.broadcast(control.gather(socket.gethostname()))
    mine = [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]]
    control.world = World(
        world.rank, world.size, mine.index(world.rank), len(mine), world.launcher, world.address, world.port
    )
    where = watchdog.listen(job.launch, one_host=len(set(hosts)) == 1) if world.rank == 0 else None
    where = control.broadcast(where)
    if world.rank:
        watchdog.join(where)
    slot.set("loading the back end", "", sweep.init_timeout)
    return control


class Engine:
    """Shared by leader and followers: the points, the time loop, the checks."""

    def __init__(
        self,
        job: Job,
        backend: Backend,
        control: Control,
        slot: Slot,
        closing: Closing,
        turn: Callable[[], None] | None = None,
    ) -> None:
        self.job, self.backend, self.control, self.slot, self.emit = job, backend, control, slot, closing.emit
        slot.set("calibrating the clock", "", job.sweep.timeout)
        self._turn = turn if job.visits else None
        self.clock = backend.calibrate()
        self.points, self.notes = self._points()
        self.timed: dict[int, Timed] = {}
        self.current: Timed | None = None
        self.loop = TimeLoop(job.sweep, backend, control, slot, self.clock)
        self.virtual = about(job.sweep.backend).virtual
        on_host = job.sweep.device != "cuda" and not self.virtual
        self.handover = Handover(control, job.launch) if on_host else None
        if on_host or job.sweep.staged:
            self._refuse_what_does_not_fit()
        self.notes += backend.notes
        self.too_large = self._too_large()
        backend.reserve([point for index, point in enumerate(self.points) if index not in self.too_large])
        self._finished = len(self.too_large)
        self._begun = backend.now()
        closing.engine = self

    def _points(self) -> tuple[list[Point], list[str]]:
        sweep = self.job.sweep
        points, notes = sweep.points(self.control.world.size, about(sweep.backend).capabilities, self.job.path)
        return (list(self.job.only), []) if self.job.only is not None else (points, notes)

    def _refuse_what_does_not_fit(self) -> None:
        if not self.points:
            return
        largest = max(self.points, key=bytes_needed)
        need, there = bytes_needed(largest) * self.control.world.local_size, machine.available_memory_bytes()
        if there is not None and need > there:
            raise MeasurementError(
                f"{label(largest)} needs {need >> 20}M of buffers on this node, {there >> 20}M are available",
                f"use a smaller --max-bytes than {format_size(largest.bytes)}",
            )

    def _too_large(self) -> dict[int, str]:
        """Points whose buffers do not fit into some rank's device, with the reason: the same ones on every rank."""
        mine = [self.backend.shortage(point) for point in self.points]
        short = self.control.maximum(np.array([float(bool(reason)) for reason in mine]))
        return {
            index: mine[index] or "does not fit on another rank's device" for index in np.flatnonzero(short).tolist()
        }

    # -- followers -----------------------------------------------------------------------------------------

    def follow(self) -> int:
        """Do what rank 0 says until it says "end"."""
        self._facts()
        while True:
            command = self.control.broadcast()
            match command["do"]:
                case "visit":
                    self._visit(command["point"], 0.0)
                case "check":
                    self._check(command["point"])
                case "finish":
                    self._slowest(command["point"])
                case "rest":
                    self._rest()
                case _:
                    self._leave_together()
                    return int(command["exit_code"])

    # -- leader --------------------------------------------------------------------------------------------

    def lead(self) -> int:
        """Walk all points; returns the exit code of the launch."""
        self.emit(self._run_line())
        for note in self.notes:
            self.emit({"kind": "note", "text": note})
        failed = self._walk()
        self._take_turn()  # to end: that disturbs whoever measures
        code = 1 if failed else 0
        self.control.broadcast({"do": "end", "exit_code": code})
        self._leave_together()
        self.emit(end_line(self.job, None, f"{failed} of {len(self.points)} points failed" if failed else ""))
        return code

    def _walk(self) -> int:
        for index, reason in self.too_large.items():
            self.emit(refusal_of(self.job, self.points[index], reason).to_json())
        active = [index for index in range(len(self.points)) if index not in self.too_large]
        if self.job.run > 1:
            random.Random(self.job.sweep.seed * 1000 + self.job.run).shuffle(active)  # noqa: S311 - an order
        failed, number = len(self.too_large), 0
        self._begun = self.backend.now()
        deadline = self._begun + self.job.seconds
        while active:
            number += 1
            left_in_pass = len(active)
            for index in list(active):
                seconds = visit_seconds(deadline - self.backend.now(), left_in_pass, number, self.job.sweep.budget)
                left_in_pass -= 1
                if self.job.visits:
                    seconds = even_share(self.job.seconds, self.job.visits * len(self.points))
                self._take_turn()
                problem = self._come_by(index, seconds)
                timed = self.timed[index]
                stop = self._stop(timed, deadline)
                if not problem and not stop:
                    if self._turn is None:  # a pair that is broken off is not compared
                        self.emit(self.record(timed, flags=("partial",)).to_json())
                    continue
                active.remove(index)
                self._finished += 1
                failed += self._close(index, stop, problem)
        return failed

    def _come_by(self, index: int, seconds: float) -> str:
        """One visit; before the first one the answer is checked. Returns what was wrong with it, or ""."""
        if index not in self.timed and self.job.sweep.check:
            self.control.broadcast({"do": "check", "point": index})
            if wrong := self._check(index):
                return wrong
        self.control.broadcast({"do": "visit", "point": index})
        self._visit(index, seconds)
        return ""

    def _stop(self, timed: Timed, deadline: float) -> str:
        """Why this point is finished, "" if it is not."""
        sweep = self.job.sweep
        if sweep.iters is not None:
            return "iterations" if timed.trace.count >= sweep.iters else ""
        if self.job.visits is not None:
            return "visits" if timed.visits >= self.job.visits else ""
        if is_precise(timed.trace, timed.measured, timed.visits, sweep.precision):
            return "precision"
        if timed.measured >= sweep.budget or self.backend.now() >= deadline:
            return "budget"
        return ""

    def _close(self, index: int, stop: str, problem: str) -> int:
        """Check once more and write the record; returns 1 if the point failed."""
        timed = self.timed[index]
        if not problem and self.job.sweep.check:
            self.control.broadcast({"do": "check", "point": index})
            problem = self._check(index)
        self.control.broadcast({"do": "finish", "point": index})
        slowest = self._slowest(index)
        check: Check = "wrong" if problem else "ok" if self.job.sweep.check else "skipped"
        record = self.record(
            timed, status="failed" if problem else "ok", reason=problem, check=check, stop=stop, slowest=slowest
        )
        self.emit(record.to_json())
        if timed.trace.count:
            self.emit(trace_line(timed.point, self.job.run, timed.trace.stride, timed.trace.values))
        self.current = None
        return 1 if problem else 0

    def _take_turn(self) -> None:
        """Where two launches take turns: all ranks lie down until it is this one's."""
        if self._turn is None:
            return
        self.control.broadcast({"do": "rest"})
        self._rest(self._turn)

    # -- on all ranks together -----------------------------------------------------------------------------

    def _leave_together(self) -> None:
        self.slot.set("ending", "", self.job.sweep.timeout)
        self.control.barrier()

    def _rest(self, until: Callable[[], None] | None = None) -> None:
        sweep = self.job.sweep
        self.slot.set("waiting for its turn", "", max(_TURNS * sweep.timeout, sweep.init_timeout))
        if until is not None:
            until()
        self.control.rest()

    def _prepared(self, index: int) -> Timed:
        if index not in self.timed:
            call = self.backend.prepare(self.points[index])
            self.timed[index] = Timed(self.points[index], call, depth=call.batch)
        self.current = self.timed[index]
        return self.current

    def _visit(self, index: int, seconds: float) -> None:
        timed = self._prepared(index)
        before = self._core_state(timed)
        self.loop.visit(timed, seconds)
        after = self._core_state(timed)["state"]
        if timed.visit.count:
            # What this visit came to: where a point meets several states, only visits of one compare.
            now = {"median": float(np.median(timed.visit.values)), "samples": timed.visit.count}
            timed.states.append(before | {"after": after} | now)

    def _core_state(self, timed: Timed) -> dict[str, Any]:
        if self.handover is None or not self.handover.able:
            return {"seconds": None, "state": ""}
        self.slot.set("probing the cores for", label(timed.point), self.job.sweep.timeout)
        return self.handover.probe() or {"seconds": None, "state": UNREAD}

    def _check(self, index: int) -> str:
        """What is wrong with the answer, by the lowest rank that found something; "" if all is right."""
        timed, world = self._prepared(index), self.control.world
        self.slot.set("checking", label(timed.point), max(self.job.sweep.timeout, 20 * timed.lap))
        timed.call.refill()
        timed.call.once()
        mismatch = timed.call.check()
        self.slot.set("waiting for the others after checking", label(timed.point), self.slot.doing.allowance)
        worst = self.control.maximum(np.array([float(world.size - world.rank) if mismatch else 0.0]))[0]
        if not worst:
            return ""
        return str(self.control.broadcast(str(mismatch), root=world.size - int(worst)))

    def _slowest(self, index: int) -> tuple[int, float] | None:
        """(rank that was alone last most often, its share of the samples)."""
        timed, world = self.timed[index], self.control.world
        coded = float(timed.last) * world.size + world.rank
        most = int(self.control.maximum(np.array([coded]))[0])
        if world.size == 1 or timed.point.op == "p2p" or not timed.trace.count:
            return None
        return most % world.size, most // world.size / timed.trace.count

    def _facts(self) -> dict[str, Any]:
        """Everything about ranks and nodes, on rank 0; {} elsewhere."""
        world = self.control.world
        mine = {"host": socket.gethostname(), **machine.process_facts(), **self.backend.place()}
        ranks = self.control.gather(mine)
        nodes = self.control.gather(machine.node_facts() if world.local_rank == 0 else None)
        libraries = self.control.gather(self.backend.libraries())
        if ranks is None or nodes is None or libraries is None:
            return {}
        self.notes += differences(libraries)
        return {"placement": ranks, "nodes": [node for node in nodes if node]}

    # -- lines ---------------------------------------------------------------------------------------------

    def _run_line(self) -> dict[str, Any]:
        facts, libraries, launcher = self._facts(), self.backend.libraries(), self.control.world.launcher
        line = run_line(self.job, facts, libraries, self.clock, len(self.points), launcher)
        return line | {"notes": list(self.notes)}

    def record(self, timed: Timed, **more: Any) -> Record:
        """The record of a point as it stands; `more` as in `lines.record_of`."""
        return record_of(self.job, timed, self.clock, self.control.world.size, **more)

    def progress(self) -> dict[str, Any]:
        """How far the walk is, for whoever watches."""
        timed = self.current
        median = float(np.median(timed.trace.values)) if timed is not None and timed.trace.count else None
        return {
            "point": timed.point.key() if timed is not None else None,
            "median": median,
            "finished": self._finished,
            "points": len(self.points),
            "elapsed": self.backend.now() - self._begun,
            "seconds": self.job.seconds,
        }


def even_share(seconds: float, visits: int) -> float:
    """How long to stay where all visits are known beforehand."""
    return min(max(seconds / visits, _SHORTEST_VISIT), _LONGEST_VISIT)


def visit_seconds(left: float, points_left: int, number: int, budget: float) -> float:
    """How long to stay at the next point.

    The first three passes share out what is left so that all three fit; later ones only come back to points
    that are not precise yet. Every visit takes at least 10 ms, whatever the budget says: a point without a
    number is worth nothing.

    Args:
        left: seconds until the deadline.
        points_left: visits still to make in this pass.
        number: of this pass, from 1.
        budget: seconds that one point may have in all.
    """
    passes_left = max(MIN_VISITS - number, 0)
    share = left / (points_left + passes_left * points_left) if points_left else left
    return min(max(share, _SHORTEST_VISIT), _LONGEST_VISIT, budget / MIN_VISITS)
