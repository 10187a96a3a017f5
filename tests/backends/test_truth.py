"""Inputs and answers of every operation against brute force: lists of Python numbers, ranks in a loop."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from commbench.backends import truth
from commbench.ops import DTYPES, OPERATIONS
from commbench.spec import Point

BLOCK = 7
MOVERS = [name for name, row in OPERATIONS.items() if not row.reduces]
REDUCERS = [name for name, row in OPERATIONS.items() if row.reduces]
FLOATS = ("float32", "float64", "float16", "bfloat16")


def point_of(op: str, ranks: int, dtype: str = "float32", redop: str | None = None, block: int = BLOCK) -> Point:
    row = OPERATIONS[op]
    variant = {"alltoallv": f"imbalance={min(1.5, ranks):g}", "p2p": f"pair={ranks - 1},0"}.get(op, "")
    return Point(
        op=op, in_place=False, dtype=dtype, redop=(redop or "sum") if row.reduces else None,
        root=ranks - 1 if row.rooted else None, bytes=row.bytes_of(block, DTYPES[dtype], ranks), ranks=ranks,
        backend="mpi", device="cpu", path="auto", mode="sync", cache="hot", variant=variant,
    )  # fmt: skip


def size_of(segments: list[truth.Segment]) -> int:
    return max((segment.start + segment.length for segment in segments), default=0)


def buffer_of(segments: list[truth.Segment], dtype: str) -> truth.Array:
    buffer = np.full(size_of(segments), truth.POISON, dtype=truth.numpy_dtype(dtype))
    truth.fill(buffer, segments)
    return buffer


def numbers(buffer: truth.Array, dtype: str) -> list[float]:
    """The buffer as Python numbers; bfloat16 is the upper half of a float32, by its bits."""
    if dtype != "bfloat16":
        return [float(value) for value in buffer]
    return [struct.unpack("<f", struct.pack("<I", int(bits) << 16))[0] for bits in buffer]


def sent(point: Point) -> list[list[float]]:
    """What every rank's send buffer holds."""
    return [numbers(buffer_of(truth.inputs(point, rank), point.dtype), point.dtype) for rank in range(point.ranks)]


def reduced(redop: str, column: tuple[float, ...]) -> float:
    match redop:
        case "sum":
            return sum(column)
        case "prod":
            return math.prod(column)
        case "min":
            return min(column)
        case "max":
            return max(column)
        case _:
            return sum(column) / len(column)


def block(values: list[float], counts: list[int], k: int) -> list[float]:
    """The k-th of consecutive blocks of these lengths."""
    return values[sum(counts[:k]) : sum(counts[: k + 1])]


def by_definition(point: Point, rank: int) -> list[float]:
    """What MPI says that `rank` receives."""
    data, ranks = sent(point), point.ranks
    counts = truth.block_counts(point) if point.op == "alltoallv" else [point.block] * ranks
    from_root = data[point.root or 0]
    match point.op:
        case "allreduce" | "reduce" | "reduce_scatter":
            received = [reduced(point.redop or "", column) for column in zip(*data, strict=True)]
            received = block(received, counts, rank) if point.op == "reduce_scatter" else received
        case "allgather" | "gather":
            received = [value for sender in data for value in sender]
        case "alltoall" | "alltoallv":
            received = [value for sender in data for value in block(sender, counts, rank)]
        case "scatter":
            received = block(from_root, counts, rank)
        case "broadcast":
            received = from_root
        case "sendrecv":
            received = data[(rank - 1) % ranks]
        case _:
            a, b = truth.pair_of(point)
            received = {a: data[b], b: data[a]}.get(rank, [])
    only_root = point.op in ("reduce", "gather")
    return [] if only_root and rank != point.root else received


