"""Gloo through torch.distributed, in plain Python: the hand-over to its worker thread dwarfs Python's share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from commbench.backends import truth
from commbench.backends.base import Calibration, Call, HostBackend, World, calibrate_host_clock, host_loop
from commbench.backends.buffered import BufferedCall
from commbench.backends.buffers import Arena, Layout, layout_of
from commbench.backends.torch_collectives import FORMS, Pair, collective
from commbench.errors import LaunchError, UnavailableError
from commbench.spec import ANY_REDUCTION, ANY_TYPE, Capabilities, Point
from commbench.stats import Samples

CAPABILITIES = Capabilities(
    forms=FORMS,
    moves=ANY_TYPE,
    reduces=ANY_REDUCTION,
)

_MOST_SLICES = 1024


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


class GlooBackend(HostBackend):
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

    def close(self) -> None:
        self.dist.destroy_process_group()


class GlooCall(BufferedCall):
    """One collective on views of the arena as torch tensors."""

    def __init__(self, backend: GlooBackend, point: Point) -> None:
        super().__init__(backend.arena, backend.layout(point), point, backend.rank)
        self.backend = backend
        self.tensors = [(self._tensor(k, "send"), self._tensor(k, "receive")) for k in range(self.layout.slices)]
        self.call = collective(backend.dist, None, point, self.rank, self.tensors, together=False)
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

    def _time_pair(self, out: Samples, lead: int, depth: int) -> None:
        """Half a round trip; or a window of `depth` messages and one answer; or both directions at once."""
        a, b = truth.pair_of(self.point)
        if self.rank not in (a, b):
            out.fill(0.0)
            return
        pair = Pair(self.backend.dist, None, self.tensors, self._answer, a + b - self.rank, first=self.rank == a)
        one_way = depth == 1 and not self.both_ways
        body, tail = pair.round_trip() if one_way else pair.window(both=self.both_ways)
        self.position = host_loop(out, lead, depth, self.share_of_clock(depth), None, body, tail, self.position)

    def _tensor(self, k: int, side: str) -> Any:
        torch = self.backend.torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about an empty array that it may not write to
            whole = torch.from_numpy(self.view(k, side))
        return whole.view(torch.bfloat16) if self.point.dtype == "bfloat16" else whole
