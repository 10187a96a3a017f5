"""Gloo through torch.distributed, in plain Python: the hand-over to its worker thread dwarfs Python's share."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from commbench.backends import truth
from commbench.backends.base import Calibration, Call, World, calibrate_host_clock, host_loop
from commbench.backends.buffers import Arena, Layout, layout_of
from commbench.backends.host import HostCall
from commbench.errors import LaunchError, UnavailableError
from commbench.ops import DTYPES
from commbench.spec import Capabilities, Point
from commbench.stats import Samples

_ALL = frozenset(DTYPES)
_FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})

# torch.distributed has these in one form only: all_reduce, broadcast and reduce work on their argument.
CAPABILITIES = Capabilities(
    forms={
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
    },
    moves=_ALL,
    reduces={**dict.fromkeys(("sum", "prod", "min", "max"), _ALL), "avg": _FLOATS},
)

_MOST_SLICES = 1024
_REDUCTIONS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}


def start(world: World, init_timeout: float) -> Any:
    """Join the default Gloo group and return torch.distributed.

    Raises:
        UnavailableError: torch is missing.
        LaunchError: the ranks did not meet within `init_timeout` seconds.
    """
    try:
        import torch.distributed as dist  # noqa: PLC0415 - loading torch is what this function is for
    except ImportError as error:
        raise UnavailableError(f"torch cannot be imported: {error}", "pip install 'commbench[torch]'") from error
    if dist.is_initialized():
        return dist
    where = f"tcp://{world.address}:{world.port}"
    # Under torchrun its agent already serves the store at that address: env:// knows.
    method = "env://" if world.launcher == "torchrun" else where
    try:
        dist.init_process_group(
            "gloo", init_method=method, rank=world.rank, world_size=world.size, timeout=timedelta(seconds=init_timeout)
        )
    except (RuntimeError, ValueError, OSError) as error:
        first = str(error).splitlines()[0]
        raise LaunchError(
            f"rank {world.rank} of {world.size} could not join the others at {world.address}:{world.port}: {first}",
            "is every rank running, and the address reachable? --init-timeout gives them longer",
        ) from error
    return dist


class GlooBackend:
    """torch.distributed's default group."""

    def __init__(self, world: World, init_timeout: float, cache_bytes: int) -> None:
        self.dist = start(world, init_timeout)
        import torch  # noqa: PLC0415

        self.torch = torch
        self.rank = world.rank
        self.arena = Arena()
        self.cache_bytes = cache_bytes
        # One barrier of torch is a rendezvous through the store the first time: not in a timed loop.
        self.dist.barrier()

    def reserve(self, points: Sequence[Point]) -> None:
        self.arena.reserve(max((self.layout(point).total for point in points), default=0))

    def layout(self, point: Point) -> Layout:
        return layout_of(point, self.rank, self.cache_bytes, _MOST_SLICES, output_at_own_block=True)

    def prepare(self, point: Point) -> Call:
        return GlooCall(self, point)

    def libraries(self) -> dict[str, str]:
        found = {"torch": self.torch.__version__, "gloo": f"with torch {self.torch.__version__}"}
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            found["gloo_interface"] = interface
        return found

    def calibrate(self) -> Calibration:
        return calibrate_host_clock()

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        self.dist.destroy_process_group()


