"""The back ends: one row each. Nothing here loads a library; `open_backend` does."""

from __future__ import annotations

from dataclasses import dataclass

from commbench.backends import (
    copies,
    cupy_gpu,
    emulated,
    gpu,
    mpi,
    mpi_cuda,
    nccl,
    nccl_library,
    torch_dist,
    torch_nccl,
)
from commbench.backends.base import Backend, Exchange, World
from commbench.errors import UsageError
from commbench.spec import Capabilities, Sweep


@dataclass(frozen=True, slots=True)
class About:
    """A back end as far as it is known without its library.

    Attributes:
        summary: one line for `--help` and `doctor`.
        capabilities: what it can do.
        modules: what must be importable.
        install: the extra that brings it, None when it is always there.
        control: what carries the control plane beside it: "mpi", "gloo" or "sockets" (or what the launcher brings).
        virtual: nothing runs, so no memory is needed and the cores' state does not matter.
        one_process: one process works all GPUs of this machine: there are no ranks to start.
    """

    summary: str
    capabilities: Capabilities
    modules: tuple[str, ...]
    install: str | None
    control: str
    virtual: bool = False
    one_process: bool = False


BACKENDS: dict[str, About] = {
    "nccl": About("NCCL's C functions, GPU memory through CuPy", nccl.CAPABILITIES, ("cupy",), "cuda12", "sockets"),
    "torch-nccl": About("NCCL through torch.distributed", torch_nccl.CAPABILITIES, ("torch",), "torch", "gloo"),
    "mpi": About("MPI through mpi4py, host or GPU memory", mpi.CAPABILITIES, ("mpi4py",), "mpich", "mpi"),
    "gloo": About("Gloo through torch.distributed, TCP", torch_dist.CAPABILITIES, ("torch",), "torch", "gloo"),
    "copies": About(
        "copies between GPUs, and between GPUs and the host, in one process",
        copies.CAPABILITIES,
        ("cupy",),
        "cuda12",
        "sockets",
        one_process=True,
    ),
    "emulated": About("durations from --emulate, nothing travels", emulated.CAPABILITIES, (), None, "sockets", True),
}


def about(name: str) -> About:
    """The row of back end `name`.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in BACKENDS:
        raise UsageError(f"--backend: unknown back end {name!r}", f"one of: auto, {', '.join(BACKENDS)}")
    return BACKENDS[name]


def before_meeting(sweep: Sweep, world: World) -> None:
    """What must be done before any library is loaded to meet the other ranks with: that order cannot be mended later.

    Raises:
        UnavailableError: what the back end needs is not here.
    """
    if sweep.nccl_lib and sweep.backend in ("nccl", "torch-nccl"):
        gpu.load_driver()  # without which all else would fail, and say something else
        nccl_library.load(sweep.nccl_lib)  # torch, which meets the others through Gloo, would load its own
    if sweep.backend == "mpi" and sweep.device == "cuda":
        cupy_gpu.claim(world)


def open_backend(sweep: Sweep, world: World, exchange: Exchange, run: int, cache_bytes: int) -> Backend:
    """Load the library and connect all ranks.

    Args:
        sweep: names the back end and its options.
        world: this rank.
        exchange: a way to the other ranks that is not the library's.
        run: the replicate, part of the emulated back end's seed.
        cache_bytes: last-level cache, for rotated buffers.

    Raises:
        UnavailableError: the library is missing or unusable.
        LaunchError: the ranks did not meet.
    """
    opened: Backend
    match sweep.backend:
        case "nccl":
            opened = nccl.NcclBackend(world, sweep, exchange)
        case "torch-nccl":
            opened = torch_nccl.TorchNcclBackend(world, sweep, exchange)
        case "mpi" if sweep.device == "cuda":
            opened = mpi_cuda.MpiCudaBackend(world, sweep, exchange)
        case "mpi":
            opened = mpi.MpiBackend(world, sweep, cache_bytes)
        case "copies":
            opened = copies.CopiesBackend(sweep, cache_bytes)
        case "gloo":
            opened = torch_dist.GlooBackend(world, sweep.init_timeout, cache_bytes)
        case _:
            opened = emulated.EmulatedBackend(world, sweep.emulate, sweep.seed * 1000 + run)
    return opened
