"""NCCL through torch.distributed: the same collectives with what PyTorch puts around them.

What a training job sees: its Python, its streams and events, its own NCCL. Compare with the back end `nccl`,
which calls the library alone.
"""

from __future__ import annotations

import ctypes
import inspect
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from commbench.backends import kernels, truth
from commbench.backends.base import Calibration, Call, Exchange, Health, Mismatch, World
from commbench.backends.buffers import Arena, Layout, layout_of
from commbench.backends.gpu import Assignment, Gpu, assign, explained
from commbench.backends.nccl_library import dotted, facts_of, loaded, version_of
from commbench.backends.stream import StreamCall
from commbench.backends.torch_collectives import FORMS, Body, Pair, collective
from commbench.backends.torch_dist import start
from commbench.errors import MeasurementError, UnavailableError
from commbench.spec import ANY_REDUCTION, ANY_TYPE, Capabilities, Point, Sweep
from commbench.stats import Samples

CAPABILITIES = Capabilities(
    forms=FORMS,
    moves=ANY_TYPE,
    reduces=ANY_REDUCTION,
    devices=("cuda",),
    modes=("pipe", "sync", "graph"),
    caches=("rotated", "hot"),
)

_MOST_SLICES = 1024
_INSTALL = "pip install torch, in a build for CUDA"


