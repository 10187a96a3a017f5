"""What a copy goes from and to: a GPU with its stream and memory, or the host's memory of one kind."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from commbench.backends import kernels
from commbench.backends.buffers import Arena, address_of
from commbench.backends.cupy_gpu import CupyGpu
from commbench.backends.gpu import Assignment
from commbench.backends.routes import Pair
from commbench.backends.truth import Array
from commbench.errors import UnavailableError

_BUSY_BYTES = 512 << 10  # ten microseconds of PCIe 5, forty of PCIe 3: enqueuing a copy and two events takes five
_STREAM_NON_BLOCKING, _DISABLE_TIMING, _PORTABLE = 1, 2, 1


class GpuEnd(CupyGpu):
    """One of several GPUs of this process.

    Attributes:
        arena: the memory that copies go from and to.
        context: the handle of its primary context.
        back: a second stream, for the other direction of an exchange with the host.
        fork, join: events that order two streams; they have no time.
        busy: a call that keeps the stream busy for some microseconds, while the host enqueues what is timed: a copy
            to the host, which a slow link makes long.
        space: bytes for the arena.
    """

    def __init__(self, cupy: Any, index: int) -> None:
        super().__init__(cupy, Assignment(index))
        context = ctypes.c_void_p()
        self._expect(self.driver.cuCtxGetCurrent(ctypes.byref(context)), "cuCtxGetCurrent")
        self.context = int(context.value or 0)
        self.back = self._get(self.driver.cuStreamCreate, ctypes.c_void_p, _STREAM_NON_BLOCKING)
        self.fork, self.join = (
            self._get(self.driver.cuEventCreate, ctypes.c_void_p, _DISABLE_TIMING) for _ in range(2)
        )
        self._from, self._to = self.allocate(_BUSY_BYTES), PageLocked(cupy, _BUSY_BYTES)
        copy = kernels.address_of(self.driver, "cuMemcpyDtoHAsync_v2")
        self.busy: kernels.Step = copy, (self._to.address, address_of(self._from), _BUSY_BYTES, self.stream)
        self.arena = Arena(self.allocate, self.load)
        self.space = self.room()

    def __str__(self) -> str:
        return f"GPU {self.index}"

    def use(self) -> None:
        """Make it the current one: arrays of another would let CuPy enable peer access by itself."""
        with self.errors():
            self.cupy.cuda.runtime.setDevice(self.index)
            self.cupy.cuda.runtime.free(0)

    def reserve(self, size: int) -> None:
        self.use()
        self.arena.reserve(size)


class PageLocked:
    """`size` bytes of host memory as cuMemHostAlloc gives them: what a program that cares about speed copies from.

    Raises:
        UnavailableError: the driver does not give so much.
    """

    def __init__(self, cupy: Any, size: int) -> None:
        self._runtime = cupy.cuda.runtime
        try:
            self.address: int = self._runtime.hostAlloc(size, _PORTABLE)
        except self._runtime.CUDARuntimeError as error:
            raise UnavailableError(
                f"{size >> 20}M of page-locked host memory cannot be had: {error}",
                "use a smaller --max-bytes, or --path without pinned",
            ) from error
        self.array: Array = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(self.address))
        self.array.fill(0)

    def close(self) -> None:
        self._runtime.freeHost(self.address)


class HostEnd:
    """The host's memory: "pinned" (page-locked) or "pageable"."""

    def __init__(self, cupy: Any, kind: str) -> None:
        self.kind, self._cupy = kind, cupy
        self._locked: PageLocked | None = None
        self.arena = Arena(self._lock) if kind == "pinned" else Arena()

    def __str__(self) -> str:
        return f"{self.kind} host memory"

    def use(self) -> None:
        pass

    def reserve(self, size: int) -> None:
        self.arena.reserve(size)

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def _lock(self, size: int) -> Array:
        self.close()
        self._locked = PageLocked(self._cupy, size)
        return self._locked.array


End = GpuEnd | HostEnd


class PeerAccess:
    """Peer access between two GPUs at a time, both ways; a GPU can have eight peers at most where NVSwitch is not."""

    def __init__(self, gpus: Mapping[int, GpuEnd]) -> None:
        self._gpus = gpus
        self._open: Pair | None = None

    def allow(self, pair: Pair) -> None:
        pair = min(pair), max(pair)
        if pair == self._open:
            return
        if self._open is not None:
            self.deny(self._open)
        self._each(pair, enable=True)
        self._open = pair

    def deny(self, pair: Pair) -> None:
        pair = min(pair), max(pair)
        if pair == self._open:
            self._open = None
            self._each(pair, enable=False)

    def close(self) -> None:
        if self._open is not None:
            self.deny(self._open)

    def _each(self, pair: Pair, *, enable: bool) -> None:
        for own, peer in (pair, pair[::-1]):
            gpu = self._gpus[own]
            gpu.use()
            runtime = gpu.cupy.cuda.runtime
            change = runtime.deviceEnablePeerAccess if enable else runtime.deviceDisablePeerAccess
            with gpu.errors():
                change(peer)
