"""Who is alive and what is everyone doing: a link of every rank to rank 0, watched by a thread on each.

The main thread writes what it is about to do into its `Slot` before each chunk. The watchdog sends that to
rank 0 once a second, and notices three things: a link that closes (a dead rank), a slot that has not changed
within its allowance (a hang), and a signal. It ends the process itself: the main thread may be inside a
collective that never returns. JSON lines over plain sockets, bound to one address, opened by a token.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from commbench.backends.base import World
from commbench.backends.mpi_library import remove_shared_memory

_BEAT = 1.0
_GRACE = 2.0
_SILENT = 3 * _BEAT
_AFTERMATH = 1.0
_LONGEST_LINE = 1 << 16
_BYE, _DONE = b"bye\n", b"done\n"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Doing:
    """What a rank is at: "timing" of "allreduce 64K", `allowance` seconds until that counts as a hang."""

    phase: str
    what: str = ""
    allowance: float = 600.0

    def __str__(self) -> str:
        return f"{self.phase} {self.what}".strip()


class Slot:
    """Written by the main thread, read by the watchdog: one reference, so no lock."""

    def __init__(self, doing: Doing) -> None:
        self._now = (doing, time.monotonic())

    def set(self, phase: str, what: str, allowance: float) -> None:
        self._now = (Doing(phase, what, allowance), time.monotonic())

    @property
    def doing(self) -> Doing:
        return self._now[0]

    @property
    def age(self) -> float:
        return time.monotonic() - self._now[1]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the launch ends: `kind` "died", "hung", "failed" or "stopped"; `exit_code` as the command's."""

    kind: str
    message: str
    exit_code: int = 1


