"""The control plane: barrier, maximum, broadcast and gather beside the communicator that is measured.

It carries small JSON and chunks of durations, as bytes, never pickles. It runs on a duplicate of MPI's world,
on a second Gloo group, or on plain sockets; never on the communicator under test.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from commbench.backends import mpi_library, torch_dist
from commbench.backends.base import World
from commbench.errors import LaunchError
from commbench.stats import Samples

_GREETING = 10.0
_NAP = 1e-3


class Control(Protocol):
    """Every rank calls the same methods in the same order."""

    world: World

    def barrier(self) -> None: ...

    def rest(self) -> None:
        """A barrier that may take long: whoever waits in it leaves its core to others."""
        ...

    def maximum(self, values: Samples) -> Samples:
        """Element-wise maximum over ranks, on every rank."""
        ...

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """`root`'s JSON value, on every rank."""
        ...

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's JSON value by rank on rank 0, None elsewhere."""
        ...

    def close(self) -> None: ...


def open_control(kind: str, world: World, thread_level: str, init_timeout: float, token: str) -> Control:
    """Meet the other ranks.

    Args:
        kind: "mpi", "gloo" or "sockets".
        world: this rank.
        thread_level: for MPI, which is initialised here if it is not yet.
        init_timeout: seconds to wait for all ranks.
        token: what a peer must show on a socket.

    Raises:
        LaunchError: not all ranks came.
    """
    # Where a launcher brings its own rendezvous, no socket of ours can be bound to it.
    if kind == "sockets" and world.launcher == "mpi":
        kind = "mpi"
    if kind == "sockets" and world.launcher == "torchrun":
        kind = "gloo"
    match kind:
        case "mpi":
            return MpiControl(world, thread_level, init_timeout)
        case "gloo":
            return GlooControl(world, init_timeout)
        case _:
            return SocketControl(world, init_timeout, token)


class MpiControl:
    """On a duplicate of MPI_COMM_WORLD of its own."""

    def __init__(self, world: World, thread_level: str, init_timeout: float) -> None:
        self.world = world
        self._mpi = mpi_library.start(thread_level, world, init_timeout)
        self._comm = self._mpi.COMM_WORLD.Dup()

    def barrier(self) -> None:
        self._comm.Barrier()

    def rest(self) -> None:
        arrival = self._comm.Ibarrier()
        while not arrival.Test():  # MPI_Barrier would spin
            time.sleep(_NAP)

    def maximum(self, values: Samples) -> Samples:
        result = np.empty_like(values)
        self._comm.Allreduce(values, result, self._mpi.MAX)
        return result

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        data = _encode(value) if self.world.rank == root else b""
        size = np.array([len(data)], dtype=np.int64)
        self._comm.Bcast(size, root)
        buffer = np.frombuffer(data, dtype=np.uint8).copy() if data else np.empty(int(size[0]), dtype=np.uint8)
        self._comm.Bcast(buffer, root)
        return _decode(buffer.tobytes())

    def gather(self, value: Any) -> list[Any] | None:
        data = np.frombuffer(_encode(value), dtype=np.uint8)
        sizes = np.empty(self.world.size, dtype=np.int32)
        self._comm.Allgather(np.array([len(data)], dtype=np.int32), sizes)
        whole = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._comm.Gatherv(data, [whole, sizes, self._mpi.UINT8_T], 0)
        if self.world.rank:
            return None
        return [_decode(part.tobytes()) for part in np.split(whole, np.cumsum(sizes)[:-1])]

    def close(self) -> None:
        self._comm.Free()


class GlooControl:
    """On a second Gloo group."""

    def __init__(self, world: World, init_timeout: float) -> None:
        self.world = world
        self._dist = torch_dist.start(world, init_timeout)
        import torch  # noqa: PLC0415 - after `start`, which explains its absence

        self._torch = torch
        # A hang is the watchdog's to judge: this must not end before it.
        self._group = self._dist.new_group(timeout=timedelta(days=7))

    def barrier(self) -> None:
        self._dist.barrier(self._group)

    def rest(self) -> None:
        self.barrier()

    def maximum(self, values: Samples) -> Samples:
        result = values.copy()
        self._dist.all_reduce(self._torch.from_numpy(result), self._dist.ReduceOp.MAX, self._group)
        return result

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        data = _encode(value) if self.world.rank == root else b""
        size = self._torch.tensor([len(data)])
        self._dist.broadcast(size, root, self._group)
        buffer = np.frombuffer(data, dtype=np.uint8).copy() if data else np.empty(int(size[0]), dtype=np.uint8)
        self._dist.broadcast(self._torch.from_numpy(buffer), root, self._group)
        return _decode(buffer.tobytes())

    def gather(self, value: Any) -> list[Any] | None:
        everything = [self.broadcast(value, root) for root in range(self.world.size)]
        return None if self.world.rank else everything

    def close(self) -> None:
        pass


