"""MPI on GPU memory: CuPy's, handed to a CUDA-aware MPI by address, or copied through the host around any MPI."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commbench.backends import kernels, truth
from commbench.backends.base import Call, Exchange, Health, World
from commbench.backends.buffers import Arena, Layout
from commbench.backends.cupy_gpu import CupyGpu, claim, load_cupy, open_gpu
from commbench.backends.mpi import MpiBackend
from commbench.backends.mpi_call import MpiCall
from commbench.backends.mpi_library import MpiLibrary
from commbench.backends.truth import Array
from commbench.errors import UnavailableError
from commbench.spec import Point, Sweep

_STAGED = "--staged copies through host memory around any MPI"
_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA (mpix.h of MPICH)

# What some of them want to be told; without it they take a GPU's address for one of the host, and crash.
_SWITCHES = {
    "cray": ("MPICH_GPU_SUPPORT_ENABLED", "and libmpi_gtl_cuda.so must be in LD_PRELOAD"),
    "intel": ("I_MPI_OFFLOAD", "with Intel MPI 2021.12 or later and a libcuda.so on the loader's path"),
    "mvapich2": ("MV2_USE_CUDA", "with a build for CUDA"),
}
_BUILDS = "it takes Open MPI (with its UCX) or MPICH configured --with-cuda, or the cluster's module, not pip's wheels"


class MpiCudaBackend(MpiBackend):
    """All of MPI_COMM_WORLD, a GPU each, on the host's clock: MPI's calls return when they are done."""

    def __init__(self, world: World, sweep: Sweep, exchange: Exchange) -> None:
        super().__init__(world, sweep, 0)
        self.staged = sweep.staged
        if self.staged and self.library.compiled is None:
            raise UnavailableError("--staged: its copies are steps of the compiled loop", "pip install numba")
        if not self.staged:
            refuse_unaware(self.library)
        first = load_cupy().cuda.runtime.getDevice()
        self.gpu, notes = open_gpu(world, exchange, allow_shared=sweep.allow_shared_gpu)
        self.notes: Sequence[str] = (*notes, *_moved(exchange.gather(first != self.gpu.index)))
        self.cache_bytes = self.gpu.cache_bytes
        self.arena = Arena(self.gpu.allocate, self.gpu.load)
        self._host: Any = None

    def shortage(self, point: Point) -> str:
        return self.gpu.shortage(self.layout(point).total)

    def reserve(self, points: Sequence[Point]) -> None:
        super().reserve(points)
        if self.staged:
            self._host = self.gpu.pinned(max((self.layout(point).stride for point in points), default=1))

    def prepare(self, point: Point) -> Call:
        at = self.layout(point)
        if self.staged:
            return StagedCall(self.library, self.gpu, self.arena, at, point, self.rank, self._host.ptr)
        return DeviceCall(self.library, self.gpu, self.arena, at, point, self.rank)

    def memory(self, size: int) -> Array:
        return super().memory(size) if self.staged else self.gpu.allocate(size)

    def libraries(self) -> dict[str, str]:
        return super().libraries() | self.gpu.versions()

    def place(self) -> dict[str, Any]:
        return self.gpu.facts()

    def health(self) -> Health:
        return self.gpu.monitor.health()

    def close(self) -> None:
        # MPI may have the buffers registered: they go while it can still be told.
        self.arena.release()
        self._host = None
        super().close()


def _moved(ranks: list[Any] | None) -> list[str]:
    if not ranks or not any(ranks):
        return []
    some = f"{sum(ranks)} of {len(ranks)} ranks"
    return [f"{some} started MPI on another GPU than they measure: the launcher does not tell their place on the node"]


class DeviceCall(MpiCall):
    """MPI reads and writes the GPU's memory."""

    def __init__(
        self, library: MpiLibrary, gpu: CupyGpu, arena: Arena, layout: Layout, point: Point, rank: int
    ) -> None:
        super().__init__(library, arena, layout, point, rank)
        self.gpu = gpu

    # MPI knows nothing of streams: what filled the buffers must be done before it looks at them.

    def refill(self) -> None:
        super().refill()
        self.gpu.synchronize()

    def settle(self) -> None:
        super().settle()
        self.gpu.synchronize()