class Watchdog:
    """The thread of one rank.

    Args:
        world: this rank.
        slot: what this rank is doing.
        on_fault: called on rank 0, from the thread, before the process ends with the fault's exit code.
        on_beat: called on rank 0, from the thread, once a second.
    """

    def __init__(
        self, world: World, slot: Slot, on_fault: Callable[[Fault], None], on_beat: Callable[[Doing], None]
    ) -> None:
        self._world, self._slot, self._on_fault, self._on_beat = world, slot, on_fault, on_beat
        self._selector = selectors.DefaultSelector()
        self._server: socket.socket | None = None
        self._token = ""
        self._link: socket.socket | None = None
        self._peers: dict[int, dict[str, Any]] = {}
        self._buffers: dict[socket.socket, bytes] = {}
        self._ranks: dict[socket.socket, int] = {}
        self._closing = False
        self._farewell = False
        self._ending = threading.Lock()
        self._signalled = threading.Event()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch this process; ranks are linked later, when the control plane can introduce them."""
        for wire in (self._wake_reader, self._wake_writer):
            wire.setblocking(False)
        # C-level: the signal's number arrives here even while the main thread is inside a collective.
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        # Hydra tells the survivors of a dead rank by SIGUSR1, which would end them before they can say so.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread.start()

    def listen(self, token: str, *, one_host: bool) -> dict[str, Any]:
        """Rank 0: open the links' port; returns what the other ranks need to `join`."""
        address = "127.0.0.1" if one_host else self._world.address or own_address()
        self._token = token
        self._server = socket.create_server((address, 0), backlog=self._world.size)
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        return {"address": address, "port": self._server.getsockname()[1], "token": token}

    def join(self, where: dict[str, Any]) -> None:
        """Other ranks: connect to rank 0."""
        link = socket.create_connection((where["address"], where["port"]), timeout=30)
        link.settimeout(5)
        self._link = link
        hello = {"rank": self._world.rank, "host": socket.gethostname(), "pid": os.getpid()}
        self._send(hello | {"token": where["token"]})
        self._selector.register(link, selectors.EVENT_READ)

    def fail(self, message: str, exit_code: int = 1, *, perhaps_another: bool = False) -> None:
        """This rank cannot go on: rank 0 tells why, then everybody ends. Does not return.

        Args:
            message: why.
            exit_code: the command's.
            perhaps_another: a library complained, as it does when another rank is gone. That one is to be named,
                by its closed link, which may arrive a moment later.
        """
        if perhaps_another:
            time.sleep(_AFTERMATH)
        if self._world.rank == 0:
            self._end(Fault("failed", message, exit_code))
        self._send({"fault": message})
        # Before the links exist the others are likely to find the same: rank 0 speaks, unless it lives on.
        if self._link is None and not self._signalled.wait(_GRACE / 2):
            _tell(f"rank {self._world.rank}: {message}")
        time.sleep(_GRACE)
        _exit(1)

    def close(self) -> None:
        """The launch is over: closed links are no longer deaths."""
        self._closing = True
        self._send({"bye": True})
        for wire in list(self._buffers):  # also those that have not said yet who they are
            with contextlib.suppress(OSError):
                wire.send(_DONE)
        signal.set_wakeup_fd(-1)
        # Nobody looks at signals any more: from here on they end the process as they usually do.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def doing(self) -> dict[int, str]:
        """What every rank last said it was doing (rank 0)."""
        known = {rank: peer.get("doing", "") for rank, peer in self._peers.items()}
        return {0: str(self._slot.doing)} | known

    # -- the thread ----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        last_beat = 0.0
        while not self._closing:
            for key, _ in self._selector.select(timeout=_BEAT / 2):
                self._ready(key.fileobj)
            if time.monotonic() - last_beat >= _BEAT:
                last_beat = time.monotonic()
                self._beat()
            self._look_for_a_hang()

    def _beat(self) -> None:
        if self._world.rank == 0:
            try:
                self._on_beat(self._slot.doing)
            except BrokenPipeError:
                self._end(Fault("stopped", "nobody reads what rank 0 says any more"))
            except Exception:  # noqa: BLE001, S110 - a beat that cannot be shown is no reason to end
                pass
        self._send({"doing": str(self._slot.doing), "age": round(self._slot.age, 1)})

    def _ready(self, wire: Any) -> None:
        if wire is self._wake_reader:
            self._on_signal(wire.recv(1)[0])
        elif self._server is not None and wire is self._server:
            peer, _ = wire.accept()
            peer.settimeout(5)
            self._selector.register(peer, selectors.EVENT_READ)
            self._buffers[peer] = b""
        elif self._link is not None and wire is self._link:
            said = self._read(wire)
            self._farewell = self._farewell or bool(said)
            # Rank 0 left the last barrier, so all went well, and it may be gone before this rank has left it.
            self._closing = self._closing or _DONE in said
            if not said:
                self._lost_rank_0()
        else:
            self._hear(wire)

    def _read(self, wire: socket.socket) -> bytes:
        try:
            return wire.recv(4096)
        except OSError:
            return b""

    def _hear(self, wire: socket.socket) -> None:
        data = self._read(wire)
        if not data:
            self._selector.unregister(wire)
            wire.close()
            rank = self._ranks.get(wire)
            if rank is not None and not self._peers[rank].get("bye") and not self._closing:
                self._end(Fault("died", f"{self._name(rank)} died while rank 0 was {self._slot.doing}"))
            return
        *lines, rest = (self._buffers[wire] + data).split(b"\n")
        self._buffers[wire] = rest[:_LONGEST_LINE]
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                self._note(wire, json.loads(line))

    def _note(self, wire: socket.socket, said: dict[str, Any]) -> None:
        if wire not in self._ranks:
            if said["token"] != self._token:
                return
            self._ranks[wire] = int(said["rank"])
            self._peers[self._ranks[wire]] = {"host": str(said["host"]), "pid": int(said["pid"])}
        peer = self._peers[self._ranks[wire]]
        peer |= {key: said[key] for key in ("doing", "age", "bye", "fault") if key in said}
        peer["heard"] = time.monotonic()
        if "fault" in said:
            self._end(Fault("failed", f"{self._name(self._ranks[wire])}: {said['fault']}"))

    def _look_for_a_hang(self) -> None:
        doing, age = self._slot.doing, self._slot.age
        # Rank 0 speaks first; the others end themselves only if it cannot.
        if age <= doing.allowance + (0 if self._world.rank == 0 else _GRACE) or self._closing:
            return
        if self._world.rank == 0:
            self._end(Fault("hung", f"no progress for {age:.0f} s: {self._everyone()}"))
        _tell(f"{self._name(self._world.rank)}: no progress for {age:.0f} s: {doing}")
        _exit(1)

    def _everyone(self) -> str:
        """What each rank was doing, equal ones together, silent ones first."""
        said: dict[str, list[int]] = {}
        for rank in range(self._world.size):
            peer = self._peers.get(rank, {})
            silent = _silence(peer)
            doing = str(self._slot.doing) if rank == 0 else peer.get("doing", "not linked")
            if silent > _SILENT:
                doing = f"silent for {silent:.0f} s, last {doing} (stopped, or its machine is gone)"
            said.setdefault(doing, []).append(rank)
        order = sorted(said.items(), key=lambda item: "silent" not in item[0])
        return "; ".join(f"{_some(ranks)} {doing}" for doing, ranks in order)

    def _name(self, rank: int) -> str:
        peer = self._peers.get(rank)
        if rank == self._world.rank:
            return f"rank {rank} on {socket.gethostname()}"
        return f"rank {rank} on {peer['host']} (pid {peer['pid']})" if peer else f"rank {rank}"

    def _lost_rank_0(self) -> None:
        if self._closing:
            return
        # Rank 0 that ends on purpose says so; only its silent death needs a witness, and one is enough.
        if self._world.rank == 1 and not self._farewell:
            _tell(f"rank 0 is gone while rank 1 was {self._slot.doing}")
        _exit(1)

    def _on_signal(self, number: int) -> None:
        if number not in _SIGNALS or self._closing:
            return
        self._signalled.set()
        if self._world.rank == 0:
            name = signal.Signals(number).name
            code = 130 if number == signal.SIGINT else 1
            self._end(Fault("stopped", f"stopped by {name} while {self._slot.doing}", code))
        # Rank 0 got it too, or will see this link close.
        time.sleep(_GRACE)
        _exit(1)

    def _end(self, fault: Fault) -> None:
        self._ending.acquire()  # never released: the thread that comes second stays here until the process ends
        self._closing = True
        try:
            self._on_fault(fault)
        except Exception as error:  # noqa: BLE001 - whatever it is, the fault itself must still be told
            _tell(f"{fault.message} (and then: {error})")
        for wire in self._ranks:
            with contextlib.suppress(OSError):
                wire.send(_BYE)
        self._end_the_stopped()
        _exit(fault.exit_code)

    def _end_the_stopped(self) -> None:
        """End ranks of this host that have fallen silent: a stopped process would not notice that all is over.

        Launchers wait for it for ever. Its link is still open, so the number is still its own.
        """
        here = socket.gethostname()
        for peer in self._peers.values():
            if peer["host"] == here and not peer.get("bye") and _silence(peer) > _SILENT:
                with contextlib.suppress(OSError):
                    os.kill(peer["pid"], signal.SIGKILL)

    def _send(self, said: dict[str, Any]) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.sendall(json.dumps(said).encode() + b"\n")


def _exit(code: int) -> NoReturn:
    """End this process at once, whatever its main thread is in."""
    remove_shared_memory()
    os._exit(code)


def _silence(peer: dict[str, Any]) -> float:
    """Seconds since a rank was last heard of."""
    return time.monotonic() - peer["heard"] if "heard" in peer else 0.0


def _tell(text: str) -> None:
    """One line on stderr, wherever that leads: whoever read it may be gone, and that must not stop the end."""
    with contextlib.suppress(OSError, ValueError):
        print(f"commbench: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _some(ranks: list[int]) -> str:
    """Ranks in words: "rank 3:", "ranks 0-6:", "ranks 0-2, 5:"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}:"


def own_address() -> str:
    """An address of this host that others can reach: the one its name resolves to, unless that is loopback."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only picks the interface of the default route.
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"
