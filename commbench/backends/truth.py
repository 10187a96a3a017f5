"""Inputs whose exact answer is known, for any operation, rank count and data type, and which depends on position.

Moved data: element i of what rank r sends to rank d is 1 + (mix(i) + 37 r + 11 d) mod 113. Every value is a
small whole number, exact in int8 as in bfloat16, and differs between ranks, destinations and positions.

Reduced data: at each position two ranks of all contribute (the one rank, if there is one), chosen by the
position; the others hold the neutral element. So the answer is a small whole number, exact in every type,
whatever the number of ranks, and a missing, doubled or shifted contribution shows.

Tables repeat every 65,521 elements, a prime, so that no block of a power-of-two size aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from commbench.ops import OPERATIONS
from commbench.spec import Point

Array = npt.NDArray[Any]

PERIOD = 65_521
POISON = 126
_LARGEST = 113


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` elements of a buffer from `start`, holding `table[(first + k) mod PERIOD]`."""

    start: int
    length: int
    table: Array
    first: int = 0


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type of a buffer; bfloat16, which numpy lacks, is handled as its 16 bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def inputs(point: Point, rank: int) -> list[Segment]:
    """What `rank`'s send buffer holds."""
    row = OPERATIONS[point.op]
    if row.rooted and not row.reduces and rank != point.root and row.name != "gather":
        return []
    if row.reduces:
        table = _contribution(point.redop or "", rank, point.ranks, point.dtype)
        return [Segment(0, row.send_elements(point.block, point.ranks), table)]
    if not row.sends_all:
        return [Segment(0, point.block, _moved(rank, 0, point.dtype))]
    counts = block_counts(point)
    starts = np.cumsum([0, *counts])
    return [
        Segment(int(starts[to]), counts[to], _moved(rank, to, point.dtype)) for to in range(point.ranks) if counts[to]
    ]


def answers(point: Point, rank: int) -> list[Segment]:
    """What `rank`'s receive buffer must hold afterwards; [] where it receives nothing."""
    row, block, ranks, dtype = OPERATIONS[point.op], point.block, point.ranks, point.dtype
    if row.rooted and (row.reduces or row.receives_all) and rank != point.root:
        return []
    if row.reduces:
        first = rank * block if row.sends_all else 0
        return [Segment(0, block, _reduced(point.redop or "", ranks, dtype), first)]
    if row.receives_all:
        to, length = (rank, block_counts(point)[rank]) if row.sends_all else (0, block)
        return [Segment(k * length, length, _moved(k, to, dtype)) for k in range(ranks) if length]
    sender, to = _sender(point, rank)
    return [] if sender is None else [Segment(0, block, _moved(sender, to, dtype))]


def _sender(point: Point, rank: int) -> tuple[int | None, int]:
    """Whose message `rank` receives, and under which destination it was filled in."""
    match point.op:
        case "scatter":
            return point.root, rank
        case "broadcast":
            return point.root, 0
        case "sendrecv":
            return (rank - 1) % point.ranks, 0
        case _:
            a, b = pair_of(point)
            return (a + b - rank if rank in (a, b) else None), 0


def pair_of(point: Point) -> tuple[int, int]:
    """The two ranks of a p2p point."""
    a, b = (point.option("pair") or "0,1").split(",")
    return int(a), int(b)


def block_counts(point: Point) -> list[int]:
    """Elements that every rank sends to rank 0, 1, ...

    alltoall: equal blocks. alltoallv: rank 0 is hot and gets `imbalance` times the mean, the others share the
    rest evenly. D is what rank 0 receives.
    """
    hot = point.block
    imbalance = float(point.option("imbalance") or 1)
    if point.ranks == 1:
        return [hot]
    cold = int(hot * (point.ranks - imbalance) / (imbalance * (point.ranks - 1)))
    return [hot] + [cold] * (point.ranks - 1)


def fixed_point(point: Point) -> int:
    """A value that the operation maps to itself however often it is repeated in place."""
    return 1 if point.redop == "prod" else 0


Load = Callable[[Array], Array]
"""Brings a host array to where the buffers are: `cupy.asarray` for a GPU's."""


