"""The control plane on sockets: three ranks as threads, each with a control of its own."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from commbench.backends.base import World
from commbench.errors import LaunchError
from commbench.measure import control
from commbench.measure.control import SocketControl, open_control


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def world_of(rank: int, size: int, port: int) -> World:
    return World(rank, size, rank, size, "parent", "127.0.0.1", port)


def together(size: int, body: Callable[[SocketControl], Any]) -> list[Any]:
    """What `body` returns on each of `size` ranks."""
    port = free_port()

    def be(rank: int) -> Any:
        mine = SocketControl(world_of(rank, size, port), 20, "secret")
        try:
            return body(mine)
        finally:
            mine.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(be, range(size)))


def test_the_maximum_is_taken_element_by_element_and_known_to_all() -> None:
    own = {0: [1.0, 5.0, -1.0], 1: [2.0, 4.0, -3.0], 2: [0.0, 9.0, -2.0]}
    found = together(3, lambda c: c.maximum(np.array(own[c.world.rank])).tolist())

    assert found == [[2.0, 9.0, -1.0]] * 3


def test_a_rest_ends_when_all_have_come() -> None:
    came: list[int] = []

    def body(c: SocketControl) -> int:
        came.append(c.world.rank)
        c.rest()
        return len(came)

    assert together(3, body) == [3, 3, 3]


def test_the_maximum_is_a_new_array_that_may_be_changed() -> None:
    def body(c: SocketControl) -> tuple[list[float], list[float]]:
        own = np.full(2, float(c.world.rank))
        found = c.maximum(own)
        found += 1
        return own.tolist(), found.tolist()

    assert together(2, body) == [([0.0, 0.0], [2.0, 2.0]), ([1.0, 1.0], [2.0, 2.0])]


@pytest.mark.parametrize("root", [0, 1, 2])
def test_what_any_root_says_is_heard_by_all(root: int) -> None:
    def body(c: SocketControl) -> Any:
        said = {"from": c.world.rank, "text": "µ", "none": None} if c.world.rank == root else "not heard"
        return c.broadcast(said, root)

    assert together(3, body) == [{"from": root, "text": "µ", "none": None}] * 3


def test_what_all_say_is_gathered_by_rank_on_rank_0() -> None:
    assert together(3, lambda c: c.gather([c.world.rank, "x"])) == [[[0, "x"], [1, "x"], [2, "x"]], None, None]


def test_nobody_leaves_a_barrier_before_all_have_come() -> None:
    come: list[int] = []

    def body(c: SocketControl) -> int:
        come.append(c.world.rank)
        c.barrier()
        return len(come)

    assert together(3, body) == [3, 3, 3]


def test_calls_in_a_row_do_not_mix() -> None:
    def body(c: SocketControl) -> list[Any]:
        found: list[Any] = []
        for k in range(50):
            found.append(c.broadcast([k], root=k % 3))
            found.append(c.maximum(np.array([float(k * c.world.rank)])).tolist())
        return found

    expected = [entry for k in range(50) for entry in ([k], [2.0 * k])]
    assert together(3, body) == [expected] * 3


def test_a_long_chunk_arrives_whole() -> None:
    size = 300_000  # 2.4 MB, more than any socket buffers at once
    found = together(2, lambda c: float(c.maximum(np.arange(float(size)) + c.world.rank).sum()))

    assert found == [size * (size - 1) / 2 + size] * 2


def test_one_rank_needs_no_other() -> None:
    alone = open_control("sockets", World(0, 1, 0, 1, "alone"), "single", 1, "")

    alone.barrier()
    assert alone.maximum(np.array([3.0])).tolist() == [3.0]
    assert alone.broadcast({"a": 1}) == {"a": 1}
    assert alone.gather((1, 2)) == [[1, 2]]  # JSON knows no tuples, on one rank as on many
    alone.close()


# -- meeting -----------------------------------------------------------------------------------------------------


def hello(port: int, said: bytes) -> socket.socket:
    """A connection that has said `said`, as soon as somebody listens."""
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionRefusedError:
            continue
        peer.sendall(said)
        return peer


def framed(value: Any) -> bytes:
    data = json.dumps(value).encode()
    return struct.pack("!I", len(data)) + data


@pytest.mark.parametrize(
    "said",
    [
        framed({"rank": 1, "token": "wrong"}),
        framed({"rank": 1}),
        framed({"rank": 2, "token": "secret"}),  # there are ranks 0 and 1
        framed({"rank": 0, "token": "secret"}),
        framed({"rank": "first", "token": "secret"}),
        framed(["rank", 1]),
        struct.pack("!I", 5) + b"noise",
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_a_stranger_is_sent_away_and_the_ranks_meet_all_the_same(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_GREETING", 0.1)
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(SocketControl, world_of(0, 2, port), 20, "secret")
        stranger = hello(port, said)
        assert stranger.recv(1) == b""  # closed
        follower = pool.submit(SocketControl, world_of(1, 2, port), 20, "secret").result()
        heard = pool.submit(follower.broadcast)

        assert leader.result().broadcast("welcome") == heard.result() == "welcome"
        for one in (leader.result(), follower, stranger):
            one.close()


def test_a_second_rank_of_the_same_number_is_sent_away() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(SocketControl, world_of(0, 3, port), 20, "secret")
        first, second = (hello(port, framed({"rank": 1, "token": "secret"})) for _ in range(2))
        assert second.recv(1) == b""
        last = hello(port, framed({"rank": 2, "token": "secret"}))
        leader.result().broadcast(7)

        assert first.recv(5) == last.recv(5) == framed(7)
        for one in (leader.result(), first, second, last):
            one.close()


def test_ranks_that_do_not_come_are_named() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(SocketControl, world_of(0, 4, port), 0.5, "secret")
        came = SocketControl(world_of(2, 4, port), 20, "secret")

        with pytest.raises(LaunchError, match=rf"^rank 1, 3 of 4 did not come to 127.0.0.1:{port}$") as caught:
            leader.result()
        assert "--init-timeout" in caught.value.hint
        came.close()


def test_a_rank_that_finds_nobody_says_where_it_looked() -> None:
    port = free_port()

    with pytest.raises(LaunchError, match=rf"^rank 1 could not reach rank 0 at 127.0.0.1:{port} in 0.1 s: "):
        SocketControl(world_of(1, 2, port), 0.1, "secret")


def test_a_rank_that_goes_away_ends_the_call_that_waits_for_it() -> None:
    def body(c: SocketControl) -> str:
        if c.world.rank == 1:
            return "gone"
        with pytest.raises(ConnectionError):
            c.gather(None)
        return "told"

    assert together(2, body) == ["told", "gone"]


@pytest.mark.parametrize(
    ("launcher", "kind"), [("mpi", "MpiControl"), ("torchrun", "GlooControl"), ("slurm", "SocketControl")]
)
def test_where_a_launcher_brings_its_own_meeting_place_that_is_used(
    launcher: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MpiControl", "GlooControl", "SocketControl"):
        monkeypatch.setattr(control, name, lambda *_, name=name: name)

    found: Any = open_control("sockets", World(0, 2, 0, 0, launcher), "single", 1, "")
    assert found == kind
