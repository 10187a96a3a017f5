"""Where buffers lie: offsets worked out by hand, and what holds for every operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.backends.buffers import Arena, Layout, bytes_needed, layout_of, vector_counts
from commbench.ops import DTYPES, OPERATIONS
from commbench.spec import Point

MIB = 1 << 20


def layout(point: Point, rank: int = 0, cache: int = MIB, most: int = 1 << 18, *, own: bool = False) -> Layout:
    return layout_of(point, rank, cache, most, output_at_own_block=own)


def plain(at: Layout) -> tuple[int, int, int, int]:
    return at.send, at.send_bytes, at.receive, at.receive_bytes


# -- one slice ---------------------------------------------------------------------------------------------------


def test_out_of_place_the_output_begins_on_the_next_page(point: Any) -> None:
    assert layout(point(8, in_place=False)) == Layout(0, 8, 4096, 8, stride=8192, slices=1)
    assert layout(point(5000, in_place=False)) == Layout(0, 5000, 8192, 5000, stride=16384, slices=1)


def test_in_place_input_and_output_are_one(point: Any) -> None:
    assert layout(point(5000)) == Layout(0, 5000, 0, 5000, stride=8192, slices=1)


@pytest.mark.parametrize(
    ("op", "in_place", "rank", "own", "expected"),
    [
        # 4096 bytes over four ranks: blocks of 1024. Root is rank 2.
        ("allgather", False, 1, False, (0, 1024, 4096, 4096)),
        ("allgather", True, 1, False, (1024, 1024, 0, 4096)),  # each input is its own block of the output
        ("reduce_scatter", False, 3, True, (0, 4096, 4096, 1024)),
        ("reduce_scatter", True, 3, True, (0, 4096, 3072, 1024)),  # NCCL and Gloo leave the block at its place
        ("reduce_scatter", True, 3, False, (0, 4096, 0, 1024)),  # MPI leaves it at the start
        ("alltoall", True, 3, False, (0, 4096, 0, 4096)),
        ("gather", True, 2, False, (2048, 1024, 0, 4096)),
        ("gather", True, 1, False, (0, 1024, 0, 0)),  # only the root receives
        ("gather", False, 1, False, (0, 1024, 4096, 0)),
        ("scatter", True, 2, False, (0, 4096, 2048, 1024)),
        ("scatter", True, 1, False, (0, 0, 0, 1024)),  # only the root sends
        ("reduce", True, 2, False, (0, 4096, 0, 4096)),
        ("reduce", False, 1, False, (0, 4096, 4096, 0)),
        ("broadcast", True, 1, False, (0, 4096, 0, 4096)),
    ],
)
def test_blocks_lie_where_the_operation_wants_them(
    op: str, in_place: bool, rank: int, own: bool, expected: tuple[int, ...], point: Any
) -> None:
    assert plain(layout(point(4096, op=op, in_place=in_place, root=2), rank, own=own)) == expected


def test_of_alltoallv_the_hot_rank_receives_more_than_it_sends(point: Any) -> None:
    """Imbalance 4 of 4 ranks: everybody sends its 300 elements to rank 0, nobody anything to the others."""
    one = point(4 * 300 * 4, op="alltoallv", redop=None, in_place=False, variant="imbalance=4")

    assert plain(layout(one, 0)) == (0, 1200, 4096, 4800)
    assert plain(layout(one, 3)) == (0, 1200, 4096, 0)
    assert [list(array) for array in vector_counts(one, 0)] == [
        [300, 0, 0, 0], [0, 300, 300, 300], [300] * 4, [0, 300, 600, 900],
    ]  # fmt: skip
    assert [list(array) for array in vector_counts(one, 3)[2:]] == [[0] * 4, [0] * 4]


# -- rotation ----------------------------------------------------------------------------------------------------


def test_rotated_slices_are_cache_lines_apart_and_touch_twice_the_cache(point: Any) -> None:
    """8 bytes twice are two lines, 128 bytes, beside 128 of the loop's arguments: 2 MiB / 256 = 8192 slices."""
    assert layout(point(8, in_place=False, cache="rotated")) == Layout(0, 8, 64, 8, stride=128, slices=8192)


