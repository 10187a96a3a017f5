"""The contract between the time loop and the libraries that move data.

A back end knows its library and nothing of sizes to come, budgets or files. It hands out one `Call` per
point. The protocol is per chunk, not per call: the loop inside a chunk differs between libraries (compiled,
plain Python, CUDA events), everything around it does not and is written once in `measure.timing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from commbench.spec import Point
from commbench.stats import Samples

LEAD_IN = 3
"""Unrecorded calls at the start of a chunk: the control plane ran in between and cooled what it touched."""

LONG_CALL = 0.01
"""Seconds from which one lead-in call is enough: nothing stays cold that long."""


@dataclass(frozen=True, slots=True)
class World:
    """Who this process is among all ranks.

    Attributes:
        rank, size: in the whole job.
        local_rank, local_size: on this node.
        launcher: what started it: "alone", "parent", "torchrun", "mpi", "slurm".
        address, port: where rank 0 can be met, "" and 0 when the launcher's own library knows.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str
    address: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first wrong element of a rank's output; `index` counts elements of its receive buffer.

    `where` names what received it when that is no rank: "GPU 1".
    """

    rank: int
    index: int
    expected: float
    got: float
    where: str = ""

    def __str__(self) -> str:
        got, expected = f"{self.got:g}", f"{self.expected:g}"
        if got == expected:  # a wrong last bit
            got, expected = repr(self.got), repr(self.expected)
        return f"{self.where or f'rank {self.rank}'}: element {self.index} is {got}, expected {expected}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the timed loop itself costs. Stored beside the results, never subtracted from them.

    Attributes:
        clock: the clock's name.
        step: seconds, its smallest positive step.
        overhead: seconds, the shortest time between two readings.
        call_overhead: seconds, the same call on a communicator of one rank, None where there is no such thing.
        shortest: seconds that a sample should last at least; mode "sync" batches calls that are shorter.
    """

    clock: str
    step: float
    overhead: float
    call_overhead: float | None = None
    shortest: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """How a device was while it worked.

    Attributes:
        slowed: what its own protection did to it ("thermal slowdown"), "" when nothing.
        hertz: its clock, None when it has none to tell.
    """

    slowed: str = ""
    hertz: float | None = None


class Call(Protocol):
    """One collective at one point, with its buffers."""

    batch: int
    """Calls in one sample where this call itself decides, 0 where the time loop does."""

    @property
    def how(self) -> Mapping[str, Any]:
        """What the loop does, for the record: {"loop": "compiled", "slices": 1}."""
        ...

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:
        """Time `len(out)` calls one by one, each after ranks were aligned; seconds into `out`.

        `lead` more calls come first and are not recorded. A rank that takes no part leaves zeros. Where the clock
        is too coarse for one call (a GPU's events), a sample is the mean of `batch` calls.
        """
        ...

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        """Time `len(out)` batches of `depth` calls back to back, ranks aligned before each; seconds per call."""
        ...

    def graph(self, depth: int, out: Samples, lead: int) -> None:
        """As `pipe`, the calls of a batch captured into one CUDA graph. Only where `Capabilities.modes` has it."""
        ...

    def refill(self) -> None:
        """Fill inputs with what `truth` says and poison the outputs of the buffers that `once` uses next."""
        ...

    def once(self) -> None:
        """One call, not timed."""
        ...

    def check(self) -> Mismatch | None:
        """Compare the outputs of the `once` after `refill` with the exact answer."""
        ...

    def settle(self) -> None:
        """Fill all buffers with a fixed point of the operation, so that repeating it in place changes nothing."""
        ...


class Backend(Protocol):
    """A library, initialised, with a communicator of all ranks."""

    notes: Sequence[str]
    """What the user should know about this library here, on rank 0."""

    def shortage(self, point: Point) -> str:
        """Why `point` cannot be tried: its buffers do not fit into this rank's device. "" when it can.

        What fits into the host's memory is not asked here.
        """
        ...

    def reserve(self, points: Sequence[Point]) -> None:
        """Allocate buffers that hold any of `points`, once: all calls share them, and their addresses stay."""
        ...

    def prepare(self, point: Point) -> Call:
        """Bind the collective to the buffers. `point` is one of those that `reserve` was given.

        Raises:
            UnavailableError: this library cannot do it after all.
        """
        ...

    def libraries(self) -> dict[str, str]:
        """Name -> version or file of everything that can change a number."""
        ...

    def place(self) -> dict[str, Any]:
        """Facts about this rank alone: its GPU. Empty on hosts."""
        ...

    def health(self) -> Health:
        """How this rank's device is now, asked after each chunk."""
        ...

    def calibrate(self) -> Calibration: ...

    def now(self) -> float:
        """Seconds on the clock that budgets are counted on (virtual where durations are)."""
        ...

    def close(self) -> None: ...


class Exchange(Protocol):
    """What a back end may ask of the control plane while it connects: never over the link under test."""

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """`value` of rank `root` on every rank."""
        ...

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value, by rank, on rank 0; None elsewhere."""
        ...


class HostBackend:
    """What back ends on host memory have in common: the host's clock, and nothing to tell of a device."""

    notes: Sequence[str] = ()

    def shortage(self, point: Point) -> str:  # noqa: ARG002 - host memory is the engine's to know
        return ""

    def place(self) -> dict[str, Any]:
        return {}

    def health(self) -> Health:
        return Health()

    def now(self) -> float:
        return time.perf_counter()


def host_loop(
    out: Samples,
    lead: int,
    depth: int,
    scale: float,
    align: Callable[[], None] | None,
    body: Callable[[int], None],
    tail: Callable[[], None] | None,
    position: int,
) -> int:
    """The time loop in plain Python, for libraries without C functions that can be called by address.

    `body(position)` starts one call on the next slice, `tail()` completes a batch; `scale` turns the measured
    time into the reported one (0.5 for half a round trip). Returns the next position.
    """
    clock = time.perf_counter
    for i in range(-lead, len(out)):
        if align is not None:
            align()
            align()
        start = clock()
        for _ in range(depth):
            body(position)
            position += 1
        if tail is not None:
            tail()
        end = clock()
        if i >= 0:
            out[i] = (end - start) * scale / depth
    return position


def calibrate_host_clock(call_overhead: float | None = None) -> Calibration:
    """Calibration of `perf_counter` as `host_loop` uses it, over 20,000 pairs of readings."""
    clock = time.perf_counter
    gaps = np.array([-(clock() - clock()) for _ in range(20_000)])
    return calibration_of("perf_counter", gaps, call_overhead)


def calibration_of(clock: str, gaps: Samples, call_overhead: float | None = None) -> Calibration:
    """Overhead = median gap of two readings; step = smallest difference that two gaps show, at least 1 ns."""
    steps = np.diff(np.unique(np.round(gaps * 1e9)))
    return Calibration(clock, float(steps.min() if len(steps) else 1) * 1e-9, float(np.median(gaps)), call_overhead)
