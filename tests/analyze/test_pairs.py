"""Matrices of pairs: what goes into which, by hand."""

from __future__ import annotations

from typing import Any

from commbench.analyze.pairs import matrices, pair_groups, without_pair
from commbench.analyze.summary import points

P2P: dict[str, Any] = {"op": "p2p", "redop": None, "in_place": False, "ranks": 2, "backend": "copies", "device": "cuda"}


def of_pairs(record: Any, times: dict[tuple[str, int], float | None], **changes: Any) -> Any:
    """Summaries of (pair, size) -> seconds."""
    return points(
        record(size, seconds, **P2P | {"variant": f"pair={pair}"} | changes) for (pair, size), seconds in times.items()
    )


def test_the_largest_size_tells_bandwidth_and_the_smallest_latency(record: Any) -> None:
    found = matrices(
        of_pairs(
            record, {("0,1", 8): 2e-6, ("0,1", 1 << 20): 1e-4, ("1,0", 8): 3e-6, ("1,0", 1 << 20): 2e-4}, path="peer"
        )
    )

    assert [(m.key.path, m.bytes, m.is_latency) for m in found] == [("peer", 1 << 20, False), ("peer", 8, True)]
    bandwidth, latency = found
    assert bandwidth.sources == bandwidth.targets == ("0", "1")
    assert set(bandwidth.cells) == {("0", "1"), ("1", "0")}
    assert bandwidth.cells["0", "1"].algbw == (1 << 20) / 1e-4
    assert latency.cells["1", "0"].seconds is not None
    assert latency.cells["1", "0"].seconds.median == 3e-6


def test_sizes_of_one_kind_make_one_matrix(record: Any) -> None:
    [small] = matrices(of_pairs(record, {("0,1", 8): 1e-6, ("1,0", 4096): 1e-6}))
    [large] = matrices(of_pairs(record, {("0,1", 8192): 1e-6, ("1,0", 1 << 20): 1e-6}))

    assert (small.bytes, small.is_latency, set(small.cells)) == (8, True, {("0", "1")})
    assert (large.bytes, large.is_latency, set(large.cells)) == (1 << 20, False, {("1", "0")})


def test_a_pair_alone_and_points_without_pairs_make_none(record: Any) -> None:
    assert matrices(of_pairs(record, {("0,1", 8): 1e-6, ("0,1", 1 << 20): 1e-3})) == []
    assert pair_groups(points([record(8), record(16)])) == {}
    assert matrices([]) == []


def test_what_differs_in_more_than_pair_and_size_is_kept_apart(record: Any) -> None:
    summaries = of_pairs(record, {("0,1", 8): 1e-6, ("1,0", 8): 1e-6}, path="peer")
    summaries += of_pairs(record, {("0,1", 8): 1e-6, ("1,0", 8): 1e-6}, path="staged")
    summaries += of_pairs(record, {("0,1;bidirectional", 8): 1e-6, ("0,2;bidirectional", 8): 1e-6}, path="peer")

    assert [(key.path, key.variant) for key in pair_groups(summaries)] == [
        ("peer", ""), ("staged", ""), ("peer", "bidirectional"),
    ]  # fmt: skip
    assert without_pair(summaries[-1].point).variant == "bidirectional"


def test_endpoints_are_in_order_of_their_numbers_after_the_host(record: Any) -> None:
    pairs = ["host,10", "host,2", "host,0", "2,host", "10,host"]
    [matrix] = matrices(of_pairs(record, {(pair, 8): 1e-6 for pair in pairs}))

    assert matrix.sources == ("host", "2", "10")
    assert matrix.targets == ("host", "0", "2", "10")


def test_endpoints_of_a_strange_file_are_names(record: Any) -> None:
    pairs = ["9" * 5000 + ",1", "\x1b[31m,1", ",", "1,2,3"]
    [matrix] = matrices(of_pairs(record, {(pair, 8): 1e-6 for pair in pairs}))

    assert len(matrix.cells) == 4
    assert set(matrix.targets) == {"", "1", "2,3"}
