"""What calls on host memory share, with a collective of one rank: a copy from input to output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commbench.backends.base import Mismatch
from commbench.backends.buffered import BufferedCall
from commbench.backends.buffers import Arena, layout_of
from commbench.spec import Point
from commbench.stats import Samples


class Copy(BufferedCall):
    """Each call copies the input of its slice to the output, as an all-reduce of one rank does."""

    def __init__(self, point: Point, cache_bytes: int = 0) -> None:
        layout = layout_of(point, 0, cache_bytes, 1 << 18, output_at_own_block=False)
        arena = Arena()
        arena.reserve(layout.total)
        super().__init__(arena, layout, point, 0)
        self.spoiled: int | None = None

    def time(self, out: Samples, lead: int, depth: int) -> None:
        for _ in range((lead + len(out)) * depth):
            k = self.position % self.layout.slices
            self.view(k, "receive")[:] = self.view(k, "send")
            if self.spoiled is not None:
                self.view(k, "receive")[self.spoiled] += 1
            self.position += 1
        out.fill(1e-6)


@pytest.fixture
def copy(point: Any) -> Copy:
    return Copy(point(4000, in_place=False, ranks=1))


def test_a_right_answer_is_none(copy: Copy) -> None:
    copy.refill()
    copy.once()

    assert copy.check() is None


def test_a_wrong_element_is_named(copy: Copy) -> None:
    copy.refill()
    right = float(copy.view(0, "send")[17])
    copy.spoiled = 17
    copy.once()

    wrong = copy.check()
    assert wrong == Mismatch(0, 17, right, right + 1)
    assert str(wrong) == f"rank 0: element 17 is {right + 1:g}, expected {right:g}"


def test_an_answer_that_never_came_is_wrong(copy: Copy) -> None:
    copy.refill()

    assert copy.check() is not None


def test_the_slice_that_is_checked_is_the_one_the_next_call_uses(point: Any) -> None:
    rotated = Copy(point(8, in_place=False, ranks=1, cache="rotated"), cache_bytes=512)
    assert rotated.layout.slices == 4
    for _ in range(6):
        rotated.refill()
        rotated.once()
        assert rotated.check() is None
        rotated.settle()
    assert rotated.position == 6


def test_settling_leaves_the_fixed_point_everywhere(point: Any) -> None:
    product = Copy(point(8, in_place=False, ranks=1, redop="prod", cache="rotated"), cache_bytes=512)
    product.refill()
    product.settle()

    assert {value for k in range(4) for value in product.view(k, "send").tolist()} == {1.0}


def test_sync_times_single_calls_and_pipe_batches(copy: Copy) -> None:
    copy.sync(np.empty(5), 3)
    assert copy.position == 8
    copy.pipe(4, np.empty(5), 3)
    assert copy.position == 8 + 4 * 8


@pytest.mark.parametrize(
    ("variant", "rank", "depth", "share"),
    [
        ("pair=0,1", 0, 1, 0.5),  # half a round trip, on the rank that began it
        ("pair=0,1", 1, 1, 0.0),
        ("pair=1,0", 1, 1, 0.5),
        ("pair=0,1", 0, 8, 1.0),  # a window goes one way
        ("pair=0,1", 1, 8, 0.0),
        ("pair=0,1;bidirectional", 0, 1, 1.0),  # both at once: each rank's own time
        ("pair=0,1;bidirectional", 1, 8, 1.0),
    ],
)
def test_of_two_ranks_one_clock_counts(variant: str, rank: int, depth: int, share: float, point: Any) -> None:
    p2p = point(8, op="p2p", redop=None, in_place=False, ranks=2, variant=variant)
    call = BufferedCall(Arena(), layout_of(p2p, rank, 0, 1, output_at_own_block=False), p2p, rank)

    assert call.share_of_clock(depth) == share
