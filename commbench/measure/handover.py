"""The state of the cores: how long a cache line takes from one rank's core to its neighbour's.

Virtual machines move cores between core complexes without telling: the same 8-byte all-reduce then takes three
times as long, for seconds or minutes. Two results compare only when they were measured in the same state, so
every visit of a point begins with this probe (half a millisecond) and stores what it read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np

from commbench.backends import kernels
from commbench.measure.control import Control

_ROUNDS = 25
_PATIENCE = 1_000_000
_STATES = ((15e-9, "same core"), (75e-9, "near"), (400e-9, "far"))


def name_of(seconds: float) -> str:
    """Two hyperthreads are "same core", one last-level cache is "near", beyond it "far", then "apart"."""
    return next((name for limit, name in _STATES if seconds < limit), "apart")


class Handover:
    """The probe between local ranks 0 and 1 of every node; says nothing where there is no pair or no numba."""

    def __init__(self, control: Control, launch: str) -> None:
        self._control = control
        self._side = control.world.local_rank
        self._turn = 0
        loop, _ = kernels.load() if control.world.local_size > 1 else (None, "")
        able = control.maximum(np.array([float(loop is None)]))[0] == 0
        self._loop = loop if able else None
        self._memory: Any = None
        if self._loop is not None:
            self._memory = self._share(launch)

    def _share(self, launch: str) -> Any:
        folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path("/tmp")  # noqa: S108 - created O_EXCL below
        path = folder / f"commbench-{launch}-{socket.gethostname()}"
        if self._side == 0:
            with contextlib.suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                os.ftruncate(file, mmap.PAGESIZE)
                os.close(file)
        self._control.barrier()
        memory = None
        if self._side in (0, 1):
            with contextlib.suppress(OSError):
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                memory = mmap.mmap(file, mmap.PAGESIZE)
                os.close(file)
        self._control.barrier()
        if self._side == 0:
            path.unlink(missing_ok=True)
        return None if memory is None else np.frombuffer(memory, dtype=np.int64)

    @property
    def able(self) -> bool:
        """Whether there is a pair of ranks, and a compiled loop to probe with."""
        return self._loop is not None

    def probe(self) -> dict[str, Any] | None:
        """{"seconds", "state"} of the slowest node, on every rank; None when it cannot be read."""
        if self._loop is None:
            return None
        base, self._turn = self._turn, self._turn + 10 * 2 * 20 * _ROUNDS
        self._control.barrier()
        seconds = 0.0
        if self._memory is not None and self._side in (0, 1):
            found = self._loop.handover(self._memory.ctypes.data, self._side, base, _ROUNDS, _PATIENCE)
            # A side that lost patience (oversubscribed cores) makes the reading void everywhere.
            seconds = found if found > 0 else 1.0
        slowest = float(self._control.maximum(np.array([seconds]))[0])
        if not 0 < slowest < 1:
            return None
        return {"seconds": slowest, "state": name_of(slowest)}