class SocketControl:
    """A star on rank 0, for back ends without a library of their own."""

    def __init__(self, world: World, init_timeout: float, token: str) -> None:
        self.world = world
        deadline = time.monotonic() + init_timeout
        self._peers: dict[int, socket.socket] = {}
        if world.rank == 0 and world.size > 1:
            self._meet_all(deadline, token)
        elif world.rank:
            self._peers[0] = self._reach(deadline, init_timeout)
            _send(self._peers[0], _encode({"rank": world.rank, "token": token}))

    def _serve(self) -> socket.socket:
        world = self.world
        try:
            return socket.create_server((world.address, world.port), backlog=world.size)
        except OSError as error:
            raise LaunchError(
                f"rank 0 cannot listen at {world.address}:{world.port}: {error.strerror or error}",
                "set MASTER_ADDR and MASTER_PORT to an address and a free port of rank 0's host",
            ) from error

    def _meet_all(self, deadline: float, token: str) -> None:
        world = self.world
        with self._serve() as server:
            while len(self._peers) < world.size - 1:
                server.settimeout(max(deadline - time.monotonic(), 0.01))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    missing = [str(rank) for rank in range(1, world.size) if rank not in self._peers]
                    self.close()
                    raise LaunchError(
                        f"rank {', '.join(missing)} of {world.size} did not come to {world.address}:{world.port}",
                        "did the launcher start them all? --init-timeout gives them longer",
                    ) from None
                except ConnectionError:
                    continue
                self._greet(peer, token)
        for peer in self._peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _greet(self, peer: socket.socket, token: str) -> None:
        """Take in a rank that says who it is and shows the token; whoever else found the port is sent away."""
        peer.settimeout(_GREETING)
        try:
            hello = _decode(_receive(peer))
            rank = int(hello["rank"])
            expected = hello["token"] == token and 0 < rank < self.world.size and rank not in self._peers
        except (ValueError, KeyError, TypeError, OSError):
            expected = False
        if not expected:
            peer.close()
            return
        peer.settimeout(None)
        self._peers[rank] = peer

    def _reach(self, deadline: float, init_timeout: float) -> socket.socket:
        world = self.world
        while True:
            try:
                peer = socket.create_connection((world.address, world.port), timeout=5)
            except OSError as error:
                if time.monotonic() > deadline:
                    where = f"{world.address}:{world.port}"
                    raise LaunchError(
                        f"rank {world.rank} could not reach rank 0 at {where} in {init_timeout:g} s: {error}",
                        "is rank 0 running, and the address reachable?",
                    ) from error
                time.sleep(0.05)
                continue
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer

    def barrier(self) -> None:
        self.maximum(np.zeros(1))

    def rest(self) -> None:
        self.barrier()

    def maximum(self, values: Samples) -> Samples:
        if self.world.rank:
            _send(self._peers[0], np.asarray(values, dtype=np.float64).tobytes())
            return np.frombuffer(_receive(self._peers[0])).copy()
        result = values.copy()
        for rank in range(1, self.world.size):
            np.maximum(result, np.frombuffer(_receive(self._peers[rank])), out=result)
        self._tell_all(result.tobytes())
        return result

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        if self.world.rank == root and root:
            _send(self._peers[0], _encode(value))
        if self.world.rank:
            return _decode(_receive(self._peers[0]))
        data = _encode(value) if root == 0 else _receive(self._peers[root])
        self._tell_all(data)
        return _decode(data)

    def gather(self, value: Any) -> list[Any] | None:
        if self.world.rank:
            _send(self._peers[0], _encode(value))
            return None
        return [_decode(_encode(value))] + [_decode(_receive(self._peers[r])) for r in range(1, self.world.size)]

    def _tell_all(self, data: bytes) -> None:
        for rank in range(1, self.world.size):
            _send(self._peers[rank], data)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def _decode(data: bytes) -> Any:
    return json.loads(data)


def _send(peer: socket.socket, data: bytes) -> None:
    peer.sendall(struct.pack("!I", len(data)) + data)


def _receive(peer: socket.socket) -> bytes:
    (size,) = struct.unpack("!I", _read(peer, 4))
    return _read(peer, size)


def _read(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the other rank closed its connection")
        parts += part
    return bytes(parts)