def assert_answers_follow_from_inputs(point: Point) -> None:
    for rank in range(point.ranks):
        segments = truth.answers(point, rank)
        expected, answer = by_definition(point, rank), buffer_of(segments, point.dtype)
        if point.redop == "avg":  # the one operation that rounds, to the type's own precision
            precision = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}[point.dtype]
            assert numbers(answer, point.dtype) == pytest.approx(expected, rel=precision), rank
        else:
            assert numbers(answer, point.dtype) == expected, rank
        assert truth.first_difference(point, answer, segments) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", MOVERS)
def test_what_is_moved_arrives_where_the_operation_says(op: str, dtype: str) -> None:
    for ranks in range(2 if op == "p2p" else 1, 6):
        assert_answers_follow_from_inputs(point_of(op, ranks, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("op", REDUCERS)
def test_what_is_reduced_is_exact_in_every_type(op: str, redop: str, dtype: str) -> None:
    for ranks in range(1, 6):
        assert_answers_follow_from_inputs(point_of(op, ranks, dtype, redop))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", REDUCERS)
def test_an_average_is_right_to_the_precision_of_its_type(op: str, dtype: str) -> None:
    for ranks in range(1, 6):
        assert_answers_follow_from_inputs(point_of(op, ranks, dtype, "avg"))


@pytest.mark.parametrize("op", ["allreduce", "reduce_scatter", "alltoall", "allgather"])
def test_tables_go_on_where_they_end(op: str) -> None:
    """A message longer than one period: the answer is the same sum, element by element."""
    point = point_of(op, 3, "int32", block=2 * truth.PERIOD // 3 + 11)
    data = [buffer_of(truth.inputs(point, rank), "int32") for rank in range(3)]

    for rank in range(3):
        answer = buffer_of(truth.answers(point, rank), "int32")
        if op == "allgather":
            expected = np.concatenate(data)
        elif op == "alltoall":
            expected = np.concatenate([np.split(sender, 3)[rank] for sender in data])
        else:
            expected = data[0] + data[1] + data[2]
            expected = np.split(expected, 3)[rank] if op == "reduce_scatter" else expected
        assert np.array_equal(answer, expected)


@pytest.mark.parametrize("ranks", [2, 3, 5, 64, 1000])
def test_with_any_number_of_ranks_the_sum_fits_eight_bits(ranks: int) -> None:
    point = point_of("allreduce", ranks, "int8", block=4096)
    total = sum(buffer_of(truth.inputs(point, rank), "int8").astype(int) for rank in range(ranks))

    assert total.tolist() == buffer_of(truth.answers(point, 0), "int8").astype(int).tolist()
    assert 0 < total.min() <= total.max() <= 127


# -- what must be noticed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_rank_that_is_left_out_or_counted_twice_is_noticed(redop: str, dtype: str) -> None:
    """Counting twice cannot show in min and max: there it changes nothing."""
    ranks = 4
    point = point_of("allreduce", ranks, dtype, redop, block=500)
    data, segments = sent(point), truth.answers(point, 0)

    def notices(contributions: list[list[float]], divisor: int) -> bool:
        columns = zip(*contributions, strict=True)
        values = [reduced("sum", c) / divisor if redop == "avg" else reduced(redop, c) for c in columns]
        return truth.first_difference(point, truth._encode(np.array(values), dtype), segments) is not None

    assert not notices(data, ranks)
    for rank in range(ranks):
        assert notices(data[:rank] + data[rank + 1 :], ranks)
        if redop in ("sum", "prod", "avg"):
            assert notices([*data, data[rank]], ranks)


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_answer_that_is_shifted_by_one_element_is_noticed(op: str) -> None:
    point = point_of(op, 3, block=100)
    segments = truth.answers(point, 2)  # the root, and one of the pair
    answer = buffer_of(segments, "float32")

    assert truth.first_difference(point, np.roll(answer, 1), segments) is not None


@pytest.mark.parametrize("op", ["allgather", "alltoall", "gather"])
def test_blocks_in_the_wrong_order_are_noticed(op: str) -> None:
    point = point_of(op, 3, block=100)
    segments = truth.answers(point, 2)
    answer = buffer_of(segments, "float32")

    assert truth.first_difference(point, np.roll(answer, 100), segments) is not None


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_was_not_written_is_noticed(op: str) -> None:
    point = point_of(op, 3, "int8", block=100)
    segments = truth.answers(point, 2)
    answer = buffer_of(segments, "int8")
    answer[-1] = truth.POISON

    expected = int(buffer_of(segments, "int8")[-1])
    assert truth.first_difference(point, answer, segments) == (len(answer) - 1, expected, truth.POISON)
    assert truth.first_difference(point, np.full_like(answer, truth.POISON), segments) is not None


def test_no_value_that_is_moved_or_reduced_is_the_poison() -> None:
    for redop in ("sum", "prod", "min", "max"):
        answer = truth.answers(point_of("allreduce", 5, "int8", redop, block=truth.PERIOD), 0)
        assert truth.POISON not in buffer_of(answer, "int8")
    assert truth.POISON not in buffer_of(truth.inputs(point_of("allgather", 5, "int8", block=truth.PERIOD), 4), "int8")


def test_neighbours_ranks_and_destinations_differ() -> None:
    point = point_of("alltoall", 3, block=1000)
    blocks = [np.split(buffer_of(truth.inputs(point, rank), "float32"), 3) for rank in range(3)]
    nine = np.array([one for blocks_of_rank in blocks for one in blocks_of_rank])

    assert len({one.tobytes() for one in nine}) == 9
    assert np.mean(nine[:, 1:] == nine[:, :-1]) < 0.05  # one of 113 values by chance


def test_the_first_wrong_element_is_named_with_both_values() -> None:
    point = point_of("allgather", 2)
    segments = truth.answers(point, 0)
    answer = buffer_of(segments, "float32")
    right = float(answer[9])
    answer[9], answer[12] = 1e6, 1e6

    assert truth.first_difference(point, answer, segments) == (9, right, 1e6)


def test_an_average_may_differ_by_rounding_and_not_by_more() -> None:
    point = point_of("allreduce", 3, "float32", "avg")
    segments = truth.answers(point, 0)
    answer = buffer_of(segments, "float32")

    assert truth.first_difference(point, np.nextafter(answer, np.float32(np.inf)), segments) is None
    assert truth.first_difference(point, answer * np.float32(1 + 1e-5), segments) is not None


# -- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "imbalance", "hot", "counts"),
    [
        # Rank 0 gets `imbalance` times the mean m of what a rank is sent, the others (ranks - imbalance)/(ranks - 1).
        (4, "1", 300, [300, 300, 300, 300]),
        (4, "1.5", 300, [300, 166, 166, 166]),  # m = 200: (4·200 - 300)/3 = 166.7
        (4, "4", 300, [300, 0, 0, 0]),
        (2, "1.5", 300, [300, 100]),
        (1, "1", 300, [300]),
    ],
)
def test_the_hot_rank_of_alltoallv_gets_its_multiple_of_the_mean(
    ranks: int, imbalance: str, hot: int, counts: list[int], point: Any
) -> None:
    size = hot * ranks * 4
    one = point(size, op="alltoallv", redop=None, ranks=ranks, variant=f"imbalance={imbalance}")

    assert truth.block_counts(one) == counts


@pytest.mark.parametrize("redop", [None, "sum", "prod", "min", "max", "avg"])
def test_repeating_an_operation_in_place_on_its_fixed_point_changes_nothing(redop: str | None, point: Any) -> None:
    value = float(truth.fixed_point(point(redop=redop)))

    assert redop is None or reduced(redop, (value,) * 5) == value


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    """Eight bits of precision: 257 lies between 256 and 258 and goes to the even 256; 259 goes to 260."""
    encoded = truth._encode(np.array([1.0, 256.0, 257.0, 258.0, 259.0, 1 / 3]), "bfloat16")

    assert numbers(encoded, "bfloat16") == [1.0, 256.0, 256.0, 258.0, 260.0, 0.333984375]