class TorchGpu(Gpu):
    """A GPU whose memory and current stream are torch's."""

    def __init__(self, torch: Any, assignment: Assignment) -> None:
        self.torch = torch
        torch.cuda.set_device(assignment.index)
        torch.zeros(1, device="cuda")  # creates the context and makes it current, which the driver needs
        self._torch_stream = torch.cuda.Stream()
        self._torch_graphs: list[Any] = []
        super().__init__(assignment, int(self._torch_stream.cuda_stream))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Work started inside goes to our stream, or waits for it and is waited for by it."""
        with self.torch.cuda.stream(self._torch_stream):
            yield

    def captured(self, body: Body, depth: int) -> Any:
        """The function that launches `depth` calls as one graph."""
        graph = self.torch.cuda.CUDAGraph()
        self._torch_graphs.append(graph)
        with self.torch.cuda.graph(graph, stream=self._torch_stream, capture_error_mode="thread_local"):
            for position in range(depth):
                body[0](position)
        return graph.replay

    def forget_graphs(self) -> None:
        while self._torch_graphs:
            self._torch_graphs.pop().reset()


class TorchNcclBackend:
    """A process group of torch.distributed on NCCL, beside the default one on Gloo that carries the control plane."""

    notes: Sequence[str] = ()

    def __init__(self, world: World, sweep: Sweep, exchange: Exchange) -> None:
        self.rank = world.rank
        self.dist = start(world, sweep.init_timeout)
        import torch  # noqa: PLC0415

        self.torch = torch
        self.gpu, self.device = self._open_gpu(world, sweep, exchange)
        begin = time.perf_counter()
        self.group = self._connect(sweep)
        self.pulse = torch.zeros(1, device=self.device)
        with self.gpu.current():
            self.dist.all_reduce(self.pulse, group=self.group)
        self.gpu.synchronize()
        self.init_seconds = time.perf_counter() - begin
        self.memory = torch.empty(0)
        self.arena = Arena()

    def _open_gpu(self, world: World, sweep: Sweep, exchange: Exchange) -> tuple[TorchGpu, Any]:
        """(GPU, torch's device) of this rank."""
        torch = self.torch
        if torch.version.cuda is None:
            raise UnavailableError(f"torch {torch.__version__} is a build without CUDA", _INSTALL)
        if not torch.cuda.is_available():
            raise explained(100, "torch.cuda.is_available() is False")
        assignment = assign(world, exchange, torch.cuda.device_count(), allow_shared=sweep.allow_shared_gpu)
        self.notes = assignment.notes
        return TorchGpu(torch, assignment), torch.device("cuda", assignment.index)

    def _connect(self, sweep: Sweep) -> Any:
        """The NCCL group, connected at once: torch would otherwise do so inside the first collective."""
        # Older torch has no `device_id`: there the first all-reduce connects, which follows at once.
        known = "device_id" in inspect.signature(self.dist.new_group).parameters
        return self.dist.new_group(
            backend="nccl",
            timeout=timedelta(seconds=max(sweep.timeout, sweep.init_timeout)),
            pg_options=self.dist.ProcessGroupNCCL.Options(),
            **({"device_id": self.device} if known else {}),
        )

    def shortage(self, point: Point) -> str:
        return self.gpu.shortage(self.layout(point).total)

    def reserve(self, points: Sequence[Point]) -> None:
        size = max((self.layout(point).total for point in points), default=1)
        self.memory = self.torch.zeros(size, dtype=self.torch.uint8, device=self.device)
        self.gpu.synchronize()

    def layout(self, point: Point) -> Layout:
        return layout_of(point, self.rank, self.gpu.cache_bytes, _MOST_SLICES, output_at_own_block=True)

    def prepare(self, point: Point) -> Call:
        return TorchNcclCall(self, point)

    def libraries(self) -> dict[str, str]:
        torch, file = self.torch, next(iter(loaded()), "")
        found = {"torch": torch.__version__, "nccl_file": file} | self.gpu.versions()
        if torch.version.cuda is None:
            return found
        # torch knows the NCCL it was built with; what runs is the library that is loaded, where it is no part of torch.
        built = ".".join(map(str, torch.cuda.nccl.version()))
        nccl = f"NCCL {dotted(version_of(ctypes.CDLL(file))) if file else built}"
        found |= {"torch-nccl": f"torch {torch.__version__}, {nccl}", "nccl": nccl, "torch_built_with": f"NCCL {built}"}
        return found | {"cuda_runtime": torch.version.cuda} | (facts_of(file) if file else {})

    def place(self) -> dict[str, Any]:
        return self.gpu.facts() | {"communicator_seconds": self.init_seconds}

    def health(self) -> Health:
        return self.gpu.monitor.health()

    def calibrate(self) -> Calibration:
        def pairs(out: Samples) -> None:
            self.enqueue((_nothing, None), out, 0, 1, align=True)

        return self.gpu.calibrate(pairs)

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        self.gpu.forget_graphs()
        self.dist.destroy_process_group()

    def enqueue(self, program: Body, host: Samples, lead: int, depth: int, *, align: bool, position: int = 0) -> int:
        """As `StreamCall.run`, from slice `position` on; returns the next one."""
        body, tail = program
        dist, pulse, group = self.dist, self.pulse, self.group
        record, stream = self.gpu.driver.cuEventRecord, ctypes.c_void_p(self.gpu.stream)
        wait, clock, code = self.gpu.driver.cuEventSynchronize, time.perf_counter, 0
        starts, stops = ([ctypes.c_void_p(event) for event in events] for events in self.gpu.queue.events.tolist())
        with self.gpu.current():
            for i in range(-lead, len(host)):
                if align:
                    dist.all_reduce(pulse, group=group)
                if i >= 0:
                    code |= record(starts[i], stream)
                begin = clock()
                for _ in range(depth):
                    body(position)
                    position += 1
                if tail is not None:
                    tail()
                end = clock()
                if i >= 0:
                    host[i] = (end - begin) / depth
                    code |= record(stops[i], stream)
                    if i >= kernels.AHEAD:
                        code |= wait(stops[i - kernels.AHEAD])
        if code:
            raise MeasurementError(f"CUDA driver error {code}", "dmesg may hold an Xid of the GPU")
        return position


def _nothing(_position: int) -> None:
    pass


class TorchNcclCall(StreamCall):
    """One collective on views of one tensor."""

    def __init__(self, backend: TorchNcclBackend, point: Point) -> None:
        super().__init__(backend.gpu, backend.arena, backend.layout(point), point, backend.rank)
        self.backend = backend
        self.tensors = [(self._tensor(k, "send"), self._tensor(k, "receive")) for k in range(self.layout.slices)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of p2p on a group that is not the default one
            self._call = collective(backend.dist, backend.group, point, self.rank, self.tensors, together=True)
        self._answer = backend.torch.zeros(1, dtype=backend.torch.uint8, device=backend.device)
        self._replays: dict[int, Body] = {}

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"loop": "python", "slices": self.layout.slices}

    def run(self, program: Body, host: Samples, lead: int, depth: int, *, align: bool) -> None:
        self.position = self.backend.enqueue(program, host, lead, depth, align=align, position=self.position)

    def round_trip(self) -> Body:
        if not self.is_pair:
            tensors, count, call = self.tensors, len(self.tensors), self._call
            return (lambda position: call(*tensors[position % count])), None
        return self._pair().exchange() if self.both_ways else self._pair().round_trip()

    def window(self, depth: int) -> Body:  # noqa: ARG002 - the loop counts
        return self._pair().window() if self.is_pair and not self.both_ways else self.round_trip()

    def captured(self, depth: int) -> Body:
        if depth not in self._replays:
            with self.backend.gpu.current():
                replay = self.backend.gpu.captured(self.round_trip(), depth)
            self._replays[depth] = (lambda _: replay()), None
        return self._replays[depth]

    def _pair(self) -> Pair:
        a, b = truth.pair_of(self.point)
        backend = self.backend
        return Pair(backend.dist, backend.group, self.tensors, self._answer, a + b - self.rank, first=self.rank == a)

    # -- filling and checking, on the host: torch is no NumPy ------------------------------------------------

    def refill(self) -> None:
        self._checked = self.position % self.layout.slices
        send, receive = self.tensors[self._checked]
        receive.fill_(truth.POISON)
        host = np.zeros(self.layout.send_bytes // self.point.itemsize, truth.numpy_dtype(self.point.dtype))
        self._copy(host, send, back=True)
        truth.fill(host, truth.inputs(self.point, self.rank))
        self._copy(host, send)
        self.gpu.synchronize()

    def check(self) -> Mismatch | None:
        self.gpu.synchronize()
        host = np.empty(self.layout.receive_bytes // self.point.itemsize, truth.numpy_dtype(self.point.dtype))
        self._copy(host, self.tensors[self._checked][1], back=True)
        wrong = truth.first_difference(self.point, host, truth.answers(self.point, self.rank))
        return None if wrong is None else Mismatch(self.rank, *wrong)

    def settle(self) -> None:
        value = truth.fixed_point(self.point)
        whole = self.backend.memory[: self.layout.total // self.point.itemsize * self.point.itemsize]
        whole.view(self._dtype()).fill_(value)
        self.gpu.synchronize()

    def _copy(self, host: truth.Array, tensor: Any, *, back: bool = False) -> None:
        """Between a host array and a tensor; bfloat16 as its 16 bits, which torch calls int16."""
        torch = self.backend.torch
        if self.point.dtype == "bfloat16":
            host, tensor = host.view(np.int16), tensor.view(torch.int16)
        shared = torch.from_numpy(host)
        (shared if back else tensor).copy_(tensor if back else shared)

    def _dtype(self) -> Any:
        return getattr(self.backend.torch, self.point.dtype)

    def _tensor(self, k: int, side: str) -> Any:
        at = self.layout
        offset, size = (at.send, at.send_bytes) if side == "send" else (at.receive, at.receive_bytes)
        begin = k * at.stride + offset
        return self.backend.memory[begin : begin + size].view(self._dtype())
