"""Whether an MPI is CUDA-aware, from what MPIs say; and what is copied through the host around a call.

The real libraries are asked in tests/test_mpi_on_gpus.py, and their answers on GPU memory are in the contract suite.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from commbench.backends import kernels, mpi
from commbench.backends.buffers import Arena, layout_of
from commbench.backends.mpi_cuda import StagedCall, refuse_unaware
from commbench.errors import UnavailableError
from commbench.spec import Sweep

CRAY = "MPI VERSION : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)"
INTEL = "Intel(R) MPI Library 2021.19.0 for Linux* OS"
MVAPICH = "MVAPICH2 Version : 2.3.7"


def library_of(version: str, **functions: Callable[..., int]) -> Any:
    return SimpleNamespace(version=version, c=SimpleNamespace(**functions))


def asked(answer: int) -> Callable[..., int]:
    """MPIX_GPU_query_support of an MPI that is, or is not, aware of CUDA; other GPUs it does not know."""

    def query(kind: int, supported: Any) -> int:
        supported._obj.value = answer if kind == 0 else 0
        return 0

    return query


def tool_interface(**variables: int) -> dict[str, Callable[..., int]]:
    """MPI_T_* with these control variables."""
    names = list(variables)

    def find(name: bytes, index: Any) -> int:
        index._obj.value = names.index(name.decode()) + 1 if name.decode() in names else 0
        return 0 if index._obj.value else 73

    def read(handle: Any, value: Any) -> int:
        value._obj.value = variables[names[0]]
        return 0

    return {
        "MPI_T_init_thread": lambda *_: 0,
        "MPI_T_finalize": lambda: 0,
        "MPI_T_cvar_get_index": find,
        "MPI_T_cvar_handle_alloc": lambda *_: 0,
        "MPI_T_cvar_read": read,
        "MPI_T_cvar_handle_free": lambda *_: 0,
    }


@pytest.mark.parametrize(
    ("version", "functions", "environment"),
    [
        ("Open MPI v5.0.8", {"MPIX_Query_cuda_support": lambda: 1}, {}),
        ("Open MPI v4.1.6", {"MPIX_Query_cuda_support": lambda: 1, **tool_interface(opal_cuda_support=1)}, {}),
        ("MPICH 4.2.1", {"MPIX_Query_cuda_support": lambda: 1, **tool_interface(other=0)}, {}),
        (CRAY, {"MPIX_GPU_query_support": asked(1)}, {"MPICH_GPU_SUPPORT_ENABLED": "1"}),
        (INTEL, {"MPIX_Query_cuda_support": lambda: 1}, {"I_MPI_OFFLOAD": "1"}),
        (MVAPICH, {"MPIX_Query_cuda_support": lambda: 1}, {"MV2_USE_CUDA": "1"}),
    ],
)
def test_an_mpi_that_says_so_is_aware(version: str, functions: dict[str, Any], environment: dict[str, str]) -> None:
    refuse_unaware(library_of(version, **functions), environment)


@pytest.mark.parametrize(
    ("version", "functions", "environment", "message", "advice"),
    [
        ("MPICH 5.0.2", {"MPIX_Query_cuda_support": lambda: 0}, {}, "is not CUDA-aware here", "--with-cuda"),
        ("HPE MPT 2.28", {}, {}, "does not say whether it is CUDA-aware", "--with-cuda"),
        # By its header alone it would be: how it was built is not what it does.
        (
            "Open MPI v4.1.6", {"MPIX_Query_cuda_support": lambda: 1, **tool_interface(opal_cuda_support=0)}, {},
            "has CUDA built in, but switched off", "export OMPI_MCA_opal_cuda_support=true",
        ),
        (CRAY, {"MPIX_GPU_query_support": asked(1)}, {}, "unless it is told", "export MPICH_GPU_SUPPORT_ENABLED=1"),
        (
            CRAY, {"MPIX_GPU_query_support": asked(0)}, {"MPICH_GPU_SUPPORT_ENABLED": "1"},
            "is not CUDA-aware here", "cluster's module",
        ),
        (INTEL, {"MPIX_Query_cuda_support": lambda: 1}, {"I_MPI_OFFLOAD": "0"}, "told", "export I_MPI_OFFLOAD=1"),
        (MVAPICH, {}, {}, "unless it is told", "export MV2_USE_CUDA=1"),
    ],
)  # fmt: skip
def test_an_mpi_that_would_crash_is_refused_with_what_helps(
    version: str, functions: dict[str, Any], environment: dict[str, str], message: str, advice: str
) -> None:
    with pytest.raises(UnavailableError, match=message) as caught:
        refuse_unaware(library_of(version, **functions), environment)
    assert caught.value.message.startswith(version)
    assert advice in caught.value.hint
    assert "--staged" in caught.value.hint


# -- staged ------------------------------------------------------------------------------------------------------

HOST = 1 << 40


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StagedCall]:
    """A function: the one staged point of a sweep, as rank `rank` of four sees it. The driver's functions are names."""
    monkeypatch.setattr(kernels, "address_of", lambda _library, name: name)

    def build(op: str, rank: int = 0, size: int = 4096, **changes: Any) -> StagedCall:
        sweep = Sweep(ops=(op,), backend="mpi", device="cuda", staged=True, min_bytes=size, max_bytes=size, **changes)
        [point] = sweep.points(4, mpi.CAPABILITIES)[0]
        layout = layout_of(point, rank, 0, 1, output_at_own_block=False)
        arena = Arena()
        arena.reserve(layout.total)
        gpu = SimpleNamespace(driver=ctypes.CDLL(None))
        library: Any = SimpleNamespace(compiled=True)
        return StagedCall(library, gpu, arena, layout, point, rank, HOST)

    return build


# By hand: 4096 bytes, four ranks, root 2. What a rank sends goes down, what it receives comes up; a root that
# already has it on its GPU copies nothing back.
@pytest.mark.parametrize(
    ("op", "changes", "rank", "down", "up"),
    [
        ("allreduce", {}, 0, 4096, 4096),
        ("allgather", {}, 1, 1024, 4096),
        ("reduce_scatter", {}, 1, 4096, 1024),
        ("alltoall", {"in_place": "yes"}, 3, 4096, 4096),
        ("broadcast", {"root": 2}, 2, 4096, None),
        ("broadcast", {"root": 2}, 0, None, 4096),
        ("reduce", {"root": 2}, 2, 4096, 4096),
        ("reduce", {"root": 2}, 0, 4096, None),
        ("gather", {"root": 2}, 2, 1024, 4096),
        ("gather", {"root": 2}, 0, 1024, None),
        ("scatter", {"root": 2}, 2, 4096, 1024),
        ("scatter", {"root": 2, "in_place": "yes"}, 2, 4096, None),
        ("scatter", {"root": 2}, 0, None, 1024),
        ("p2p", {"pair": (0, 3)}, 3, 4096, 4096),
    ],
)
def test_only_what_a_rank_sends_and_receives_is_copied(
    staged: Callable[..., StagedCall], op: str, changes: dict[str, Any], rank: int, down: int | None, up: int | None
) -> None:
    call = staged(op, rank, **changes)
    send, receive = call.slices()

    assert call.before() == ([("cuMemcpyDtoH_v2", (HOST + call.layout.send, send, down))] if down else [])
    assert call.after() == ([("cuMemcpyHtoD_v2", (receive, HOST + call.layout.receive, up))] if up else [])
    assert call.buffers() == (HOST + call.layout.send, HOST + call.layout.receive)
