"""The compiled time loop: C functions called by address, so that Python is not in the timed path.

One kernel serves every operation of every C library. An operation is a list of steps, each a function's
address and up to twelve arguments widened to 64 bits (MPI_Sendrecv has twelve); the next call uses the next
row of arguments, which is how buffers rotate. On the 64-bit Linux ABIs (x86-64 System V, AAPCS64) integers,
pointers and handles take a whole register or stack slot each, and a callee ignores what it did not ask for.
Apple's arm64 packs stack arguments instead: there the plain Python loop is used.

The loop releases the interpreter lock, so that the watchdog thread runs while MPI spins.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commbench.backends.base import Calibration, calibration_of
from commbench.errors import MeasurementError
from commbench.stats import Samples

ARGUMENTS = 12

AHEAD = 16
"""Samples that the host may be ahead of a GPU: enough to keep it busy, too few to fill the stream's queue."""

Arguments = Sequence["int | Strided"]
Step = tuple[int, Arguments]


@dataclass(frozen=True, slots=True)
class Strided:
    """An address that moves: `start` + k x `stride` in row k, coming back after `every` rows (0: never)."""

    start: int
    stride: int
    every: int = 0


def supported() -> bool:
    """Whether this platform passes widened arguments as the kernel needs."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class Program:
    """What one call is: `body` steps in order on the next row, and `tail` steps after each batch.

    Attributes:
        functions: int64[steps], addresses.
        arguments: int64[rows, steps, 12].
        tail_functions, tail_arguments: int64[steps] and int64[steps, 12].
        keep: whatever the arguments point into.
    """

    functions: npt.NDArray[np.int64]
    arguments: npt.NDArray[np.int64]
    tail_functions: npt.NDArray[np.int64]
    tail_arguments: npt.NDArray[np.int64]
    keep: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, body: Sequence[Step], tail: Sequence[Step] = (), rows: int = 1, keep: Sequence[Any] = ()) -> Program:
        arguments = np.zeros((rows, len(body), ARGUMENTS), dtype=np.int64)
        row = np.arange(rows, dtype=np.int64)
        for step, (_, values) in enumerate(body):
            for position, value in enumerate(values):
                if isinstance(value, Strided):
                    turn = row % value.every if value.every else row
                    arguments[:, step, position] = value.start + turn * value.stride
                else:
                    arguments[:, step, position] = value
        tail_arguments = np.zeros((len(tail), ARGUMENTS), dtype=np.int64)
        for step, (_, values) in enumerate(tail):
            for position, value in enumerate(values):
                assert not isinstance(value, Strided)
                tail_arguments[step, position] = value
        functions = np.array([address for address, _ in body], dtype=np.int64)
        return cls(functions, arguments, np.array([a for a, _ in tail], dtype=np.int64), tail_arguments, list(keep))


def padded(step: Step | None) -> tuple[int, npt.NDArray[np.int64]]:
    """A step that does not move, as (address, twelve arguments); address 0 for none."""
    function, values = step or (0, [])
    arguments = np.zeros(ARGUMENTS, dtype=np.int64)
    arguments[: len(values)] = np.array(values, dtype=np.int64)
    return function, arguments


@dataclass(frozen=True, slots=True)
class Queue:
    """Where `enqueue` puts calls: a CUDA stream, with what it needs of the driver.

    Attributes:
        events: int64[2, n], handles of the events before and after each sample.
        stream: the stream's handle.
        record, wait: addresses of cuEventRecord and cuEventSynchronize.
        align: a call that makes the ranks' GPUs meet before each sample, None where the calls do so themselves.
    """

    events: npt.NDArray[np.int64]
    stream: int
    record: int
    wait: int
    align: Step | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of enqueuing: the error codes of the steps and of the driver (or-ed, 0: none), the next position."""

    failed: int
    driver: int
    position: int


_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * ARGUMENTS)