class StagedCall(DeviceCall):
    """The GPU's memory is copied to pinned memory of the host before MPI, and back after it.

    As an application does without a CUDA-aware MPI: one host buffer for all slices, and only what this rank sends
    and receives travels. From and to pinned memory both copies return when they are done (CUDA Driver API, "API
    synchronization behavior").
    """

    def __init__(
        self, library: MpiLibrary, gpu: CupyGpu, arena: Arena, layout: Layout, point: Point, rank: int, host: int
    ) -> None:
        super().__init__(library, gpu, arena, layout, point, rank)
        self._host = host

    def buffers(self) -> tuple[Any, Any]:
        return self._host + self.layout.send, self._host + self.layout.receive

    def before(self) -> list[kernels.Step]:
        if not truth.inputs(self.point, self.rank):
            return []
        device, host = self.slices()[0], self._host + self.layout.send
        return [(kernels.address_of(self.gpu.driver, "cuMemcpyDtoH_v2"), (host, device, self.layout.send_bytes))]

    def after(self) -> list[kernels.Step]:
        point = self.point
        has_it = point.in_place and self.rank == point.root and self.row.name in ("broadcast", "scatter")
        if has_it or not truth.answers(point, self.rank):
            return []
        device, host = self.slices()[1], self._host + self.layout.receive
        return [(kernels.address_of(self.gpu.driver, "cuMemcpyHtoD_v2"), (device, host, self.layout.receive_bytes))]


# -- is it CUDA-aware? -------------------------------------------------------------------------------------------


def refuse_unaware(library: MpiLibrary, environment: Mapping[str, str] = os.environ) -> None:
    """To be called after MPI_Init: most answer for what they selected there, not for what they were built with.

    Raises:
        UnavailableError: this MPI would take a GPU's address for one of the host, and crash.
    """
    version = library.version
    for name, (switch, besides) in _SWITCHES.items():
        if name in version.lower() and environment.get(switch, "").lower() not in ("1", "true", "yes", "on"):
            raise UnavailableError(
                f"{version} is not CUDA-aware unless it is told to be", f"export {switch}=1, {besides}; {_STAGED}"
            )
    if (answer := _ask(library.c)) is None:
        raise UnavailableError(f"{version} does not say whether it is CUDA-aware", f"{_BUILDS}; {_STAGED}")
    if not answer:
        raise UnavailableError(f"{version} is not CUDA-aware here", f"{_BUILDS}; {_STAGED}")
    if _control_variable(library.c, b"opal_cuda_support") == 0:
        raise UnavailableError(
            f"{version} has CUDA built in, but switched off", f"export OMPI_MCA_opal_cuda_support=true; {_STAGED}"
        )


def tried() -> None:
    """Hand GPU memory to MPI, in a process of its own that may crash: a message to itself, and a sum.

    Raises:
        UnavailableError: as `refuse_unaware`, or what came was wrong.
    """
    world = World(0, 1, 0, 1, "alone")
    claim(world)
    library, cupy = MpiLibrary(world, "single", "python", 60), load_cupy()
    refuse_unaware(library)
    mpi, alone = library.mpi, library.mpi.COMM_SELF
    sent, came, total = cupy.zeros(1000, np.float32), cupy.zeros(1000, np.float32), cupy.zeros(1000, np.float32)
    sent.fill(7)
    cupy.cuda.runtime.deviceSynchronize()
    alone.Sendrecv([sent, mpi.FLOAT], 0, 0, [came, mpi.FLOAT], 0, 0)
    alone.Allreduce([sent, mpi.FLOAT], [total, mpi.FLOAT], mpi.SUM)
    if not bool(((came == sent) & (total == sent)).all()):
        raise UnavailableError(f"{library.version} says it is CUDA-aware, but GPU memory arrives damaged", _STAGED)


def _ask(library: ctypes.CDLL) -> bool | None:
    """What an MPI says of itself, None when it has no function for it."""
    # Open MPI, MPICH, Intel MPI, ParaStation MPI.
    if (simple := _function(library, "MPIX_Query_cuda_support")) is not None:
        return bool(simple())
    # Cray MPICH has this one alone.
    if (general := _function(library, "MPIX_GPU_query_support")) is not None:
        supported = ctypes.c_int()
        return general(_CUDA, ctypes.byref(supported)) == 0 and bool(supported.value)
    return None


def _control_variable(library: ctypes.CDLL, name: bytes) -> int | None:
    """An integer or a boolean of MPI's tool interface, None where it has none of that name.

    Open MPI 4 answers MPIX_Query_cuda_support by how it was built; whether that is switched on, as it is not in
    conda-forge's builds, is in opal_cuda_support.
    """
    names = ("init_thread", "cvar_get_index", "cvar_handle_alloc", "cvar_read", "cvar_handle_free", "finalize")
    start, find, open_, read, close, end = (_function(library, f"MPI_T_{one}") for one in names)
    index, handle, count, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    at = ctypes.byref
    if start is None or start(0, at(count)):
        return None
    try:
        if find(name, at(index)) or open_(index, None, at(handle), at(count)):
            return None
        code = read(handle, at(value))
        close(at(handle))
        return None if code else value.value
    finally:
        end()


def _function(library: ctypes.CDLL, name: str) -> Any:
    """A C function; what was preloaded comes first, as for any caller. None where there is none."""
    return getattr(ctypes.CDLL(None), name, None) or getattr(library, name, None)
