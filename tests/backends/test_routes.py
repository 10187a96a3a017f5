"""Which copies a machine has: expected routes are listed by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from commbench.backends.copies import CAPABILITIES
from commbench.backends.routes import needs_access, no_access, parse, parse_pair, routes, without_access, words
from commbench.errors import CommbenchError, UnavailableError, UsageError
from commbench.spec import HOST, Sweep

NVLINK = {(a, b) for a in range(4) for b in range(4) if a != b}


def sweep_of(**changes: Any) -> Sweep:
    return Sweep(**{"ops": ("p2p",), "backend": "copies"} | changes)


def test_two_gpus_have_every_way_between_all_of_their_endpoints() -> None:
    assert routes(sweep_of(), 2, NVLINK) == (
        "peer:0,1", "peer:1,0", "staged:0,1", "staged:1,0", "read:0,0", "read:0,1", "read:1,0", "read:1,1",
        "local:0,0", "local:1,1", "pinned:host,0", "pinned:host,1", "pinned:0,host", "pinned:1,host",
        "pageable:host,0", "pageable:host,1", "pageable:0,host", "pageable:1,host",
    )  # fmt: skip


def test_one_gpu_has_its_own_memory_and_the_hosts() -> None:
    assert routes(sweep_of(), 1, set()) == (
        "read:0,0", "local:0,0", "pinned:host,0", "pinned:0,host", "pageable:host,0", "pageable:0,host",
    )  # fmt: skip


def test_without_peer_access_only_what_needs_it_is_left_out() -> None:
    assert routes(sweep_of(paths=("peer", "staged", "read")), 2, set()) == (
        "staged:0,1", "staged:1,0", "read:0,0", "read:1,1",
    )  # fmt: skip
    # Of three GPUs two are on one switch.
    assert routes(sweep_of(paths=("peer",)), 3, {(0, 1), (1, 0)}) == ("peer:0,1", "peer:1,0")
    # Access one way only is none: a copy is made with access both ways.
    assert routes(sweep_of(paths=("peer", "staged"), pair=(0, 1)), 2, {(0, 1)}) == ("staged:0,1",)


def test_an_exchange_is_measured_once_a_pair_where_both_ways_can_be_timed() -> None:
    assert routes(sweep_of(bidirectional=True), 3, NVLINK) == (
        "peer:0,1", "peer:0,2", "peer:1,2", "staged:0,1", "staged:0,2", "staged:1,2",
        "pinned:host,0", "pinned:host,1", "pinned:host,2",
    )  # fmt: skip
    assert routes(sweep_of(bidirectional=True, pair=(2, 1)), 3, NVLINK) == ("peer:1,2", "staged:1,2")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((1, 0), ("peer:1,0", "staged:1,0", "read:1,0")),
        ((1, 1), ("read:1,1", "local:1,1")),
        ((HOST, 1), ("pinned:host,1", "pageable:host,1")),
        ((0, HOST), ("pinned:0,host", "pageable:0,host")),
    ],
)
def test_a_pair_is_one_direction_by_every_way_that_fits(pair: tuple[int, int], expected: tuple[str, ...]) -> None:
    assert routes(sweep_of(pair=pair), 2, NVLINK) == expected


@pytest.mark.parametrize(
    ("changes", "gpus", "kind", "message"),
    [
        ({"paths": ("peer",)}, 1, UnavailableError, "--path peer: there is one GPU here, and a copy between GPUs"),
        ({"pair": (0, 2)}, 2, UsageError, "--pair 0,2: there are 2 GPUs, 0 to 1"),
        ({"pair": (HOST, 1)}, 1, UsageError, "--pair host,1: there is one GPU, number 0"),
        ({"pair": (HOST, HOST)}, 2, UsageError, "--pair host,host: one of them is a GPU"),
        ({"pair": (0, 1), "paths": ("pinned",)}, 2, UsageError, "--path pinned is not a way between two GPUs"),
        ({"pair": (0, 0), "paths": ("peer",)}, 2, UsageError, "--path peer is not a way between one GPU and itself"),
        ({"pair": (HOST, 0), "paths": ("peer",)}, 2, UsageError, "--path peer is not a way between a GPU and the host"),
        ({"pair": (0, 0), "bidirectional": True}, 2, UsageError, "--path peer is not a way between one GPU and itself"),
        ({"bidirectional": True, "paths": ("read",)}, 2, UsageError, "--bidirectional: read copies are measured one"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(
    changes: dict[str, Any], gpus: int, kind: type[CommbenchError], message: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}") as caught:
        routes(sweep_of(**changes), gpus, NVLINK)
    assert caught.value.hint


def test_peer_copies_alone_are_refused_where_the_driver_has_none() -> None:
    with pytest.raises(UnavailableError) as caught:
        routes(sweep_of(paths=("peer",)), 2, set())

    assert caught.value.message == (
        "peer access: not offered by this driver for GPU 0 and 1; NCCL will stage through host memory"
    )
    assert "--path staged" in caught.value.hint


def test_the_sentence_names_the_pairs_or_says_that_it_is_all() -> None:
    assert "for GPU 0 and 1, 1 and 2;" in no_access([(1, 2), (2, 1), (0, 1)], 3)
    assert "for any two of these 3 GPUs;" in no_access([(0, 1), (0, 2), (1, 2)], 3)


def test_pairs_without_access_are_those_that_were_asked_about() -> None:
    assert without_access(sweep_of(), 3, {(0, 1), (1, 0)}) == [(0, 2), (1, 2)]
    assert without_access(sweep_of(pair=(2, 1)), 3, set()) == [(1, 2)]
    assert without_access(sweep_of(paths=("staged", "pinned")), 3, set()) == []


def test_routes_and_pairs_are_read_as_they_are_written() -> None:
    every = routes(sweep_of(), 3, NVLINK)

    assert [f"{path}:{words(pair)}" for path, pair in map(parse, every)] == list(every)
    assert parse_pair(" Host , 12") == (HOST, 12)
    for text in ("", "0", "0,1,2", "a,b", "0,-1", "1.5,2"):
        with pytest.raises(ValueError, match="is not a pair"):
            parse_pair(text)


def test_only_another_gpus_memory_needs_access() -> None:
    assert [path for path in CAPABILITIES.paths if needs_access(path, (0, 1))] == ["peer", "read"]
    assert not needs_access("read", (1, 1))
