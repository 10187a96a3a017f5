"""One MPI collective at one point, as calls of libmpi's C functions by address; `mpi_python` is the fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from commbench.backends import kernels, mpi_python, truth
from commbench.backends.base import host_loop
from commbench.backends.buffered import BufferedCall
from commbench.backends.buffers import Arena, Layout, vector_counts
from commbench.backends.mpi_library import MpiLibrary
from commbench.errors import UnavailableError
from commbench.spec import Point
from commbench.stats import Samples

_LARGEST_COUNT = (1 << 31) - 1
_WINDOW_TAG, _ANSWER_TAG = 7, 8
_STATUSES = 2 * 64 * 8  # 64-bit words: both directions of the deepest window, 40 bytes at most each


class MpiCall(BufferedCall):
    """Bound to the arena's slices."""

    def __init__(self, library: MpiLibrary, arena: Arena, layout: Layout, point: Point, rank: int) -> None:
        super().__init__(arena, layout, point, rank)
        self.library = library
        if point.block * (point.ranks if self.row.splits else 1) > _LARGEST_COUNT:
            raise UnavailableError(
                f"{point.op}: {point.bytes} bytes of {point.dtype} are more elements than an MPI count holds",
                "use a wider --dtype",
            )
        self._programs: dict[int, kernels.Program] = {}
        self._bodies: dict[int, tuple[Callable[[int], Any], Callable[[], Any] | None]] = {}
        self._statuses = np.zeros(_STATUSES, dtype=np.int64)
        self.how = {"loop": "python" if library.compiled is None else "compiled", "slices": self.layout.slices}

    def time(self, out: Samples, lead: int, depth: int) -> None:
        pair = self.row.name == "p2p"
        if pair and self.rank not in truth.pair_of(self.point):
            out.fill(0.0)
            return
        scale = self.share_of_clock(depth) if pair else 1.0
        # Ping-pong aligns itself: an answer cannot leave before the question came.
        if self.library.compiled is None:
            body, tail = self._bodies.get(depth) or self._bodies.setdefault(
                depth, mpi_python.body(self, self.library, depth)
            )
            barrier = None if pair else self.library.comm.Barrier
            self.position = host_loop(out, lead, depth, scale, barrier, body, tail, self.position)
            return
        program = self._programs.get(depth) or self._programs.setdefault(depth, self._program(depth))
        step = None if pair else self.library.step("MPI_Barrier", self.library.comm)
        self.position = self.library.compiled.run(program, out, lead, depth, scale, step, self.position)

    # What a call does whose data do not lie where MPI reads and writes them: see `mpi_cuda`.

    def buffers(self) -> tuple[Any, Any]:
        """Where MPI finds what is sent, and puts what is received."""
        return self.slices()

    def before(self) -> list[kernels.Step]:
        """What brings the data to be sent there."""
        return []

    def after(self) -> list[kernels.Step]:
        """What takes the received data from there."""
        return []

    def slices(self) -> tuple[kernels.Strided, kernels.Strided]:
        """The send and the receive buffer, slice after slice."""
        at, base = self.layout, self.arena.address
        return (
            kernels.Strided(base + at.send, at.stride, at.slices),
            kernels.Strided(base + at.receive, at.stride, at.slices),
        )

    def _program(self, depth: int) -> kernels.Program:
        send, receive = self.buffers()
        if self.row.name != "p2p":
            return self._collective(send, receive)
        return self._round_trip(send, receive) if depth == 1 else self._window(depth, send, receive)

    def _collective(self, send: Any, receive: Any) -> kernels.Program:
        mpi, comm, point = self.library.mpi, self.library.comm, self.point
        kind, block, root, ranks = self.library.datatype(point), point.block, point.root, point.ranks
        redop = getattr(mpi, (point.redop or "sum").upper())
        here = _signed(int(mpi.IN_PLACE))
        own: Any = here if point.in_place else send
        own_at_root: Any = here if point.in_place and self.rank == root else send
        target: Any = here if point.in_place and self.rank == root else receive
        after, before = (self.rank + 1) % ranks, (self.rank - 1) % ranks
        counts = vector_counts(point, self.rank) if point.op == "alltoallv" else ()
        sizes = [array.ctypes.data for array in counts] or [0, 0, 0, 0]
        name, arguments = {
            "allreduce": ("MPI_Allreduce", (own, receive, block, kind, redop, comm)),
            "allgather": ("MPI_Allgather", (own, block, kind, receive, block, kind, comm)),
            "reduce_scatter": ("MPI_Reduce_scatter_block", (own, receive, block, kind, redop, comm)),
            "alltoall": ("MPI_Alltoall", (own, block, kind, receive, block, kind, comm)),
            "alltoallv": ("MPI_Alltoallv", (send, *sizes[:2], kind, receive, *sizes[2:], kind, comm)),
            "broadcast": ("MPI_Bcast", (receive, block, kind, root, comm)),
            "reduce": ("MPI_Reduce", (own_at_root, receive, block, kind, redop, root, comm)),
            "gather": ("MPI_Gather", (own_at_root, block, kind, receive, block, kind, root, comm)),
            "scatter": ("MPI_Scatter", (send, block, kind, target, block, kind, root, comm)),
            "sendrecv": (
                "MPI_Sendrecv",
                (send, block, kind, after, 0, receive, block, kind, before, 0, comm, self._statuses.ctypes.data),
            ),
        }[self.row.name]
        steps = [*self.before(), self.library.step(name, *arguments), *self.after()]
        return kernels.Program.of(steps, rows=self.layout.slices, keep=counts)

    def _round_trip(self, send: Any, receive: Any) -> kernels.Program:
        """Ping-pong, or an exchange when both ways."""
        step, comm, ignore = self.library.step, self.library.comm, self._statuses.ctypes.data
        kind, block = self.library.datatype(self.point), self.point.block
        a, b = truth.pair_of(self.point)
        peer = a + b - self.rank
        if self.both_ways:
            both = step("MPI_Sendrecv", send, block, kind, peer, 0, receive, block, kind, peer, 0, comm, ignore)
            steps = [*self.before(), both, *self.after()]
        else:
            ping = [*self.before(), step("MPI_Send", send, block, kind, peer, 0, comm)]
            pong = [step("MPI_Recv", receive, block, kind, peer, 0, comm, ignore), *self.after()]
            steps = ping + pong if self.rank == a else pong + ping
        return kernels.Program.of(steps, rows=self.layout.slices)

    def _window(self, depth: int, send: Any, receive: Any) -> kernels.Program:
        """`depth` messages in flight and one empty answer; both ways, each side waits for all of its own."""
        step, comm, statuses = self.library.step, self.library.comm, self._statuses.ctypes.data
        kind, block = self.library.datatype(self.point), self.point.block
        a, b = truth.pair_of(self.point)
        peer, first = a + b - self.rank, self.rank == a
        requests = np.zeros(2 * depth, dtype=np.int64)
        size = int(self.library.mpi._sizeof(self.library.mpi.Request))  # noqa: SLF001 - as _handleof
        slots = [kernels.Strided(requests.ctypes.data + half * depth * size, size, depth) for half in range(2)]
        gets = step("MPI_Irecv", receive, block, kind, peer, _WINDOW_TAG, comm, slots[0])
        puts = step("MPI_Isend", send, block, kind, peer, _WINDOW_TAG, comm, slots[1 if self.both_ways else 0])
        wait = step("MPI_Waitall", 2 * depth if self.both_ways else depth, requests.ctypes.data, statuses)
        nothing = requests.ctypes.data, 0, kind, peer, _ANSWER_TAG, comm
        answer = step("MPI_Recv", *nothing, statuses) if first else step("MPI_Send", *nothing)
        body = [gets, puts] if self.both_ways else [puts if first else gets]
        tail = [wait] if self.both_ways else [wait, answer]
        rows = int(np.lcm(depth, self.layout.slices))
        return kernels.Program.of(body, tail, rows=rows, keep=[requests])


def _signed(word: int) -> int:
    """A pointer as the signed 64-bit number that the kernel's arguments are."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >= 1 << 63 else word
