"""The time loop around a back end's chunks: warm-up, chunk size, reduction over ranks, who was last.

Every rank runs the same visit; rank 0 decides how it goes on and tells the others, so that all stay in step
whatever their clocks and processors say.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commbench.backends.base import LEAD_IN, LONG_CALL, Backend, Calibration, Call
from commbench.measure.control import Control
from commbench.measure.liveness import Slot
from commbench.spec import COPY_PATHS, Point, Sweep
from commbench.stats import LogHistogram, Samples, Trace
from commbench.units import format_size

_CHUNK_SECONDS = 1e-3
_FEWEST, _MOST = 20, 256
_LONG_LAP = 1e-3
_WARM_SECONDS = 5e-3
_WARM_CALLS = 10
_DEEPEST = 64
_EXPECTED_TIMES = 20
_MOST_DISCARDED = 10
_COOLING_SECONDS = 0.05


@dataclass(slots=True)
class Timed:
    """A point while it is measured. `trace`, `visit`, `histogram`, `states`, `measured` are filled on rank 0 alone.

    Attributes:
        call: the collective with its buffers.
        depth: calls in a sample: back to back in modes "pipe" and "graph", and in "sync" where the clock is too
            coarse for one call; 0 until it is known.
        lap: seconds one sample takes with everything around it, the last estimate.
        typical: seconds of one call alone, the last estimate.
        last: how often this rank alone was the last one.
        measured: seconds spent in recorded chunks.
        visits: how often the sweep came by.
        visit: the samples of the last visit alone.
        discarded: chunks in which a device protected itself, not counted.
        slowed: one was counted all the same, since the device did not recover in time.
        hertz: the device's clock after each chunk, as far as it tells.
    """

    point: Point
    call: Call
    depth: int = 0
    lap: float = 0.0
    typical: float = 0.0
    last: int = 0
    measured: float = 0.0
    visits: int = 0
    visit: Trace = field(default_factory=Trace)
    discarded: int = 0
    slowed: bool = False
    hertz: list[float] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    histogram: LogHistogram = field(default_factory=LogHistogram)
    states: list[dict[str, Any]] = field(default_factory=list)


def label(point: Point) -> str:
    """The point in a message: "allreduce 64K", with the mode where it is not the usual one, and the way of a copy."""
    way = f" {point.path} {point.option('pair')}" if point.path in COPY_PATHS else ""
    return f"{point.op}{way} {format_size(point.bytes)}" + ("" if point.mode == "sync" else f" ({point.mode})")


class TimeLoop:
    """Visits points. One per rank; the same methods are called on all ranks together."""

    def __init__(self, sweep: Sweep, backend: Backend, control: Control, slot: Slot, clock: Calibration) -> None:
        self._sweep, self._backend, self._control, self._slot, self._clock = sweep, backend, control, slot, clock
        self._leads = control.world.rank == 0

    def visit(self, timed: Timed, seconds: float) -> None:
        """Measure `timed` for about `seconds` (or until it has `iters` samples), on every rank.

        Args:
            timed: the point; its numbers grow.
            seconds: decided by rank 0, ignored elsewhere.
        """
        with _quiet_interpreter():
            timed.call.settle()
            timed.visit = Trace()
            self._warm_up(timed, seconds)
            start = self._backend.now()
            size, lead, keep = self._decide(timed, seconds, start, first=True)
            while size:
                self._chunk(timed, size, lead, keep=keep)
                size, lead, keep = self._decide(timed, seconds, start, first=False)
            timed.visits += 1

    def _decide(self, timed: Timed, seconds: float, start: float, *, first: bool) -> tuple[int, int, bool]:
        """(samples of the next chunk, lead-in calls before them, count it whatever happens); no samples: leave.

        Rank 0's word.
        """
        size, keep = 0, False
        if self._leads:
            left = seconds - (self._backend.now() - start)
            size = chunk_size(timed.lap, left, first=first)
            if self._sweep.iters is not None:
                size = min(max(size, _FEWEST), _MOST, self._sweep.iters - timed.trace.count)
            # A device that does not recover is measured as it is, and a visit does not end with nothing.
            keep = timed.discarded >= _MOST_DISCARDED or left < _COOLING_SECONDS + 2 * timed.lap * size
        size, lead, keep = self._control.broadcast([size, LEAD_IN if timed.lap < LONG_CALL else 1, keep])
        return int(size), int(lead), bool(keep)

    def _chunk(self, timed: Timed, size: int, lead: int, *, keep: bool) -> None:
        start = self._backend.now()
        out = self._run(timed, size, lead)
        health = self._backend.health()
        # One more value travels with the times: whether any rank's device was held down.
        slowest, slowed = np.split(self._control.maximum(np.append(out, bool(health.slowed))), [size])
        if health.hertz is not None:
            timed.hertz.append(health.hertz)
        if slowed[0] and not keep:
            timed.discarded += 1
            time.sleep(_COOLING_SECONDS)
            return
        timed.slowed |= bool(slowed[0])
        timed.last += self._times_last(timed, out, slowest)
        if self._leads:
            spent = self._backend.now() - start
            timed.measured += spent
            timed.lap = spent / (size + lead)
            timed.visit.extend(slowest)
            timed.trace.extend(slowest)
            timed.histogram.extend(slowest)

    def _run(self, timed: Timed, size: int, lead: int) -> Samples:
        self._slot.set("timing", label(timed.point), self._allowance(timed, size))
        out = np.empty(size)
        if not timed.depth or timed.point.mode == "sync":
            timed.call.sync(out, lead, timed.depth or 1)
        elif timed.point.mode == "pipe":
            timed.call.pipe(timed.depth, out, lead)
        else:
            timed.call.graph(timed.depth, out, lead)
        self._slot.set("waiting for the others after", label(timed.point), self._allowance(timed, size))
        return out

    def _allowance(self, timed: Timed, size: int) -> float:
        return max(self._sweep.timeout, _EXPECTED_TIMES * timed.lap * size)

    def _warm_up(self, timed: Timed, seconds: float) -> None:
        """Ten calls and 5 ms the first time (or `-w`), fewer of calls that would eat the visit; a lead-in later.

        MPICH changes its algorithm after five collectives on a communicator, and NCCL connects lazily.
        """
        done, spent, calls = 0, 0.0, self._more_warm_up(timed, seconds, 0, 0.0)
        while calls:
            start = self._backend.now()
            timed.typical = float(np.median(self._control.maximum(self._run(timed, calls, 0))))
            spent += self._backend.now() - start
            done += calls
            calls = self._more_warm_up(timed, seconds, done, spent)
        if self._leads and done:
            timed.lap = max(spent / done, timed.lap / 2)
        if not timed.depth:
            wanted = _CHUNK_SECONDS if timed.point.mode != "sync" else self._clock.shortest
            call = timed.lap if timed.point.mode != "sync" else timed.typical
            timed.depth = int(self._control.broadcast(depth_for(wanted, call)))
            timed.lap *= timed.depth

    def _more_warm_up(self, timed: Timed, seconds: float, done: int, spent: float) -> int:
        """Calls of the next warm-up chunk, 0 when warm: rank 0's word."""
        asked = self._sweep.warmup_iters
        if timed.visits:
            calls = LEAD_IN if done == 0 and timed.lap < LONG_CALL else 0
        elif asked is not None:
            calls = min(asked - done, _MOST)
        elif done == 0:
            calls = 1
        else:
            lap = max(spent / done, 1e-9)
            wanted = max(_WARM_CALLS, math.ceil(_WARM_SECONDS / lap))
            calls = min(max(min(wanted, int(seconds / 2 / lap)) - done, 0), _MOST)
        return int(self._control.broadcast(calls))

    def _times_last(self, timed: Timed, own: Samples, slowest: Samples) -> int:
        """In how many samples this rank alone was last, within one clock step; ties count for nobody."""
        world = self._control.world
        if world.size == 1:
            return 0
        late = own >= slowest - self._clock.step / timed.depth
        ends = np.concatenate([late * (world.rank + 1.0), late * float(world.size - world.rank)])
        highest, lowest = np.split(self._control.maximum(ends), 2)
        alone = late & (highest == world.rank + 1) & (lowest == world.size - world.rank)
        return int(alone.sum())


def chunk_size(lap: float, left: float, *, first: bool) -> int:
    """Samples of the next chunk: 1 ms at least and 20 to 256 of them, or what fits; 0 when the visit is over.

    Args:
        lap: seconds a sample takes.
        left: seconds left of the visit.
        first: no chunk yet in this visit; one sample is taken however long it is.
    """
    size = min(max(math.ceil(_CHUNK_SECONDS / max(lap, 1e-9)), _FEWEST), _MOST)
    fits = max(int(left / max(lap, 1e-9)), 0)
    if first:
        return min(size, max(fits, 1))
    # A rest that holds less than the smallest chunk is worth a chunk only where samples are long.
    return size if fits >= size else fits if lap > _LONG_LAP else 0


def depth_for(seconds: float, call: float) -> int:
    """Calls in one sample, 1 to 64, so that it lasts `seconds`; `call` is what one takes."""
    return min(max(math.ceil(seconds / max(call, 1e-9)), 1), _DEEPEST)


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """No garbage collection while something is timed."""
    enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
