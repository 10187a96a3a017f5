"""NCCL: its C functions on CuPy's memory, called by address from the libnccl that is loaded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commbench.backends import kernels
from commbench.backends.base import Calibration, Call, Exchange, Health, World
from commbench.backends.buffers import Arena, Layout, address_of, layout_of
from commbench.backends.cupy_gpu import open_gpu
from commbench.backends.gpu import load_driver
from commbench.backends.nccl_call import NcclCall, Wiring
from commbench.backends.nccl_library import DTYPES, NcclLibrary, load, share_a_gpu
from commbench.errors import UnavailableError
from commbench.spec import ANY_REDUCTION, ANY_TYPE, Capabilities, Point, Sweep

_BOTH = (False, True)

# alltoall in place would need a buffer inside NCCL, which has none (nccl.h).
CAPABILITIES = Capabilities(
    forms={
        "allreduce": _BOTH,
        "allgather": _BOTH,
        "reduce_scatter": _BOTH,
        "alltoall": (False,),
        "alltoallv": (False,),
        "broadcast": _BOTH,
        "reduce": _BOTH,
        "gather": _BOTH,
        "scatter": _BOTH,
        "sendrecv": (False,),
        "p2p": (False,),
    },
    moves=ANY_TYPE,
    reduces=ANY_REDUCTION,
    devices=("cuda",),
    modes=("pipe", "sync", "graph"),
    caches=("rotated", "hot"),
)

_MOST_SLICES = 1024
_PULSE_BYTES = 512  # one element to align by, one for an answer, out of the buffers' way


class NcclBackend:
    """One communicator of all ranks, a GPU each."""

    def __init__(self, world: World, sweep: Sweep, exchange: Exchange) -> None:
        load_driver()  # without which all else would fail, and say something else
        library = load(sweep.nccl_lib)  # before CuPy or torch could load another
        self.rank = world.rank
        self.gpu, notes = open_gpu(world, exchange, allow_shared=sweep.allow_shared_gpu)
        if self.gpu.sharing > 1:
            share_a_gpu(library, world)
        self.nccl = NcclLibrary(library, world, exchange)
        self.notes: Sequence[str] = (*notes, *self.nccl.notes())
        loop, why_not = (None, "") if sweep.loop == "python" else kernels.load()
        if loop is None and sweep.loop == "compiled":
            raise UnavailableError(f"--loop compiled: {why_not}", "pip install numba, or leave --loop out")
        self.arena = Arena(self.gpu.allocate, self.gpu.load)
        self._pulse = self.gpu.allocate(_PULSE_BYTES)
        at = address_of(self._pulse)
        one = self.nccl.step("ncclAllReduce", at, at, 1, DTYPES["float32"], 0, self.nccl.handle, self.gpu.stream)
        queue = replace(self.gpu.queue, align=one)
        self.wiring = Wiring(self.nccl, self.gpu, queue, loop, at + _PULSE_BYTES // 2)

    def shortage(self, point: Point) -> str:
        return self.gpu.shortage(self.layout(point).total)

    def reserve(self, points: Sequence[Point]) -> None:
        self.arena.reserve(max((self.layout(point).total for point in points), default=0))

    def layout(self, point: Point) -> Layout:
        return layout_of(point, self.rank, self.gpu.cache_bytes, _MOST_SLICES, output_at_own_block=True)

    def prepare(self, point: Point) -> Call:
        return NcclCall(self.wiring, self.arena, self.layout(point), point, self.rank)

    def libraries(self) -> dict[str, str]:
        return self.nccl.facts() | self.gpu.versions()

    def place(self) -> dict[str, Any]:
        return self.gpu.facts() | {"communicator_seconds": self.nccl.init_seconds}

    def health(self) -> Health:
        return self.gpu.monitor.health()

    def calibrate(self) -> Calibration:
        wiring, nothing = self.wiring, kernels.Program.of([])
        enqueue = wiring.loop.enqueue if wiring.loop else kernels.enqueue
        return self.gpu.calibrate(lambda out: enqueue(nothing, out, 0, 1, wiring.queue, 0))

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        self.gpu.forget_graphs()
        self.nccl.close()