def enqueue(program: Program, host: Samples, lead: int, depth: int, queue: Queue, position: int) -> Outcome:
    """Put `len(host)` batches of `depth` calls into a stream, each between two events, after `lead` unrecorded ones.

    The plain loop: the same C functions by the same addresses, through ctypes. `host` gets the seconds that
    enqueuing a call took the host; the events know what the device did.
    """
    body = [_C_FUNCTION(address) for address in program.functions.tolist()]
    tail = [_C_FUNCTION(address) for address in program.tail_functions.tolist()]
    rows, ends = program.arguments.tolist(), program.tail_arguments.tolist()
    align, record, wait = (_C_FUNCTION(address) for address in (padded(queue.align)[0], queue.record, queue.wait))
    aligned, unused = padded(queue.align)[1].tolist(), [0] * (ARGUMENTS - 2)
    starts, stops = queue.events.tolist()
    failed = driver = 0
    for i in range(-lead, len(host)):
        if queue.align:
            failed |= align(*aligned)
        if i >= 0:
            driver |= record(starts[i], queue.stream, *unused)
        begin = time.perf_counter()
        for _ in range(depth):
            for function, arguments in zip(body, rows[position % len(rows)], strict=True):
                failed |= function(*arguments)
            position += 1
        for function, arguments in zip(tail, ends, strict=True):
            failed |= function(*arguments)
        end = time.perf_counter()
        if i >= 0:
            host[i] = (end - begin) / depth
            driver |= record(stops[i], queue.stream, *unused)
            if i >= AHEAD:
                driver |= wait(stops[i - AHEAD], 0, *unused)
        if failed or driver:
            break
    return Outcome(failed, driver, position % len(rows))


class CompiledLoop:
    """The kernels, compiled once a machine and cached; `run` times a program.

    Raises:
        ImportError: numba is not installed.
    """

    def __init__(self) -> None:
        _choose_cache()
        with _one_compiles():
            from commbench.backends import jit  # noqa: PLC0415 - numba is optional and takes half a second

        self._run = jit.time_loop
        self._enqueue = jit.enqueue_loop
        self._handover = jit.handover
        libc = ctypes.CDLL(None)
        self._clock = address_of(libc, "clock_gettime")

    def run(
        self,
        program: Program,
        out: Samples,
        lead: int,
        depth: int,
        scale: float,
        barrier: Step | None,
        position: int,
    ) -> int:
        """Time `len(out)` batches of `depth` calls into `out` (seconds x `scale`); returns the next position.

        Raises:
            MeasurementError: a call returned an error code.
        """
        function, align = padded(barrier)
        code, position = self._run(
            out, lead, depth, scale, self._clock, function, align,
            program.functions, program.arguments, program.tail_functions, program.tail_arguments, position,
        )  # fmt: skip
        if code:
            raise MeasurementError(f"the collective returned error code {code}")
        return int(position)

    def enqueue(self, program: Program, host: Samples, lead: int, depth: int, queue: Queue, position: int) -> Outcome:
        """As the function `enqueue`, without Python in the loop."""
        function, align = padded(queue.align)
        failed, driver, position = self._enqueue(
            host, lead, depth, self._clock, function, align,
            program.functions, program.arguments, program.tail_functions, program.tail_arguments, position,
            queue.events, queue.stream, queue.record, queue.wait, AHEAD,
        )  # fmt: skip
        return Outcome(int(failed), int(driver), int(position))

    def calibrate(self, call_overhead: float | None = None) -> Calibration:
        """Step and overhead of the clock as `run` reads it."""
        gaps = np.empty(20_000)
        self.run(Program.of([]), gaps, 100, 1, 1.0, None, 0)
        return calibration_of("CLOCK_MONOTONIC", gaps, call_overhead)

    def handover(self, address: int, side: int, base: int, rounds: int, patience: int) -> float:
        """Seconds for a cache line to go from one process to the other, -1 when the other did not answer.

        Both sides call it with the same `base` and `rounds`; `patience` is how many reads to wait at most.
        """
        return float(self._handover(address, side, base, rounds, patience, self._clock))


def address_of(library: ctypes.CDLL, name: str) -> int:
    """The address of a C function.

    Raises:
        AttributeError: the library has no such function.
    """
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


def _choose_cache() -> None:
    """Point numba at a directory that is ours alone: its cache files are code, so nobody else may write them."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for parent in (home, Path(tempfile.gettempdir())):
        folder = parent / f"commbench-numba-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = folder.stat()
        except OSError:
            continue
        if about.st_uid == os.getuid() and not about.st_mode & 0o022 and os.access(folder, os.W_OK):
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
            return


@contextmanager
def _one_compiles() -> Iterator[None]:
    """One process of a machine compiles, the rest wait and read its cache."""
    with ExitStack() as stack:
        if folder := os.environ.get("NUMBA_CACHE_DIR"):
            with suppress(OSError):  # a folder of the user's that cannot be written to: numba then caches nothing
                Path(folder).mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context((Path(folder) / "lock").open("w")), fcntl.LOCK_EX)
        yield


def load() -> tuple[CompiledLoop | None, str]:
    """The compiled loop, or None and why there is none."""
    if not supported():
        return None, f"no compiled loop on {sys.platform} {platform.machine()}"
    try:
        return CompiledLoop(), ""
    except ImportError as error:
        return None, f"numba cannot be imported: {error}"
