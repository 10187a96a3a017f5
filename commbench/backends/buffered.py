"""What every call shares, on hosts and GPUs: its slices of the arena, filling them, and checking the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commbench.backends import truth
from commbench.backends.base import Mismatch
from commbench.backends.buffers import Arena, Layout
from commbench.ops import OPERATIONS
from commbench.spec import Point
from commbench.stats import Samples


class BufferedCall:
    """The part of `base.Call` that does not depend on the library.

    Attributes:
        position: calls made so far; the next one uses slice `position mod slices`.
    """

    how: Mapping[str, Any]
    batch = 0

    def __init__(self, arena: Arena, layout: Layout, point: Point, rank: int) -> None:
        self.arena, self.layout, self.point, self.rank = arena, layout, point, rank
        self.row = OPERATIONS[point.op]
        self.position = 0
        self._checked = 0

    def time(self, out: Samples, lead: int, depth: int) -> None:
        """Time `len(out)` batches of `depth` calls: what `sync` and `pipe` differ in."""
        raise NotImplementedError

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:
        self.time(out, lead, batch)

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        self.time(out, lead, depth)

    def graph(self, depth: int, out: Samples, lead: int) -> None:
        raise NotImplementedError  # only where a stream can be captured

    def once(self) -> None:
        self.time(np.empty(1), 0, 1)

    def view(self, k: int, side: str) -> truth.Array:
        """The "send" or "receive" buffer in slice `k`."""
        at = self.layout
        offset, size = (at.send, at.send_bytes) if side == "send" else (at.receive, at.receive_bytes)
        return self.arena.view(k * at.stride + offset, size, self.point.dtype)

    def refill(self) -> None:
        self._checked = self.position % self.layout.slices
        self.view(self._checked, "receive").fill(truth.POISON)
        truth.fill(self.view(self._checked, "send"), truth.inputs(self.point, self.rank), self.arena.load)

    def check(self) -> Mismatch | None:
        answers, received = truth.answers(self.point, self.rank), self.view(self._checked, "receive")
        wrong = truth.first_difference(self.point, received, answers, self.arena.load)
        return None if wrong is None else Mismatch(self.rank, *wrong)

    def settle(self) -> None:
        self.arena.fill(self.layout, self.point.dtype, truth.fixed_point(self.point))

    # -- two ranks -----------------------------------------------------------------------------------------

    @property
    def both_ways(self) -> bool:
        return self.point.option("bidirectional") is not None

    def share_of_clock(self, depth: int) -> float:
        """What this rank's clock counts for in p2p: half a round trip on rank a, nothing on rank b.

        A window of messages is one way already; in both directions at once each rank's own time counts.
        """
        if self.both_ways:
            return 1.0
        if self.rank == truth.pair_of(self.point)[1]:
            return 0.0
        return 0.5 if depth == 1 else 1.0
