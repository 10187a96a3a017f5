"""The table of operations against nccl-tests' doc/PERFORMANCE.md, and the spellings people type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.ops import DTYPES, OPERATIONS, parse_dtype, parse_operations, parse_reduction

# doc/PERFORMANCE.md for n = 4: allreduce 2(n-1)/n, allgather, reduce_scatter and alltoall (n-1)/n, broadcast and
# reduce 1; gather and scatter move what allgather moves through one port; a message between two ranks counts once.
BUS_FACTORS_OF_4 = {
    "allreduce": 1.5,
    "allgather": 0.75,
    "reduce_scatter": 0.75,
    "alltoall": 0.75,
    "alltoallv": 0.75,
    "broadcast": 1,
    "reduce": 1,
    "gather": 0.75,
    "scatter": 0.75,
    "sendrecv": 1,
    "p2p": 1,
}


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert {name: row.bus_factor(4) for name, row in OPERATIONS.items()} == BUS_FACTORS_OF_4


def test_one_rank_moves_nothing_over_a_bus_in_operations_among_all() -> None:
    assert [OPERATIONS[name].bus_factor(1) for name in ("allreduce", "allgather", "alltoall")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "block", "send", "receive"),
    [
        # 4096 bytes of float32 are 1024 elements; 4 ranks; whoever splits D has blocks of 256.
        ("allreduce", 1024, 1024, 1024),
        ("broadcast", 1024, 1024, 1024),
        ("reduce", 1024, 1024, 1024),
        ("sendrecv", 1024, 1024, 1024),
        ("p2p", 1024, 1024, 1024),
        ("allgather", 256, 256, 1024),
        ("gather", 256, 256, 1024),
        ("reduce_scatter", 256, 1024, 256),
        ("scatter", 256, 1024, 256),
        ("alltoall", 256, 1024, 1024),
    ],
)
def test_bytes_are_the_message_or_the_total_over_ranks(name: str, block: int, send: int, receive: int) -> None:
    row = OPERATIONS[name]

    assert row.block_elements(4096, 4, 4) == block
    assert row.bytes_of(block, 4, 4) == 4096
    assert (row.send_elements(block, 4), row.receive_elements(block, 4)) == (send, receive)


@given(
    name=st.sampled_from(list(OPERATIONS)),
    size=st.integers(0, 1 << 40),
    itemsize=st.sampled_from(sorted(set(DTYPES.values()))),
    ranks=st.integers(1, 1000),
)
def test_rounding_to_blocks_loses_less_than_one_element_a_rank(name: str, size: int, itemsize: int, ranks: int) -> None:
    row = OPERATIONS[name]
    rounded = row.bytes_of(row.block_elements(size, itemsize, ranks), itemsize, ranks)

    assert 0 <= size - rounded < itemsize * (ranks if row.splits else 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("allreduce", ("allreduce",)),
        ("All-Reduce", ("allreduce",)),
        ("ALL_REDUCE", ("allreduce",)),
        ("all reduce", ("allreduce",)),
        ("reducescatter", ("reduce_scatter",)),
        ("reduce-scatter, AllGather", ("reduce_scatter", "allgather")),
        ("ag,rs,a2a,bcast", ("allgather", "reduce_scatter", "alltoall", "broadcast")),
        ("all_to_all_v", ("alltoallv",)),
        ("ping-pong", ("p2p",)),
        ("p2p,allreduce,P2P", ("p2p", "allreduce")),
        ("all", tuple(OPERATIONS)),
        (" ALL ", tuple(OPERATIONS)),
    ],
)
def test_operations_are_understood_however_they_are_written(text: str, names: tuple[str, ...]) -> None:
    assert parse_operations(text) == names


def test_every_name_and_alias_leads_to_its_operation() -> None:
    for row in OPERATIONS.values():
        for spelling in (row.name, row.name.upper(), row.name.replace("_", "-"), *row.aliases):
            assert parse_operations(spelling) == (row.name,)


@pytest.mark.parametrize("redop", ["sum", "AVG", "max"])
def test_a_reduction_in_place_of_an_operation_is_answered_with_the_right_flag(redop: str) -> None:
    with pytest.raises(UsageError, match="--op is the collective") as caught:
        parse_operations(redop)
    assert caught.value.hint == f"use --redop {redop.lower()}"


@pytest.mark.parametrize(
    ("text", "hint"),
    [("alreduce", "did you mean 'allreduce'?"), ("brodcast", "did you mean 'broadcast'?"), ("xyz", "one of: all")],
)
def test_an_unknown_operation_is_answered_with_the_nearest_one(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"unknown operation '{text}'") as caught:
        parse_operations(text)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("text", ["", ",", "allreduce,", "allreduce,,p2p"])
def test_an_empty_word_is_no_operation(text: str) -> None:
    with pytest.raises(UsageError, match="unknown operation ''"):
        parse_operations(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("float", "float32"), ("Double", "float64"), ("half", "float16"), ("BF16", "bfloat16"), (" int ", "int32")],
)
def test_data_types_have_short_names(text: str, name: str) -> None:
    assert parse_dtype(text) == name


def test_every_data_type_is_its_own_name_and_has_its_size_in_bytes() -> None:
    assert [parse_dtype(name) for name in DTYPES] == list(DTYPES)
    assert {name: size * 8 for name, size in DTYPES.items()} == {
        name: int("".join(filter(str.isdigit, name))) for name in DTYPES
    }


def test_unknown_types_and_reductions_are_answered_with_the_list() -> None:
    with pytest.raises(UsageError, match="--dtype: unknown type 'float8'") as caught:
        parse_dtype("float8")
    assert caught.value.hint.startswith("one of: float32, float64")
    with pytest.raises(UsageError, match="--redop: unknown reduction 'xor'") as caught:
        parse_reduction("xor")
    assert caught.value.hint == "one of: sum, prod, min, max, avg"
    assert parse_reduction(" MAX ") == "max"
