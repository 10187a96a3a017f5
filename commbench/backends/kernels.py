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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commbench.backends.base import Calibration, calibration_of
from commbench.errors import MeasurementError
from commbench.stats import Samples

ARGUMENTS = 12
CLOCK_MONOTONIC = 1

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
        function, values = barrier or (0, [])
        align = np.zeros(ARGUMENTS, dtype=np.int64)
        align[: len(values)] = np.array(values, dtype=np.int64)
        code, position = self._run(
            out, lead, depth, scale, self._clock, function, align,
            program.functions, program.arguments, program.tail_functions, program.tail_arguments, position,
        )  # fmt: skip
        if code:
            raise MeasurementError(f"the collective returned error code {code}")
        return int(position)

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
    folder = os.environ.get("NUMBA_CACHE_DIR")
    if folder is None:
        yield
        return
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load() -> tuple[CompiledLoop | None, str]:
    """The compiled loop, or None and why there is none."""
    if not supported():
        return None, f"no compiled loop on {sys.platform} {platform.machine()}"
    try:
        return CompiledLoop(), ""
    except ImportError as error:
        return None, f"numba cannot be imported: {error}"
