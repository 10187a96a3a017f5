"""`every_operation` with the back end torch-nccl, whose NCCL group is replaced by a Gloo one and its GPU by a double.

What stays real: the collectives on torch's tensors, the stream of events, filling and checking. What this cannot
show: torch's CUDA streams, its NCCL group, capture into a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from commbench.backends import torch_nccl
from commbench.backends.base import Exchange, World
from commbench.backends.gpu import Assignment, Gpu, assign
from commbench.backends.torch_collectives import Body
from commbench.spec import Sweep
from tests.backends import every_operation


class DoubleGpu(Gpu):
    """A GPU of `tests.doubles` beside tensors on the host."""

    def __init__(self, assignment: Assignment) -> None:
        cupy.cuda.runtime.setDevice(assignment.index)
        cupy.cuda.runtime.free(0)
        super().__init__(assignment)

    @contextmanager
    def current(self) -> Iterator[None]:
        yield

    def captured(self, body: Body, depth: int) -> Any:
        def replay() -> None:
            for position in range(depth):
                body[0](position)

        return replay


class OnGloo(torch_nccl.TorchNcclBackend):
    def _open_gpu(self, world: World, sweep: Sweep, exchange: Exchange) -> tuple[Any, Any]:
        return DoubleGpu(assign(world, exchange, 2, allow_shared=False)), self.torch.device("cpu")

    def _connect(self, sweep: Sweep) -> Any:
        return self.dist.new_group(backend="gloo")


if __name__ == "__main__":
    torch_nccl.TorchNcclBackend = OnGloo
    every_operation.main()
