"""The collectives, their sizes, data types and reductions: one row each, said once.

`bytes` (D) of an operation follows nccl-tests' doc/PERFORMANCE.md:

* allreduce, broadcast, reduce, sendrecv, p2p: the message;
* allgather, reduce_scatter, alltoall, gather, scatter: the total over ranks, so a rank's block is D / ranks;
* alltoallv: the maximum over ranks of what one of them sends or receives.

algbw = D / t. busbw = algbw x bus factor: what each link must carry if the algorithm is optimal, comparable
between operations and rank counts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from commbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective.

    Attributes:
        name: the spelling everywhere: flag, record, plot.
        splits: D is the total over ranks and is cut into one block a rank.
        sends_all: the send buffer holds all blocks (else one block, or the message).
        receives_all: the receive buffer holds all blocks (else one block, or the message).
        reduces: takes a reduction and computes.
        rooted: has a root.
        bus_factor: ranks -> busbw / algbw.
        aliases: other spellings that people type, beside case and separators.
        summary: one line for `sweep --help`.
    """

    name: str
    splits: bool
    sends_all: bool
    receives_all: bool
    reduces: bool
    rooted: bool
    bus_factor: Callable[[int], float]
    aliases: tuple[str, ...] = ()
    summary: str = ""

    def block_elements(self, size: int, itemsize: int, ranks: int) -> int:
        """Elements of one block (or of the message) for D = `size` bytes, rounded down."""
        return size // (itemsize * (ranks if self.splits else 1))

    def bytes_of(self, block: int, itemsize: int, ranks: int) -> int:
        """D in bytes for blocks of `block` elements."""
        return block * itemsize * (ranks if self.splits else 1)

    def send_elements(self, block: int, ranks: int) -> int:
        return block * (ranks if self.sends_all else 1)

    def receive_elements(self, block: int, ranks: int) -> int:
        return block * (ranks if self.receives_all else 1)


def _one(_ranks: int) -> float:
    return 1.0


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_all_but_own(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


#                     splits  sends_all  receives_all  reduces  rooted
OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        Operation("allreduce", False, False, False, True, False, _twice_all_but_own, ("ar",), "everyone gets the sum of all"),
        Operation("allgather", True, False, True, False, False, _all_but_own, ("ag",), "everyone gets everyone's block"),
        Operation("reduce_scatter", True, True, False, True, False, _all_but_own, ("rs", "reducescatterblock"), "everyone gets its block of the sum"),
        Operation("alltoall", True, True, True, False, False, _all_but_own, ("a2a",), "everyone sends a block to everyone"),
        Operation("alltoallv", True, True, True, False, False, _all_but_own, ("a2av",), "alltoall with one hot destination (--imbalance)"),
        Operation("broadcast", False, False, False, False, True, _one, ("bcast",), "the root's message reaches everyone"),
        Operation("reduce", False, False, False, True, True, _one, (), "the root gets the sum of all"),
        Operation("gather", True, False, True, False, True, _all_but_own, (), "the root gets everyone's block"),
        Operation("scatter", True, True, False, False, True, _all_but_own, (), "everyone gets its block from the root"),
        Operation("sendrecv", False, False, False, False, False, _one, ("ring", "ringshift"), "everyone sends to the next rank (ring shift)"),
        Operation("p2p", False, False, False, False, False, _one, ("pingpong", "pt2pt", "pointtopoint"), "two ranks (--pair)"),
    )
}  # fmt: skip

REDUCTIONS = ("sum", "prod", "min", "max", "avg")

DTYPES: dict[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
_DTYPE_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16", "fp32": "float32",
                  "fp64": "float64", "fp16": "float16", "int": "int32", "char": "int8"}  # fmt: skip

_OPERATION_NAMES = {
    spelling: row.name
    for row in OPERATIONS.values()
    for spelling in (row.name.replace("_", ""), *row.aliases)
}


def parse_operations(text: str) -> tuple[str, ...]:
    """Names of "allreduce", "all-reduce,AllGather" or "all", in the order given, each once.

    Raises:
        UsageError: for an unknown name, with the nearest one.
    """
    if text.strip().lower() == "all":
        return tuple(OPERATIONS)
    return tuple(dict.fromkeys(_parse_operation(word) for word in text.split(",")))


def _parse_operation(word: str) -> str:
    plain = word.strip().lower().replace("-", "").replace("_", "").replace(" ", "")
    if plain in _OPERATION_NAMES:
        return _OPERATION_NAMES[plain]
    if plain in REDUCTIONS:
        raise UsageError(f"--op is the collective, {plain!r} is a reduction", f"use --redop {plain}")
    near = difflib.get_close_matches(plain, _OPERATION_NAMES, n=1)
    hint = f"did you mean {_OPERATION_NAMES[near[0]]!r}?" if near else f"one of: {', '.join(OPERATIONS)}, or all"
    raise UsageError(f"--op: unknown operation {word.strip()!r}", hint)


def parse_dtype(text: str) -> str:
    """The name of a data type; float, double, half, bf16 are understood.

    Raises:
        UsageError: for an unknown type.
    """
    plain = text.strip().lower()
    plain = _DTYPE_ALIASES.get(plain, plain)
    if plain not in DTYPES:
        raise UsageError(f"--dtype: unknown type {text!r}", f"one of: {', '.join(DTYPES)}")
    return plain


def parse_reduction(text: str) -> str:
    """The name of a reduction.

    Raises:
        UsageError: for an unknown one.
    """
    plain = text.strip().lower()
    if plain not in REDUCTIONS:
        raise UsageError(f"--redop: unknown reduction {text!r}", f"one of: {', '.join(REDUCTIONS)}")
    return plain
