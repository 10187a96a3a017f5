"""A GPU whose memory and arrays are CuPy's: for the back ends that torch does not own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from commbench.backends.base import Exchange, World
from commbench.backends.gpu import Assignment, Gpu, assign, dotted, explained, load_driver
from commbench.backends.truth import Array
from commbench.errors import UnavailableError

_INSTALL = "pip install 'commbench[cuda12]', or 'commbench[cuda13]' for a driver of CUDA 13"


_COMPILER = "pip install 'cupy-cuda12x[ctk]' (or 13x) brings NVRTC and CUDA's headers; `commbench doctor` tries them"


def load_cupy() -> Any:
    """CuPy, able to see a GPU.

    Raises:
        UnavailableError: it is missing, or no driver or GPU is there.
    """
    load_driver()
    try:
        import cupy  # noqa: PLC0415 - loading CuPy is what this function is for
    except ImportError as error:
        raise UnavailableError(f"CuPy cannot be imported: {_first_line(error)}", _INSTALL) from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise explained(error.status, _first_line(error)) from error
    return cupy


def open_gpu(world: World, exchange: Exchange, *, allow_shared: bool) -> tuple[CupyGpu, tuple[str, ...]]:
    """This rank's GPU, and notes for the user.

    Raises:
        UnavailableError: no CuPy, no driver, no GPU.
        UsageError: as `gpu.assign`.
    """
    cupy = load_cupy()
    assignment = assign(world, exchange, cupy.cuda.runtime.getDeviceCount(), allow_shared=allow_shared)
    return CupyGpu(cupy, assignment), assignment.notes


def claim(world: World) -> int:
    """Make the GPU of this rank's place on the node current, before MPI starts; returns its index.

    A CUDA-aware MPI looks for a context while it initialises. Open MPI 4 and 5 set up their copies and register
    their memory then if they find one; its main branch makes one on every GPU if it finds none, and works on the
    first (opal_accelerator_cuda_delayed_init). The place is the launcher's word: the ranks have not met yet.

    Raises:
        UnavailableError: no CuPy, no driver, no GPU.
    """
    cupy = load_cupy()
    runtime = cupy.cuda.runtime
    index = int(world.local_rank % runtime.getDeviceCount())
    _make_current(cupy, index)
    return index


def _make_current(cupy: Any, index: int) -> None:
    runtime = cupy.cuda.runtime
    try:
        runtime.setDevice(index)
        runtime.free(0)  # creates the context and makes it current, which the driver needs
    except runtime.CUDARuntimeError as error:
        raise explained(error.status, _first_line(error)) from error


class CupyGpu(Gpu):
    """Adds memory to a GPU."""

    def __init__(self, cupy: Any, assignment: Assignment) -> None:
        self.cupy = cupy
        _make_current(cupy, assignment.index)
        super().__init__(assignment)
        self._try_compiler()

    def _try_compiler(self) -> None:
        """Inputs are written and answers compared by kernels that CuPy compiles: what is missing for it shows here."""
        try:
            self.cupy.zeros(1, np.uint8).fill(1)
        except Exception as error:
            raise UnavailableError(f"CuPy cannot compile its kernels: {_first_line(error)}", _COMPILER) from error

    @contextmanager
    def errors(self) -> Iterator[None]:
        """CUDA's errors become ours."""
        try:
            yield
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise explained(error.status, _first_line(error)) from error

    def allocate(self, size: int) -> Array:
        """`size` bytes, zeroed, as an array: from the driver and not from a pool, so that all launches agree.

        Raises:
            UnavailableError: there is not enough memory.
        """
        with self.errors():
            memory = self.cupy.cuda.Memory(size)
            array: Array = self.cupy.ndarray((size,), np.uint8, self.cupy.cuda.MemoryPointer(memory, 0))
            self.cupy.cuda.runtime.memset(memory.ptr, 0, size)
        self.synchronize()
        return array

    def pinned(self, size: int) -> Any:
        """Memory of the host that the GPU copies from and to directly; `ptr` is its address.

        Raises:
            UnavailableError: there is not enough.
        """
        with self.errors():
            return self.cupy.cuda.PinnedMemory(size)

    def load(self, table: Array) -> Array:
        """A host array on the device."""
        with self.errors():
            array: Array = self.cupy.asarray(table)
        return array

    def versions(self) -> dict[str, str]:
        runtime = self.cupy.cuda.runtime.runtimeGetVersion()
        return super().versions() | {"cuda_runtime": dotted(runtime), "cupy": str(self.cupy.__version__)}


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