def test_slices_are_rounded_up_and_limited_by_what_the_back_end_can_keep(point: Any) -> None:
    """300 KiB in place: 2 MiB / 300.1 KiB = 6.8."""
    assert layout(point(300 << 10, cache="rotated")).slices == 7
    assert layout(point(8, cache="rotated"), most=1024).slices == 1024


def test_what_is_larger_than_the_cache_has_one_slice(point: Any) -> None:
    assert layout(point(64 << 20, cache="rotated")).slices == 1
    assert layout(point(8, cache="rotated"), cache=0).slices == 1


def test_rotation_beyond_a_gigabyte_is_off(point: Any) -> None:
    """600 MiB slices beside a cache of 400 MiB would be two, 1200 MiB."""
    assert layout(point(600 << 20, cache="rotated"), cache=400 << 20).slices == 1
    assert layout(point(400 << 20, cache="rotated"), cache=400 << 20).slices == 2


@given(
    op=st.sampled_from(list(OPERATIONS)),
    size=st.integers(1, 1 << 22),
    ranks=st.integers(2, 9),
    dtype=st.sampled_from(list(DTYPES)),
    in_place=st.booleans(),
    cache=st.sampled_from(["hot", "rotated"]),
    own=st.booleans(),
)
def test_buffers_never_leave_their_slice_and_out_of_place_never_meet(
    op: str, size: int, ranks: int, dtype: str, in_place: bool, cache: str, own: bool
) -> None:
    row, item = OPERATIONS[op], DTYPES[dtype]
    rounded = row.bytes_of(max(row.block_elements(size, item, ranks), 1), item, ranks)
    in_place = in_place and op not in ("alltoallv", "sendrecv", "p2p")
    variant = {"alltoallv": "imbalance=1.5", "p2p": "pair=0,1"}.get(op, "")
    one = Point(op, in_place, dtype, None, ranks - 1, rounded, ranks, "mpi", "cpu", "auto", "sync", cache, variant)

    for rank in range(ranks):
        at = layout(one, rank, own=own)
        assert max(at.send + at.send_bytes, at.receive + at.receive_bytes) <= at.stride
        assert at.stride % 64 == 0
        assert (at.send % item, at.receive % item) == (0, 0)
        if not in_place:
            assert at.send + at.send_bytes <= at.receive
        assert at.stride <= bytes_needed(one) + 2 * 4096
        assert at.slices == 1 or at.total <= 1 << 30


# -- the arena ---------------------------------------------------------------------------------------------------


def test_the_arena_begins_on_a_huge_page_and_is_zero() -> None:
    arena = Arena()
    arena.reserve(3 * MIB)

    assert arena.address % (2 << 20) == 0
    assert not arena.view(0, 3 * MIB, "uint8").any()


def test_an_arena_for_nothing_is_still_an_address() -> None:
    arena = Arena()
    arena.reserve(0)

    assert arena.address % (2 << 20) == 0


def test_views_of_the_arena_share_its_memory_and_its_address() -> None:
    arena = Arena()
    arena.reserve(8192)
    arena.view(4096, 8, "float32")[:] = [1.0, 2.0]

    assert arena.view(4096, 8, "float32").tolist() == [1.0, 2.0]
    assert arena.view(4100, 4, "float32").ctypes.data == arena.address + 4100
    assert arena.view(4096, 4, "bfloat16").dtype == np.uint16


@pytest.mark.parametrize(
    ("dtype", "value", "expected"), [("float32", 1, 1.0), ("int8", 1, 1), ("bfloat16", 1, 0x3F80), ("float64", 0, 0.0)]
)
def test_filling_covers_every_slice_and_nothing_behind(dtype: str, value: int, expected: float) -> None:
    arena = Arena()
    arena.reserve(1024)
    arena.view(0, 1024, "uint8")[:] = 7
    arena.fill(Layout(0, 8, 64, 8, stride=128, slices=3), dtype, value)

    assert set(arena.view(0, 384, dtype).tolist()) == {expected}
    assert set(arena.view(384, 640, "uint8").tolist()) == {7}
