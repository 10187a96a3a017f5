"""The memory that collectives work on: one piece for a whole sweep, cut into slices."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commbench.backends.truth import Array, Load, block_counts, numpy_dtype
from commbench.ops import OPERATIONS
from commbench.spec import Point

_HUGE = 2 << 20
_PAGE = 4096
_LINE = 64
_LARGEST_ROTATION = 1 << 30
_ARGUMENTS = 128  # bytes of the compiled loop's argument row that are read with each slice


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a point's buffers lie, in bytes: slice k starts at k x `stride`.

    Attributes:
        send, receive: offsets inside a slice; equal or overlapping when in place.
        send_bytes, receive_bytes: what the operation reads and writes.
        stride: distance of two slices.
        slices: 1 unless rotated.
    """

    send: int
    send_bytes: int
    receive: int
    receive_bytes: int
    stride: int
    slices: int

    @property
    def total(self) -> int:
        return self.stride * self.slices


def bytes_needed(point: Point) -> int:
    """Bytes of buffers that one rank needs for `point` at most, without rotation."""
    row, block = OPERATIONS[point.op], point.block
    send, receive = row.send_elements(block, point.ranks), row.receive_elements(block, point.ranks)
    return (max(send, receive) if point.in_place else send + receive) * point.itemsize


def layout_of(point: Point, rank: int, cache_bytes: int, most_slices: int, *, output_at_own_block: bool) -> Layout:
    """Lay out `point` on `rank`.

    Args:
        point: the point.
        rank: whose buffers.
        cache_bytes: last-level cache; rotation touches twice as much before it comes back to a slice.
        most_slices: more than these are not worth their bookkeeping in this back end.
        output_at_own_block: where an in-place reduce_scatter leaves its block: at its own position (NCCL, Gloo)
            or at the start (MPI).
    """
    row, item, ranks = OPERATIONS[point.op], point.itemsize, point.ranks
    counts = block_counts(point) if row.name == "alltoallv" else [point.block] * ranks
    sends = sum(counts) if row.sends_all else point.block
    receives = counts[rank] * ranks if row.receives_all and row.sends_all else row.receive_elements(point.block, ranks)
    if row.name in ("reduce", "gather") and rank != point.root:
        receives = 0
    if row.name == "scatter" and rank != point.root:
        sends = 0
    send_bytes, receive_bytes = sends * item, receives * item
    rotated = point.cache == "rotated"
    grain = _LINE if rotated else _PAGE
    if point.in_place:
        own = point.block * item * rank
        send = own if row.name in ("allgather", "gather") and receives else 0
        scattered = row.name == "scatter" or (row.name == "reduce_scatter" and output_at_own_block)
        receive = own if scattered and sends else 0
        footprint = _up(max(send + send_bytes, receive + receive_bytes), grain)
    else:
        send, receive = 0, _up(send_bytes, grain)
        footprint = receive + _up(receive_bytes, grain)
    footprint = max(footprint, grain)
    slices = -(-2 * cache_bytes // (footprint + _ARGUMENTS)) if rotated else 1
    slices = max(1, min(slices, most_slices))
    if slices * footprint > _LARGEST_ROTATION:
        slices = 1
    return Layout(send, send_bytes, receive, receive_bytes, footprint, slices)


def _up(size: int, grain: int) -> int:
    return -(-size // grain) * grain


def vector_counts(point: Point, rank: int) -> tuple[npt.NDArray[np.int32], ...]:
    """Send counts, send offsets, receive counts, receive offsets of alltoallv, in elements by rank."""
    sent = np.array(block_counts(point), dtype=np.int32)
    received = np.full(point.ranks, sent[rank], dtype=np.int32)
    offsets = [np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int32) for counts in (sent, received)]
    return sent, offsets[0], received, offsets[1]


class Arena:
    """One piece of memory, reserved once, that every point of a sweep uses from its start.

    Args:
        allocate: makes an array of that many bytes, zeroed, which stays where it is; of the host when left out.
        load: brings a host array to where that memory is.
    """

    def __init__(self, allocate: Callable[[int], Array] | None = None, load: Load = np.asarray) -> None:
        self._allocate = allocate or host_memory
        self.load = load
        self._bytes = np.empty(0, dtype=np.uint8)

    def reserve(self, size: int) -> None:
        """Make `size` bytes available. What was reserved before is gone."""
        self.release()  # first, for both may not fit
        self._bytes = self._allocate(max(size, 1))

    def release(self) -> None:
        """Give the memory back: no call may be made any more."""
        self._bytes = np.empty(0, dtype=np.uint8)

    @property
    def address(self) -> int:
        return address_of(self._bytes)

    def view(self, offset: int, size: int, dtype: str) -> Array:
        """`size` bytes from `offset` as an array of `dtype` (bfloat16 as uint16)."""
        return self._bytes[offset : offset + size].view(numpy_dtype(dtype))

    def fill(self, layout: Layout, dtype: str, value: int) -> None:
        """Set everything that `layout` covers to `value`."""
        if value == 0:
            self._bytes[: layout.total].fill(0)
        else:
            itemsize = numpy_dtype(dtype).itemsize
            self.view(0, layout.total // itemsize * itemsize, dtype)[:] = value if dtype != "bfloat16" else 0x3F80


def address_of(array: Any) -> int:
    """Where an array of NumPy or CuPy begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def host_memory(size: int) -> Array:
    """A private anonymous mapping from a multiple of 2 MiB, on huge pages where the system gives them.

    numpy asks for huge pages beyond 4 MiB but starts 16 bytes into them, and malloc's own choice changes with
    history: a mapping of our own makes every launch alike.
    """
    room = _up(size, _HUGE) + _HUGE
    mapping = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    start = -whole.ctypes.data % _HUGE
    memory = whole[start : start + room - _HUGE]
    memory.fill(0)
    return memory
