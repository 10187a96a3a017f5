"""The collectives of torch.distributed as functions of tensors, for every group it can make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.backends import truth
from commbench.ops import OPERATIONS
from commbench.spec import Point

Collective = Callable[[Any, Any], Any]
Body = tuple[Callable[[int], None], Callable[[], None] | None]
Tensors = Sequence[tuple[Any, Any]]

# torch.distributed has these in one form only: all_reduce, broadcast and reduce work on their argument.
FORMS: dict[str, tuple[bool, ...]] = {
    "allreduce": (True,),
    "allgather": (False, True),
    "reduce_scatter": (False,),
    "alltoall": (False,),
    "alltoallv": (False,),
    "broadcast": (True,),
    "reduce": (True,),
    "gather": (False,),
    "scatter": (False,),
    "sendrecv": (False,),
    "p2p": (False,),
}

_REDUCTIONS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}


def collective(dist: Any, group: Any, point: Point, rank: int, tensors: Tensors, *, together: bool) -> Collective:
    """The operation of `point` as a function of (send tensor, receive tensor).

    Args:
        dist: torch.distributed.
        group: the process group, None for the default one.
        point: what is measured.
        rank: this one, in the group as in the world.
        tensors: every (send, receive) that the function will be given: their blocks are cut here, not in a timed loop.
        together: send and receive as one group. NCCL needs it: it would run them one after the other, and two ranks
            that both receive first would wait for ever.
    """
    ranks, root, name = point.ranks, point.root, OPERATIONS[point.op].name
    op = getattr(dist.ReduceOp, _REDUCTIONS[point.redop or "sum"])
    # torch renamed these in 2.13 and warns about the old names, which older versions know alone.
    gather_all = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter_sum = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    counts = truth.block_counts(point) if point.op == "alltoallv" else None
    received = [counts[rank]] * ranks if counts else None
    is_root = rank == root
    blocks = {
        id(whole): list(whole.chunk(ranks))
        for pair in tensors
        for whole in pair
        if name in ("gather", "scatter") and is_root and len(whole)
    }
    after, before = (rank + 1) % ranks, (rank - 1) % ranks

    def shift(send: Any, receive: Any) -> None:
        exchange(dist, group, (send, after), (receive, before), together=together)

    calls: dict[str, Collective] = {
        "allreduce": lambda _, r: dist.all_reduce(r, op, group),
        "allgather": lambda s, r: gather_all(r, s, group),
        "reduce_scatter": lambda s, r: scatter_sum(r, s, op, group),
        "alltoall": lambda s, r: dist.all_to_all_single(r, s, group=group),
        "alltoallv": lambda s, r: dist.all_to_all_single(r, s, received, counts, group),
        "broadcast": lambda _, r: dist.broadcast(r, root, group),
        "reduce": lambda s, r: dist.reduce(r if is_root else s, root, op, group),
        "gather": lambda s, r: dist.gather(s, blocks[id(r)] if is_root else None, root, group),
        "scatter": lambda s, r: dist.scatter(r, blocks[id(s)] if is_root else None, root, group),
        "sendrecv": shift,
        "p2p": shift,
    }
    return calls[name]


def exchange(dist: Any, group: Any, send: tuple[Any, int], receive: tuple[Any, int], *, together: bool) -> None:
    """Send (tensor, to) and receive (tensor, from) at once."""
    if together:
        messages = [dist.P2POp(dist.irecv, *receive, group), dist.P2POp(dist.isend, *send, group)]
        pending = dist.batch_isend_irecv(messages)
    else:
        pending = [dist.irecv(*receive, group), dist.isend(*send, group)]
    for work in pending:
        work.wait()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks that talk, from the side of one of them: `first` begins.

    Attributes:
        answer: a tensor of one element, for what is only waited for.
        peer: the other rank.
    """

    dist: Any
    group: Any
    tensors: Tensors
    answer: Any
    peer: int
    first: bool

    def round_trip(self) -> Body:
        """There and back."""
        send_to, receive_from, tensors, count = self.dist.send, self.dist.recv, self.tensors, len(self.tensors)
        first, peer, group = self.first, self.peer, self.group

        def body(position: int) -> None:
            send, receive = tensors[position % count]
            if first:
                send_to(send, peer, group)
            receive_from(receive, peer, group)
            if not first:
                send_to(send, peer, group)

        return body, None

    def exchange(self) -> Body:
        """Both directions at once, each message of one with one of the other."""
        dist, group, tensors, count, peer = self.dist, self.group, self.tensors, len(self.tensors), self.peer

        def body(position: int) -> None:
            send, receive = tensors[position % count]
            exchange(dist, group, (send, peer), (receive, peer), together=True)

        return body, None

    def window(self, *, both: bool = False) -> Body:
        """As many messages as are posted before `tail` waits for them: one way with one answer, or `both` ways."""
        dist, group, tensors, count, peer = self.dist, self.group, self.tensors, len(self.tensors), self.peer
        pending: list[Any] = []

        def post(position: int) -> None:
            send, receive = tensors[position % count]
            if both or not self.first:
                pending.append(dist.irecv(receive, peer, group))
            if both or self.first:
                pending.append(dist.isend(send, peer, group))

        def finish() -> None:
            for work in pending:
                work.wait()
            pending.clear()
            if both:
                return
            if self.first:
                dist.recv(self.answer, peer, group)
            else:
                dist.send(self.answer, peer, group)

        return post, finish
