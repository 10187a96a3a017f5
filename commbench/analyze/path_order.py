"""Which interconnect is the better one, as far as that needs no measuring."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Best first. A word of a proven path ("p2p", "net/ib+gdr", "cuda_ipc") belongs to the first class that has it.
_CLASSES: tuple[tuple[str, frozenset[str]], ...] = (
    ("NVLink SHARP", frozenset({"nvls"})),
    ("peer to peer", frozenset({"p2p", "nvlink", "cuda_ipc"})),
    ("shared memory", frozenset({"shm", "sm", "sysv", "posix", "cma", "xpmem", "knem"})),
    ("RDMA from GPU memory", frozenset({"gdr", "gdrdma"})),
    ("RDMA", frozenset({"rdma", "ib", "roce", "rc", "dc", "ud", "verbs", "efa", "collnet", "ibext"})),
    ("TCP", frozenset({"tcp", "socket", "sockets", "ethernet"})),
)


def worse_path(baseline: Iterable[str], candidate: Iterable[str]) -> str:
    """What got worse when the slowest proven link of the candidate is of a lower class than the baseline's, else "".

    Says nothing where one of them is not proven, or not known to this table.
    """
    before, after = _lowest(baseline), _lowest(candidate)
    if before is None or after is None or after[0] <= before[0]:
        return ""
    return f"{before[1]} ({_CLASSES[before[0]][0]}) became {after[1]} ({_CLASSES[after[0]][0]})"


def _lowest(paths: Iterable[str]) -> tuple[int, str] | None:
    links = [link.strip() for path in paths for link in path.split(",")]
    ranked = [(rank, link) for link in links if (rank := _rank(link)) is not None]
    return max(ranked, default=None)


def _rank(link: str) -> int | None:
    words = set(re.split(r"[^a-z0-9_]+", link.lower()))
    return next((rank for rank, (_, names) in enumerate(_CLASSES) if names & words), None)
