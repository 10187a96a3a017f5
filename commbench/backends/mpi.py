"""MPI through mpi4py: the compiled loop calls libmpi's functions by address, mpi4py itself is the fallback."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commbench.backends import kernels
from commbench.backends.base import Calibration, Call, HostBackend, World, calibrate_host_clock, host_loop
from commbench.backends.buffers import Arena, Layout, address_of, layout_of
from commbench.backends.mpi_call import MpiCall
from commbench.backends.mpi_library import MpiLibrary
from commbench.backends.truth import Array
from commbench.spec import Capabilities, Point, Sweep

_WHOLE_NUMBERS = frozenset({"int8", "uint8", "int32", "int64"})
_REDUCIBLE = _WHOLE_NUMBERS | {"float16", "float32", "float64"}
_BOTH = (False, True)

CAPABILITIES = Capabilities(
    forms={
        "allreduce": _BOTH,
        "allgather": _BOTH,
        "reduce_scatter": _BOTH,
        "alltoall": _BOTH,
        "alltoallv": (False,),
        "broadcast": (True,),
        "reduce": _BOTH,
        "gather": _BOTH,
        "scatter": _BOTH,
        "sendrecv": (False,),
        "p2p": (False,),
    },
    moves=_REDUCIBLE | {"bfloat16"},
    reduces=dict.fromkeys(("sum", "prod", "min", "max"), _REDUCIBLE),
    devices=("cpu", "cuda"),
)

_MOST_SLICES = 1 << 18


class MpiBackend(HostBackend):
    """All of MPI_COMM_WORLD, on host memory."""

    def __init__(self, world: World, sweep: Sweep, cache_bytes: int) -> None:
        self.library = MpiLibrary(world, sweep.thread_level, sweep.loop, sweep.init_timeout)
        self.rank = world.rank
        self.arena = Arena()
        self.cache_bytes = cache_bytes

    def reserve(self, points: Sequence[Point]) -> None:
        self.arena.reserve(max((self.layout(point).total for point in points), default=0))

    def layout(self, point: Point) -> Layout:
        return layout_of(point, self.rank, self.cache_bytes, _MOST_SLICES, output_at_own_block=False)

    def prepare(self, point: Point) -> Call:
        return MpiCall(self.library, self.arena, self.layout(point), point, self.rank)

    def libraries(self) -> dict[str, str]:
        return self.library.versions()

    def memory(self, size: int) -> Array:
        """`size` bytes where MPI is to read and write them."""
        return np.zeros(size, dtype=np.uint8)

    def calibrate(self) -> Calibration:
        """Clock and call overhead: an 8-byte all-reduce on MPI_COMM_SELF through the loop in use."""
        library, mpi, data, out = self.library, self.library.mpi, self.memory(16).view(np.float32), np.empty(200)
        if library.compiled is None:
            spec = [data[:2], 2, mpi.FLOAT], [data[2:], 2, mpi.FLOAT]
            host_loop(out, 20, 20, 1.0, None, lambda _: mpi.COMM_SELF.Allreduce(*spec), None, 0)
            return calibrate_host_clock(call_overhead=float(np.median(out)))
        addresses = address_of(data[:2]), address_of(data[2:])
        call = library.step("MPI_Allreduce", *addresses, 2, mpi.FLOAT, mpi.SUM, mpi.COMM_SELF)
        library.compiled.run(kernels.Program.of([call]), out, 20, 20, 1.0, None, 0)
        return library.compiled.calibrate(call_overhead=float(np.median(out)))

    def close(self) -> None:
        self.library.close()
