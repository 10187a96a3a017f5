"""The chain of addresses that a kernel follows."""

from __future__ import annotations

from commbench.backends.read_call import CHAIN_BYTES, NODES, STRIDE, chain


def test_the_chain_goes_through_every_node_before_it_comes_back() -> None:
    base = 0x7F00_0000_0000
    words = chain(base)
    assert words.nbytes == CHAIN_BYTES

    at, visited = base, []
    for _ in range(NODES):
        at = int(words[(at - base) // 8])
        visited.append(at)

    assert at == base
    assert sorted(visited) == [base + k * STRIDE for k in range(NODES)]


def test_no_load_follows_the_one_before_by_a_cache_line() -> None:
    words = chain(0)
    steps = {(int(words[k * STRIDE // 8]) // STRIDE - k) % NODES for k in range(NODES)}

    assert steps == {5003}
