"""One NCCL collective at one point: the calls that nccl.h describes, as steps of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from commbench.backends import kernels, truth
from commbench.backends.buffers import Arena, Layout, vector_counts
from commbench.backends.gpu import Gpu
from commbench.backends.kernels import Program, Step, Strided
from commbench.backends.nccl_library import DTYPES, REDUCTIONS, NcclLibrary
from commbench.backends.stream import StreamCall
from commbench.errors import MeasurementError
from commbench.spec import Point
from commbench.stats import Samples


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all calls of a back end share.

    Attributes:
        nccl: the library with its communicator.
        gpu: where the stream is.
        queue: where calls go, aligned by an all-reduce of one element.
        loop: the compiled loop, None for the plain one.
        answer: the address of an element that nothing else uses.
    """

    nccl: NcclLibrary
    gpu: Gpu
    queue: kernels.Queue
    loop: kernels.CompiledLoop | None
    answer: int


class NcclCall(StreamCall):
    """Bound to the arena's slices."""

    def __init__(self, wiring: Wiring, arena: Arena, layout: Layout, point: Point, rank: int) -> None:
        super().__init__(wiring.gpu, arena, layout, point, rank)
        self.wiring, self.nccl = wiring, wiring.nccl
        self.is_grouped = False
        at, base = layout, arena.address
        self.send = Strided(base + at.send, at.stride, at.slices)
        self.receive = Strided(base + at.receive, at.stride, at.slices)
        self._windows: dict[int, Program] = {}
        self._calls = self._steps()

    @property
    def facts(self) -> Mapping[str, Any]:
        calls = "grouped send/recv" if self.is_grouped else "native"
        return {"loop": "compiled" if self.wiring.loop else "python", "slices": self.layout.slices, "calls": calls}

    def run(self, program: Program, host: Samples, lead: int, depth: int, *, align: bool) -> None:
        enqueue = self.wiring.loop.enqueue if self.wiring.loop else kernels.enqueue
        queue = self.wiring.queue if align else self.gpu.queue
        outcome = enqueue(program, host, lead, depth, queue, self.position)
        self.position = outcome.position
        if outcome.failed:
            raise MeasurementError(f"NCCL: {self.nccl.explain(outcome.failed)}", "NCCL_DEBUG=WARN says more")
        if outcome.driver:
            raise MeasurementError(f"CUDA driver error {outcome.driver}", "dmesg may hold an Xid of the GPU")

    def watch(self) -> None:
        self.nccl.watch(self.gpu.forget_graphs)

    @cached_property
    def _program(self) -> Program:
        return Program.of(self._calls, rows=self.layout.slices)

    def round_trip(self) -> Program:
        return self._program

    def window(self, depth: int) -> Program:
        if not self.is_pair or self.both_ways:
            return self._program
        if depth not in self._windows:
            a, b = truth.pair_of(self.point)
            first, peer = self.rank == a, a + b - self.rank
            answer = self.wiring.answer
            one_way = self._send(self.send, peer) if first else self._receive(self.receive, peer)
            back = self._receive(answer, peer, 1) if first else self._send(answer, peer, 1)
            self._windows[depth] = Program.of([one_way], [back], rows=self.layout.slices)
        return self._windows[depth]

    # -- nccl.h --------------------------------------------------------------------------------------------

    def _steps(self) -> list[Step]:
        """The calls of one collective on this rank: NCCL's function where this build has it, else messages."""
        point = self.point
        kind, redop, root = DTYPES[point.dtype], REDUCTIONS[point.redop or "sum"], point.root or 0
        buffers, end = (self.send, self.receive, point.block, kind), (self.nccl.handle, self.gpu.stream)
        if self.is_pair:
            return self._pair()
        name, more = {
            "allreduce": ("ncclAllReduce", (redop,)),
            "allgather": ("ncclAllGather", ()),
            "reduce_scatter": ("ncclReduceScatter", (redop,)),
            "broadcast": ("ncclBroadcast", (root,)),
            "reduce": ("ncclReduce", (redop, root)),
            "alltoall": ("ncclAlltoAll", ()),
            "gather": ("ncclGather", (root,)),
            "scatter": ("ncclScatter", (root,)),
        }.get(self.row.name, ("", ()))
        if name and self.nccl.has(name):
            return [self.nccl.step(name, *buffers, *more, *end)]
        self.is_grouped = True
        return self._group(self._messages())

    def _messages(self) -> list[Step]:
        """What NCCL before 2.28 has no function for, as messages of one group."""
        point, block, ranks, rank, root = self.point, self.point.block, self.point.ranks, self.rank, self.point.root
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        match self.row.name:
            case "alltoall":
                found = [self._send(self._at(self.send, peer * block), peer) for peer in range(ranks)]
                return found + [self._receive(self._at(self.receive, peer * block), peer) for peer in range(ranks)]
            case "alltoallv":
                sent, sent_at, got, got_at = (array.tolist() for array in vector_counts(point, rank))
                found = [self._send(self._at(self.send, sent_at[p]), p, sent[p]) for p in range(ranks) if sent[p]]
                return found + [
                    self._receive(self._at(self.receive, got_at[p]), p, got[p]) for p in range(ranks) if got[p]
                ]
            case "gather":
                # In place the root's own block is where it belongs.
                found = [] if rank == root and point.in_place else [self._send(self.send, root or 0)]
                others = [p for p in range(ranks) if rank == root and not (p == root and point.in_place)]
                return found + [self._receive(self._at(self.receive, p * block), p) for p in others]
            case "scatter":
                others = [p for p in range(ranks) if rank == root and not (p == root and point.in_place)]
                found = [self._send(self._at(self.send, p * block), p) for p in others]
                own = rank == root and point.in_place
                return found if own else [*found, self._receive(self.receive, root or 0)]
            case _:
                return [self._send(self.send, after), self._receive(self.receive, before)]

    def _pair(self) -> list[Step]:
        a, b = truth.pair_of(self.point)
        if self.rank not in (a, b):
            return []
        peer = a + b - self.rank
        ping, pong = self._send(self.send, peer), self._receive(self.receive, peer)
        if self.both_ways:
            return self._group([ping, pong])
        return [ping, pong] if self.rank == a else [pong, ping]

    def _group(self, messages: list[Step]) -> list[Step]:
        return [self.nccl.step("ncclGroupStart"), *messages, self.nccl.step("ncclGroupEnd")]

    def _send(self, buffer: Strided | int, peer: int, count: int | None = None) -> Step:
        return self._message("ncclSend", buffer, peer, count)

    def _receive(self, buffer: Strided | int, peer: int, count: int | None = None) -> Step:
        return self._message("ncclRecv", buffer, peer, count)

    def _message(self, name: str, buffer: Strided | int, peer: int, count: int | None) -> Step:
        kind, size = DTYPES[self.point.dtype], self.point.block if count is None else count
        return self.nccl.step(name, buffer, size, kind, peer, self.nccl.handle, self.gpu.stream)

    def _at(self, buffer: Strided, elements: int) -> Strided:
        return replace(buffer, start=buffer.start + elements * self.point.itemsize)
