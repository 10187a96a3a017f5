"""One copy at one point: the driver's copy functions by address, in the stream of the GPU that the data leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from commbench.backends import kernels, truth
from commbench.backends.base import Mismatch
from commbench.backends.buffers import Layout
from commbench.backends.endpoints import End, GpuEnd, HostEnd, PeerAccess
from commbench.backends.kernels import Program, Step, Strided
from commbench.errors import MeasurementError
from commbench.spec import Point
from commbench.stats import Samples

_KEPT = 64  # chunks whose host time is remembered


@dataclass(frozen=True, slots=True)
class Track:
    """Between what a copy goes.

    Attributes:
        path: which way, one of `routes.PATHS`.
        source, target: the endpoints.
        peers: gives and takes peer access.
        working: shared by all tracks, the GPUs of the one that was used last.
    """

    path: str
    source: End
    target: End
    peers: PeerAccess
    working: list[GpuEnd]

    @property
    def clock(self) -> GpuEnd:
        """The GPU whose stream and events time the copy: the source, or the one there is."""
        gpu = self.source if isinstance(self.source, GpuEnd) else self.target
        assert isinstance(gpu, GpuEnd)
        return gpu

    @property
    def ends(self) -> tuple[End, ...]:
        return (self.source,) if self.source is self.target else (self.source, self.target)

    def prepare(self) -> None:
        """Peer access as it must be."""
        self.working[:] = [end for end in self.ends if isinstance(end, GpuEnd)]
        if len(self.working) > 1:
            a, b = self.working
            if self.path == "staged":
                self.peers.deny((a.index, b.index))
            else:
                self.peers.allow((a.index, b.index))

    def synchronize(self) -> None:
        for end in self.ends:
            end.use()
            end.synchronize()


class CopyCall:
    """A copy from the send buffer of one endpoint to the receive buffer of the other, or both at once.

    Between GPUs and from or to page-locked memory a sample lasts from event to event. Both ways it lasts from the
    first start to the last end: a second stream, of the other GPU where there is one, begins at an event of the
    first and ends with one that the first waits for. Copies of pageable memory occupy the host, which copies into
    and out of the driver's own buffers: their samples are the host's, until the stream is done.
    """

    batch = 0

    def __init__(self, track: Track, layout: Layout, point: Point, loop: kernels.CompiledLoop | None) -> None:
        self.track, self.layout, self.point, self.loop = track, layout, point, loop
        self.position = 0
        self.both_ways = point.option("bidirectional") is not None
        self.by_host = any(isinstance(end, HostEnd) and end.kind == "pageable" for end in track.ends)
        # For inputs and answers the endpoints are ranks 0 and 1, whatever their numbers.
        self._plain = replace(point, variant="pair=0,1")
        self._checked = 0
        self._windows: dict[int, Program] = {}
        self._host: list[float] = []

    @property
    def how(self) -> Mapping[str, Any]:
        facts: dict[str, Any] = {
            "loop": "compiled" if self.loop else "python",
            "slices": self.layout.slices,
            "calls": self._name(self.track.source, self.track.target).removesuffix("_v2"),
            "clock": "host" if self.by_host else "cuda events",
        }
        return facts | ({"host_seconds": float(np.median(self._host))} if self._host else {})

    # -- base.Call -----------------------------------------------------------------------------------------

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:
        self._timed(self._window(1) if self.both_ways else self._one_way, out, lead, batch)

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        if not self.both_ways:
            self.sync(out, lead, depth)
            return
        self._timed(self._window(depth), out, lead, 1)
        out /= depth

    def graph(self, depth: int, out: Samples, lead: int) -> None:
        raise NotImplementedError  # not in CAPABILITIES.modes

    def once(self) -> None:
        self.sync(np.empty(1), 0)

    def refill(self) -> None:
        self._checked = self.position % self.layout.slices
        for sender, (source, target) in enumerate(self._directions()):
            target.use()
            self._view(target, "receive").fill(truth.POISON)
            source.use()
            truth.fill(self._view(source, "send"), truth.inputs(self._plain, sender), source.arena.load)
        self.track.synchronize()

    def check(self) -> Mismatch | None:
        for sender, (_, target) in enumerate(self._directions()):
            target.use()
            answers = truth.answers(self._plain, 1 - sender)
            wrong = truth.first_difference(self._plain, self._view(target, "receive"), answers, target.arena.load)
            if wrong is not None:
                return Mismatch(1 - sender, *wrong, where=str(target))
        return None

    def settle(self) -> None:
        """Nothing to do: what is sent is never written to, however often it is copied."""

    # -- what is enqueued ----------------------------------------------------------------------------------

    def _timed(self, program: Program, out: Samples, lead: int, depth: int) -> None:
        host, gpu = np.empty(len(out)), self.track.clock
        self.track.prepare()
        gpu.use()
        queue = gpu.queue if self.by_host else replace(gpu.queue, align=gpu.busy)
        enqueue = self.loop.enqueue if self.loop else kernels.enqueue
        outcome = enqueue(program, host, lead, depth, queue, self.position)
        self.position = outcome.position
        if code := outcome.failed or outcome.driver:
            raise MeasurementError(
                f"CUDA driver error {code} in a copy from {self.track.source} to {self.track.target}",
                "dmesg may hold an Xid of the GPU",
            )
        gpu.wait()
        if self.by_host:
            out[:] = host
        else:
            gpu.elapsed(out)
            out /= depth
        self._host = [*self._host[1 - _KEPT :], float(np.median(host))]

    @cached_property
    def _one_way(self) -> Program:
        """The program of one copy; of pageable memory with the end of the stream after the last."""
        stream = self.track.clock.stream
        wait = [(self._function("cuStreamSynchronize"), (stream,))] if self.by_host else []
        copy = self._copy(self.track.source, self.track.target, stream, Strided)
        return Program.of([copy], wait, rows=self.layout.slices)

    def _window(self, depth: int) -> Program:
        """The program of `depth` copies each way, of two streams that begin and end together.

        One call holds all of them, since they share a beginning and an end; row k starts at slice k.
        """
        if depth in self._windows:
            return self._windows[depth]
        first, (source, target) = self.track.clock, (self.track.source, self.track.target)
        other = target if isinstance(target, GpuEnd) and target is not first else first
        stream = other.stream if other is not first else first.back
        record, wait = self._function("cuEventRecord"), self._function("cuStreamWaitEvent")
        begin: list[Step] = [(record, (first.fork, first.stream)), (wait, (stream, first.fork, 0))]
        end: list[Step] = [(record, (other.join, stream)), (wait, (first.stream, other.join, 0))]
        rows = []
        for row in range(self.layout.slices):
            copies: list[Step] = []
            for k in range(depth):
                at = _Fixed((row + k) % self.layout.slices)
                copies += [self._copy(source, target, first.stream, at), self._copy(target, source, stream, at)]
            rows.append(Program.of([*begin, *copies, *end]))
        arguments = np.concatenate([row.arguments for row in rows])
        self._windows[depth] = replace(rows[0], arguments=np.ascontiguousarray(arguments))
        return self._windows[depth]

    def _copy(self, source: End, target: End, stream: int, at: Any) -> Step:
        """cuda.h, "Memory Management": the target first, then the source, bytes, stream."""
        layout, size = self.layout, self.point.bytes
        to = at(target.arena.address + layout.receive, layout.stride, layout.slices)
        sent = at(source.arena.address + layout.send, layout.stride, layout.slices)
        name = self._name(source, target)
        if isinstance(source, GpuEnd) and isinstance(target, GpuEnd) and source is not target:
            return self._function(name), (to, target.context, sent, source.context, size, stream)
        return self._function(name), (to, sent, size, stream)

    @staticmethod
    def _name(source: End, target: End) -> str:
        if source is target:
            return "cuMemcpyDtoDAsync_v2"
        if isinstance(source, HostEnd):
            return "cuMemcpyHtoDAsync_v2"
        return "cuMemcpyDtoHAsync_v2" if isinstance(target, HostEnd) else "cuMemcpyPeerAsync"

    def _function(self, name: str) -> int:
        return kernels.address_of(self.track.clock.driver, name)

    # -- buffers -------------------------------------------------------------------------------------------

    def _directions(self) -> Iterator[tuple[End, End]]:
        yield self.track.source, self.track.target
        if self.both_ways:
            yield self.track.target, self.track.source

    def _view(self, end: End, side: str) -> truth.Array:
        at = self.layout
        offset, size = (at.send, at.send_bytes) if side == "send" else (at.receive, at.receive_bytes)
        return end.arena.view(self._checked * at.stride + offset, size, self.point.dtype)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Where `Strided` takes a slice a row, this takes one of them for all."""

    slice: int

    def __call__(self, start: int, stride: int, _every: int) -> int:
        return start + self.slice * stride
