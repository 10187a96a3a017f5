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
        bus_factor: ranks -> busbw / algbw.
        splits: D is the total over ranks and is cut into one block a rank.
        sends_all: the send buffer holds all blocks (else one block, or the message).
        receives_all: the receive buffer holds all blocks (else one block, or the message).
        reduces: takes a reduction and computes.
        rooted: has a root.
        aliases: other spellings that people type, beside case and separators.
    """

    name: str
    bus_factor: Callable[[int], float]
    splits: bool = False
    sends_all: bool = False
    receives_all: bool = False
    reduces: bool = False
    rooted: bool = False
    aliases: tuple[str, ...] = ()

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


OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        Operation("allreduce", _twice_all_but_own, reduces=True, aliases=("ar",)),
        Operation("allgather", _all_but_own, splits=True, receives_all=True, aliases=("ag",)),
        Operation("reduce_scatter", _all_but_own, splits=True, sends_all=True, reduces=True, aliases=("rs",)),
        Operation("alltoall", _all_but_own, splits=True, sends_all=True, receives_all=True, aliases=("a2a",)),
        Operation("alltoallv", _all_but_own, splits=True, sends_all=True, receives_all=True, aliases=("a2av",)),
        Operation("broadcast", _one, rooted=True, aliases=("bcast",)),
        Operation("reduce", _one, reduces=True, rooted=True),
        Operation("gather", _all_but_own, splits=True, receives_all=True, rooted=True),
        Operation("scatter", _all_but_own, splits=True, sends_all=True, rooted=True),
        Operation("sendrecv", _one, aliases=("ring", "ringshift")),
        Operation("p2p", _one, aliases=("pingpong", "pt2pt", "pointtopoint")),
    )
}

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
    spelling: row.name for row in OPERATIONS.values() for spelling in (row.name.replace("_", ""), *row.aliases)
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
