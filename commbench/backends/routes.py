"""Which copies can be measured on a machine: every pair of endpoints, and every way between them.

An endpoint is a GPU, by its number among those that are visible, or the host. "A,B" is from A to B.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

from commbench.errors import UnavailableError, UsageError
from commbench.spec import COPY_PATHS, HOST, READ, Sweep

Pair = tuple[int, int]

BETWEEN_GPUS = ("peer", "staged", READ)
WITH_HOST = ("pinned", "pageable")
BOTH_WAYS = ("peer", "staged", "pinned")


def routes(sweep: Sweep, gpus: int, access: Collection[Pair]) -> tuple[str, ...]:
    """What `sweep` asks for and this machine has, as `Sweep.routes` spells it.

    Args:
        sweep: with `paths` and `pair` as asked, () and None for all.
        gpus: how many are visible.
        access: the pairs (a, b) of GPUs where a may address the memory of b.

    Raises:
        UsageError: a pair or a path that makes no sense together, or on no machine.
        UnavailableError: nothing of what was asked for is here.
    """
    paths = sweep.paths or tuple(path for path in COPY_PATHS if path in BOTH_WAYS or not sweep.bidirectional)
    _refuse_nonsense(sweep, paths, gpus)
    found, refused = [], list[Pair]()
    for path in paths:
        for pair in _pairs(path, gpus, both=sweep.bidirectional):
            if sweep.pair is not None and pair != sweep.pair and not (sweep.bidirectional and pair[::-1] == sweep.pair):
                continue
            if needs_access(path, pair) and not _may(pair, access):
                refused.append(pair)
            else:
                found.append(f"{path}:{words(pair)}")
    if found:
        return tuple(found)
    if refused:
        raise UnavailableError(no_access(refused, gpus), "--path staged measures what that costs")
    raise UnavailableError(
        f"--path {','.join(paths)}: there is one GPU here, and a copy between GPUs needs two",
        "--path local,pinned,pageable measures that one",
    )


def without_access(sweep: Sweep, gpus: int, access: Collection[Pair]) -> list[Pair]:
    """The pairs of GPUs that `sweep` asks about, a < b, between which there is no peer access."""
    if sweep.paths and not {"peer", READ} & set(sweep.paths):
        return []
    pairs = [(a, b) for a, b in product(range(gpus), repeat=2) if a < b]
    asked = pairs if sweep.pair is None else [pair for pair in pairs if pair in (sweep.pair, sweep.pair[::-1])]
    return [pair for pair in asked if not _may(pair, access)]


def no_access(pairs: Collection[Pair], gpus: int) -> str:
    """The sentence about pairs of GPUs without peer access."""
    unordered = sorted({(min(pair), max(pair)) for pair in pairs})
    if gpus > 2 and len(unordered) == gpus * (gpus - 1) // 2:  # noqa: PLR2004 - two GPUs are named
        between = f"any two of these {gpus} GPUs"
    else:
        between = "GPU " + ", ".join(f"{a} and {b}" for a, b in unordered)
    return f"peer access: not offered by this driver for {between}; NCCL will stage through host memory"


def needs_access(path: str, pair: Pair) -> bool:
    """Whether one GPU addresses the memory of another on this way."""
    return path in ("peer", READ) and pair[0] != pair[1]


def parse(route: str) -> tuple[str, Pair]:
    """(path, pair) of a route."""
    path, _, pair = route.partition(":")
    return path, parse_pair(pair)


def parse_pair(text: str) -> Pair:
    """The endpoints of "0,1" or "host,0".

    Raises:
        ValueError: it is neither.
    """
    ends = [word.strip().lower() for word in text.split(",")]
    if len(ends) != 2 or not all(end == "host" or end.isdecimal() for end in ends):  # noqa: PLR2004
        raise ValueError(f"{text!r} is not a pair")
    a, b = (HOST if end == "host" else int(end) for end in ends)
    return a, b


def words(pair: Pair) -> str:
    """What `parse_pair` reads."""
    return ",".join("host" if end == HOST else str(end) for end in pair)


def _may(pair: Pair, access: Collection[Pair]) -> bool:
    """A copy is made with access both ways, a load needs its own: drivers offer both or none."""
    return pair in access and pair[::-1] in access


def _pairs(path: str, gpus: int, *, both: bool) -> Iterator[Pair]:
    """Every pair of a path; of an exchange both ways each one once."""
    every = range(gpus)
    if path == "local":
        yield from ((gpu, gpu) for gpu in every)
    elif path in WITH_HOST:
        yield from ((HOST, gpu) for gpu in every)
        yield from () if both else ((gpu, HOST) for gpu in every)
    else:
        yield from ((a, b) for a, b in product(every, repeat=2) if (a != b or path == READ) and (a < b or not both))


def _refuse_nonsense(sweep: Sweep, paths: tuple[str, ...], gpus: int) -> None:
    if sweep.bidirectional and (one_way := [path for path in paths if path not in BOTH_WAYS]):
        raise UsageError(
            f"--bidirectional: {one_way[0]} copies are measured one way", f"both ways: --path {','.join(BOTH_WAYS)}"
        )
    if sweep.pair is None:
        return
    a, b = sweep.pair
    if a == b == HOST:
        raise UsageError("--pair host,host: one of them is a GPU", "use --pair host,0")
    if max(a, b) >= gpus:
        there = "is one GPU, number 0" if gpus == 1 else f"are {gpus} GPUs, 0 to {gpus - 1}"
        raise UsageError(f"--pair {words((a, b))}: there {there}", "nvidia-smi lists them")
    between = "a GPU and the host" if HOST in (a, b) else "one GPU and itself" if a == b else "two GPUs"
    fitting = WITH_HOST if HOST in (a, b) else ("local", READ) if a == b else BETWEEN_GPUS
    wrong = [path for path in paths if path not in fitting]
    if wrong and (sweep.paths or len(wrong) == len(paths)):
        raise UsageError(
            f"--path {wrong[0]} is not a way between {between}, --pair {words((a, b))}",
            f"use --path {','.join(fitting)}, or leave one of the two out",
        )
