"""The collectives through mpi4py's own methods: for machines without numba, and to show what Python costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commbench.backends import truth
from commbench.backends.buffered import BufferedCall
from commbench.backends.buffers import vector_counts
from commbench.backends.mpi_library import MpiLibrary

Body = tuple[Callable[[int], Any], Callable[[], Any] | None]

_MOST_SLICES = 4096
_WINDOW_TAG, _ANSWER_TAG = 7, 8


def body(call: BufferedCall, library: MpiLibrary, depth: int) -> Body:
    """(body, tail) of `base.host_loop` for one call."""
    pairs = [
        (_spec(call, library, k, "send"), _spec(call, library, k, "receive"))
        for k in range(min(call.layout.slices, _MOST_SLICES))
    ]
    if call.row.name == "p2p":
        return _round_trip(call, library, pairs) if depth == 1 else _window(call, library, pairs)
    mpi, comm, point = library.mpi, library.comm, call.point
    redop, root, count = getattr(mpi, (point.redop or "sum").upper()), point.root, len(pairs)
    is_root = call.rank == root
    if point.in_place and (not call.row.rooted or (is_root and call.row.name in ("reduce", "gather"))):
        pairs = [(mpi.IN_PLACE, receive) for _, receive in pairs]
    if point.in_place and is_root and call.row.name == "scatter":
        pairs = [(send, mpi.IN_PLACE) for send, _ in pairs]
    after, before = (call.rank + 1) % point.ranks, (call.rank - 1) % point.ranks
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "allreduce": lambda s, r: comm.Allreduce(s, r, redop),
        "allgather": comm.Allgather,
        "reduce_scatter": lambda s, r: comm.Reduce_scatter_block(s, r, redop),
        "alltoall": comm.Alltoall,
        "alltoallv": comm.Alltoallv,
        "broadcast": lambda _, r: comm.Bcast(r, root),
        "reduce": lambda s, r: comm.Reduce(s, r, redop, root),
        "gather": lambda s, r: comm.Gather(s, r, root),
        "scatter": lambda s, r: comm.Scatter(s, r, root),
        "sendrecv": lambda s, r: comm.Sendrecv(s, after, 0, r, before, 0),
    }
    one = calls[call.row.name]
    return (lambda position: one(*pairs[position % count])), None


def _round_trip(call: BufferedCall, library: MpiLibrary, pairs: list[tuple[Any, Any]]) -> Body:
    comm, count = library.comm, len(pairs)
    a, b = truth.pair_of(call.point)
    peer, first = a + b - call.rank, call.rank == a

    def exchange(position: int) -> None:
        send, receive = pairs[position % count]
        comm.Sendrecv(send, peer, 0, receive, peer, 0)

    def pingpong(position: int) -> None:
        send, receive = pairs[position % count]
        if first:
            comm.Send(send, peer, 0)
        comm.Recv(receive, peer, 0)
        if not first:
            comm.Send(send, peer, 0)

    return (exchange if call.both_ways else pingpong), None


def _window(call: BufferedCall, library: MpiLibrary, pairs: list[tuple[Any, Any]]) -> Body:
    mpi, comm, both, count = library.mpi, library.comm, call.both_ways, len(pairs)
    a, b = truth.pair_of(call.point)
    peer, first = a + b - call.rank, call.rank == a
    pending: list[Any] = []

    def post(position: int) -> None:
        send, receive = pairs[position % count]
        if both or not first:
            pending.append(comm.Irecv(receive, peer, _WINDOW_TAG))
        if both or first:
            pending.append(comm.Isend(send, peer, _WINDOW_TAG))

    def finish() -> None:
        mpi.Request.Waitall(pending)
        pending.clear()
        if both:
            return
        if first:
            comm.Recv([bytearray(1), 0, mpi.BYTE], peer, _ANSWER_TAG)
        else:
            comm.Send([b"", 0, mpi.BYTE], peer, _ANSWER_TAG)

    return post, finish


def _spec(call: BufferedCall, library: MpiLibrary, k: int, side: str) -> Any:
    """mpi4py's description of slice `k`: [array, count, type], per block where the call wants blocks."""
    point, row, kind = call.point, call.row, library.datatype(call.point)
    if side == "receive" and row.name in ("gather", "reduce") and call.rank != point.root:
        return None
    if side == "send" and row.name == "scatter" and call.rank != point.root:
        return None
    view = call.view(k, side)
    if point.op == "alltoallv":
        sent, sent_at, received, received_at = vector_counts(point, call.rank)
        return [view, (sent, sent_at) if side == "send" else (received, received_at), kind]
    if point.in_place and row.name == "reduce_scatter":
        # In place the receive buffer holds all blocks before, and one afterwards.
        view = call.arena.view(k * call.layout.stride, call.layout.send_bytes, point.dtype)
    return [view, point.block if row.splits else len(view), kind]
