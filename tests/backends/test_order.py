"""What is done before the ranks meet: whatever comes later comes too late."""

from __future__ import annotations

from typing import Any

import pytest

from commbench import backends
from commbench.backends import before_meeting
from commbench.backends.base import World
from commbench.spec import Sweep

THIRD = World(6, 8, 2, 4, "mpi")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done, in its order."""
    log: list[Any] = []
    monkeypatch.setattr(backends.gpu, "load_driver", lambda: log.append("driver"))
    monkeypatch.setattr(backends.nccl_library, "load", log.append)
    monkeypatch.setattr(backends.cupy_gpu, "claim", lambda world: log.append(world.local_rank))
    return log


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # torch, imported to meet the others through Gloo, would load its own NCCL first.
        ({"backend": "torch-nccl", "nccl_lib": "/n/libnccl.so.2"}, ["driver", "/n/libnccl.so.2"]),
        ({"backend": "nccl", "nccl_lib": "/n/libnccl.so.2"}, ["driver", "/n/libnccl.so.2"]),
        ({"backend": "nccl"}, []),
        # MPI looks for a context in MPI_Init, where the ranks meet: on the GPU that the launcher's word gives.
        ({"backend": "mpi", "device": "cuda"}, [2]),
        ({"backend": "mpi", "device": "cuda", "staged": True}, [2]),
        ({"backend": "mpi", "device": "cpu"}, []),
        ({"backend": "gloo", "nccl_lib": "/n/libnccl.so.2"}, []),
    ],
)
def test_libraries_and_contexts_come_before_what_would_take_their_place(
    done: list[Any], changes: dict[str, Any], expected: list[Any]
) -> None:
    before_meeting(Sweep(ops=("allreduce",), **changes), THIRD)
    assert done == expected