def fill(buffer: Array, segments: list[Segment], load: Load = np.asarray) -> None:
    """Write `segments` into a buffer."""
    for segment in segments:
        table = load(segment.table)
        for at, first, length in _pieces(segment):
            buffer[at : at + length] = table[first : first + length]


def first_difference(
    point: Point, buffer: Array, segments: list[Segment], load: Load = np.asarray
) -> tuple[int, float, float] | None:
    """(index, expected, got) of the first wrong element; averages may differ by rounding, all else may not.

    Compared where the buffer is: only what is wrong travels.
    """
    for segment in segments:
        table = load(segment.table)
        for at, first, length in _pieces(segment):
            got, values = buffer[at : at + length], table[first : first + length]
            wrong = ~_close(got, values, point.dtype) if point.redop == "avg" else got != values
            if bool(wrong.any()):
                k = int(wrong.argmax())
                expected, found = _as_float(values, point.dtype)[k], _as_float(got, point.dtype)[k]
                return at + k, float(expected), float(found)
    return None


def _pieces(segment: Segment) -> Iterator[tuple[int, int, int]]:
    """(position in the buffer, position in the table, length), of one period at most: no second full-size buffer."""
    done = 0
    while done < segment.length:
        inside = (segment.first + done) % PERIOD
        length = min(PERIOD - inside, segment.length - done)
        yield segment.start + done, inside, length
        done += length


@lru_cache(maxsize=1)
def _mix() -> npt.NDArray[np.int64]:
    # Knuth's multiplicative hash: neighbours differ, no short cycle inside the period.
    return (np.arange(PERIOD, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(1 << 32) >> np.uint64(11)).astype(
        np.int64
    )


@lru_cache(maxsize=64)
def _moved(sender: int, to: int, dtype: str) -> Array:
    return _encode(1 + (_mix() + 37 * sender + 11 * to) % _LARGEST, dtype)


#                 neutral, smallest and largest contribution
_CONTRIBUTIONS = {"sum": (0, 1, 60), "avg": (0, 1, 60), "prod": (1, 1, 10), "max": (1, 2, 120), "min": (120, 1, 119)}


@lru_cache(maxsize=8)
def _two(redop: str, ranks: int) -> tuple[Array, Array, Array, Array]:
    """(first owner, its value, second owner, its value) per position; the second owner is -1 with one rank."""
    _, low, high = _CONTRIBUTIONS[redop]
    mix = _mix()
    owner = mix % ranks
    other = (owner + 1 + (mix >> 5) % max(ranks - 1, 1)) % ranks if ranks > 1 else np.full(PERIOD, -1)
    return owner, low + (mix >> 3) % (high - low + 1), other, low + (mix >> 7) % (high - low + 1)


@lru_cache(maxsize=8)
def _contribution(redop: str, rank: int, ranks: int, dtype: str) -> Array:
    owner, value, other, other_value = _two(redop, ranks)
    neutral = _CONTRIBUTIONS[redop][0]
    return _encode(np.where(owner == rank, value, np.where(other == rank, other_value, neutral)), dtype)


@lru_cache(maxsize=8)
def _reduced(redop: str, ranks: int, dtype: str) -> Array:
    _, value, _, other_value = _two(redop, ranks)
    if ranks == 1:
        return _encode(value, dtype)
    answer: Array
    match redop:
        case "prod":
            answer = value * other_value
        case "max":
            answer = np.maximum(value, other_value)
        case "min":
            answer = np.minimum(value, other_value)
        case "avg":
            answer = (value + other_value) / ranks
        case _:
            answer = value + other_value
    return _encode(answer, dtype)


def _encode(values: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return values.astype(dtype)
    # Round to nearest even on the upper half of a float32, as every bfloat16 unit does.
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _as_float(values: Array, dtype: str) -> npt.NDArray[np.float64]:
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _close(got: Array, expected: Array, dtype: str) -> npt.NDArray[np.bool_]:
    wanted = _as_float(expected, dtype)
    return np.abs(_as_float(got, dtype) - wanted) <= 2 * _EPSILON.get(dtype, 0.0) * np.abs(wanted)