class GlooCall(HostCall):
    """One collective on views of the arena as torch tensors."""

    def __init__(self, backend: GlooBackend, point: Point) -> None:
        super().__init__(backend.arena, backend.layout(point), point, backend.rank)
        self.backend = backend
        self.tensors = [(self._tensor(k, "send"), self._tensor(k, "receive")) for k in range(self.layout.slices)]
        self.call = self._collective()
        self._answer = backend.torch.zeros(1, dtype=backend.torch.uint8)
        self.how = {"loop": "python", "slices": self.layout.slices}

    def time(self, out: Samples, lead: int, depth: int) -> None:
        if self.row.name == "p2p":
            self._time_pair(out, lead, depth)
            return
        tensors, count, call = self.tensors, len(self.tensors), self.call

        def body(position: int) -> None:
            call(*tensors[position % count])

        self.position = host_loop(out, lead, depth, 1.0, self.backend.dist.barrier, body, None, self.position)

    def _collective(self) -> Callable[[Any, Any], Any]:
        """The collective as a function of (send tensor, receive tensor)."""
        dist, point, ranks, rank = self.backend.dist, self.point, self.point.ranks, self.rank
        op = getattr(dist.ReduceOp, _REDUCTIONS[point.redop or "sum"])
        # torch renamed these in 2.13 and warns about the old names, which older versions know alone.
        gather_all = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter_sum = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        counts = truth.block_counts(point) if point.op == "alltoallv" else None
        received = [counts[rank]] * ranks if counts else None
        is_root, root = rank == point.root, point.root
        blocks = {
            id(whole): list(whole.chunk(ranks))
            for pair in self.tensors
            for whole in pair
            if self.row.name in ("gather", "scatter") and is_root and len(whole)
        }
        after, before = (rank + 1) % ranks, (rank - 1) % ranks

        def shift(send: Any, receive: Any) -> None:
            pending = [dist.irecv(receive, before), dist.isend(send, after)]
            for work in pending:
                work.wait()

        calls: dict[str, Callable[[Any, Any], Any]] = {
            "allreduce": lambda _, r: dist.all_reduce(r, op),
            "allgather": lambda s, r: gather_all(r, s),
            "reduce_scatter": lambda s, r: scatter_sum(r, s, op),
            "alltoall": lambda s, r: dist.all_to_all_single(r, s),
            "alltoallv": lambda s, r: dist.all_to_all_single(r, s, received, counts),
            "broadcast": lambda _, r: dist.broadcast(r, root),
            "reduce": lambda s, r: dist.reduce(r if is_root else s, root, op),
            "gather": lambda s, r: dist.gather(s, blocks[id(r)] if is_root else None, root),
            "scatter": lambda s, r: dist.scatter(r, blocks[id(s)] if is_root else None, root),
            "sendrecv": shift,
            "p2p": shift,
        }
        return calls[self.row.name]

    def _time_pair(self, out: Samples, lead: int, depth: int) -> None:
        """Half a round trip; or a window of `depth` messages and one answer; or both directions at once."""
        a, b = truth.pair_of(self.point)
        if self.rank not in (a, b):
            out.fill(0.0)
            return
        peer, first = a + b - self.rank, self.rank == a
        one_way = depth == 1 and not self.both_ways
        body, tail = (self._pingpong(peer, first=first), None) if one_way else self._window(peer, first=first)
        self.position = host_loop(out, lead, depth, self.share_of_clock(depth), None, body, tail, self.position)

    def _pingpong(self, peer: int, *, first: bool) -> Callable[[int], None]:
        dist, tensors, count = self.backend.dist, self.tensors, len(self.tensors)

        def body(position: int) -> None:
            send, receive = tensors[position % count]
            if first:
                dist.send(send, peer)
            dist.recv(receive, peer)
            if not first:
                dist.send(send, peer)

        return body

    def _window(self, peer: int, *, first: bool) -> tuple[Callable[[int], None], Callable[[], None]]:
        dist, tensors, count, both = self.backend.dist, self.tensors, len(self.tensors), self.both_ways
        pending: list[Any] = []

        def post(position: int) -> None:
            send, receive = tensors[position % count]
            if both or not first:
                pending.append(dist.irecv(receive, peer))
            if both or first:
                pending.append(dist.isend(send, peer))

        def finish() -> None:
            for work in pending:
                work.wait()
            pending.clear()
            if both:
                return
            if first:
                dist.recv(self._answer, peer)
            else:
                dist.send(self._answer, peer)

        return post, finish

    def _tensor(self, k: int, side: str) -> Any:
        torch = self.backend.torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about an empty array that it may not write to
            whole = torch.from_numpy(self.view(k, side))
        return whole.view(torch.bfloat16) if self.point.dtype == "bfloat16" else whole
