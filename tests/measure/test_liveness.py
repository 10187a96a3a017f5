"""Who died, who hangs, who was stopped.

The watchdog of rank 0 is real and in a process of its own, because it ends that process. The other ranks are
sockets of the test that say what ranks say.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commbench.backends.base import World
from commbench.measure.liveness import Doing, Fault, Slot, Watchdog, _some, own_address

ROOT = Path(__file__).parent.parent.parent

# Rank 0 of two to four: prints where to join, then does as the test says: one phase a line, its allowance first.
RANK_0 = """
import json, sys
from commbench.backends.base import World
from commbench.measure.liveness import Doing, Slot, Watchdog

def say(**line):
    sys.stdout.write(json.dumps(line) + "\\n")  # one write: the watchdog's thread says things too
    sys.stdout.flush()

slot = Slot(Doing("timing", "allreduce 64K", 60.0))
world = World(0, int(sys.argv[1]), 0, 1, "parent", "127.0.0.1")
watchdog = Watchdog(
    world, slot,
    lambda fault: say(kind=fault.kind, message=fault.message, code=fault.exit_code),
    lambda doing: say(beat=str(doing)),
)
watchdog.start()
say(**watchdog.listen("secret", one_host=True))
for line in sys.stdin:
    if line.strip() == "close":
        watchdog.close()
        say(closed=True)
    elif line.startswith("fail "):
        watchdog.fail(line[5:].strip(), 2)
    elif line.strip() == "doing":
        say(doing=watchdog.doing())
    else:
        slot.set("timing", "allreduce 64K", float(line))
"""

# Another rank, whose rank 0 is the test; it sleeps through everything but a failure of its own.
RANK_1 = """
import json, sys, time
from commbench.backends.base import World
from commbench.measure import liveness
from commbench.measure.liveness import Doing, Slot, Watchdog

liveness._GRACE = 0.5
slot = Slot(Doing("timing", "allreduce 64K", float(sys.argv[3])))
watchdog = Watchdog(World(1, 2, 1, 2, "parent"), slot, print, print)
watchdog.start()
if sys.argv[1] != "0":
    watchdog.join({"address": "127.0.0.1", "port": int(sys.argv[1]), "token": "secret"})
if sys.argv[2]:
    watchdog.fail(sys.argv[2])
time.sleep(60)
"""


@dataclass
class Leader:
    """Rank 0's process."""

    process: subprocess.Popen[str]
    where: dict[str, Any]
    wires: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        self.wires.append(socket.create_connection((self.where["address"], self.where["port"]), timeout=20))
        return self.wires[-1]

    def link(self, rank: int, token: str = "secret") -> socket.socket:
        """The link of another rank, introduced."""
        wire = self.connect()
        say(wire, rank=rank, host="node7", pid=4242, token=token)
        return wire

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self, key: str) -> dict[str, Any]:
        """The next line that has `key`."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            found: dict[str, Any] = json.loads(text)
            if key in found:
                return found
        raise AssertionError(f"rank 0 ended without a line of {key}")

    def verdict(self) -> tuple[str, str, int]:
        """(kind, message, exit code of the process) of its fault."""
        fault = self.line("kind")
        assert self.process.wait(20) == fault["code"]
        return fault["kind"], fault["message"], fault["code"]


def say(wire: socket.socket, **said: Any) -> None:
    wire.sendall(json.dumps(said).encode() + b"\n")


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def leader(request: pytest.FixtureRequest) -> Iterator[Leader]:
    """Rank 0 of two ranks, or of as many as the parameter says."""
    process = start(RANK_0, str(getattr(request, "param", 2)))
    try:
        assert process.stdout is not None
        one = Leader(process, json.loads(process.stdout.readline()))
        yield one
        for wire in one.wires:
            wire.close()
    finally:
        process.kill()
        process.communicate()


# -- rank 0 judges -----------------------------------------------------------------------------------------------


def test_a_rank_whose_link_breaks_has_died(leader: Leader) -> None:
    leader.link(1).close()

    assert leader.verdict() == ("died", "rank 1 on node7 (pid 4242) died while rank 0 was timing allreduce 64K", 1)


def test_a_rank_that_said_goodbye_has_not_died(leader: Leader) -> None:
    polite, other = leader.link(1), leader.link(2)
    say(polite, bye=True)
    polite.close()
    time.sleep(0.1)  # the watchdog reads links in any order: this one first
    other.close()

    assert leader.verdict()[1].startswith("rank 2 ")


def test_a_stranger_who_leaves_is_no_death(leader: Leader) -> None:
    wire = leader.link(1, token="wrong")
    say(wire, rank=1, fault="boo")
    wire.close()
    leader.connect().close()
    garbage = leader.connect()
    garbage.sendall(b"\xff\xfe\n[1]\n7\n{}\n")
    garbage.close()
    say(leader.link(1), fault="out of memory")

    assert leader.verdict()[:2] == ("failed", "rank 1 on node7 (pid 4242): out of memory")


def test_lines_that_come_in_pieces_are_put_together(leader: Leader) -> None:
    wire = leader.link(1)
    for piece in (b'{"fau', b'lt": "out of', b' memory"}', b"\n"):
        wire.sendall(piece)
        time.sleep(0.02)

    assert leader.verdict()[1].endswith(": out of memory")


@pytest.mark.parametrize("leader", [4], indirect=True)
def test_a_hang_names_what_every_rank_was_doing_equal_ones_together(leader: Leader) -> None:
    wires = [leader.link(rank) for rank in (1, 2)]
    for wire in wires:
        say(wire, doing="waiting for the others after allreduce 64K", age=3.0)
    leader.tell("0.3")

    kind, message, code = leader.verdict()
    assert (kind, code) == ("hung", 1)
    assert re.fullmatch(
        r"no progress for \d+ s: rank 0: timing allreduce 64K; "
        r"ranks 1-2: waiting for the others after allreduce 64K; rank 3: not linked",
        message,
    )
    for wire in wires:
        assert wire.recv(100) == b"bye\n"  # so that it does not take rank 0 for dead


@pytest.mark.parametrize(("number", "name", "code"), [(signal.SIGTERM, "SIGTERM", 1), (signal.SIGINT, "SIGINT", 130)])
def test_a_signal_stops_the_launch_and_says_where_it_was(
    leader: Leader, number: signal.Signals, name: str, code: int
) -> None:
    leader.process.send_signal(number)

    assert leader.verdict() == ("stopped", f"stopped by {name} while timing allreduce 64K", code)


def test_hydras_signal_about_a_dead_rank_is_not_the_end(leader: Leader) -> None:
    leader.process.send_signal(signal.SIGUSR1)
    leader.link(1).close()

    assert leader.verdict()[0] == "died"


def test_rank_0_that_cannot_go_on_says_why_with_its_own_exit_code(leader: Leader) -> None:
    leader.tell("fail no memory left")

    assert leader.verdict() == ("failed", "no memory left", 2)


def test_rank_0_beats_and_knows_what_the_others_do(leader: Leader) -> None:
    assert leader.line("beat") == {"beat": "timing allreduce 64K"}

    say(leader.link(1), doing="checking broadcast 8")
    while True:  # until the watchdog has heard it
        leader.tell("doing")
        found = leader.line("doing")["doing"]
        if len(found) == 2 and found["1"]:
            break
    assert found == {"0": "timing allreduce 64K", "1": "checking broadcast 8"}


def test_after_the_end_closed_links_are_no_deaths(leader: Leader) -> None:
    wire = leader.link(1)
    leader.tell("close")
    leader.line("closed")
    wire.close()

    out, err = leader.process.communicate(timeout=20)
    assert leader.process.returncode == 0
    assert '"kind"' not in out
    assert err == ""


# -- the other ranks ---------------------------------------------------------------------------------------------


def rank_1(server: socket.socket | None, fault: str = "", allowance: float = 60.0) -> subprocess.Popen[str]:
    return start(RANK_1, str(server.getsockname()[1]) if server else "0", fault, str(allowance))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        one.settimeout(20)
        yield one


def test_a_rank_introduces_itself_and_tells_what_it_does(server: socket.socket) -> None:
    process = rank_1(server)
    wire, _ = server.accept()
    with wire, wire.makefile() as lines:
        hello, beat = json.loads(lines.readline()), json.loads(lines.readline())
        process.kill()
        process.communicate()

    assert hello == {"rank": 1, "host": socket.gethostname(), "pid": process.pid, "token": "secret"}
    assert beat["doing"] == "timing allreduce 64K"


def test_a_rank_that_cannot_go_on_leaves_the_word_to_rank_0(server: socket.socket) -> None:
    process = rank_1(server, "disk full")
    wire, _ = server.accept()
    with wire, wire.makefile() as lines:
        said = next(line for line in map(json.loads, lines) if "fault" in line)
        wire.sendall(b"bye\n")

    assert said == {"fault": "disk full"}
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (1, "", "")


def test_a_rank_without_a_link_says_itself_why_it_fails() -> None:
    process = rank_1(None, "no MPI here")

    assert process.communicate(timeout=20) == ("", "commbench: rank 1: no MPI here\n")
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("farewell", "said"), [(b"", "commbench: rank 0 is gone while rank 1 was timing allreduce 64K\n"), (b"bye\n", "")]
)
def test_the_silent_death_of_rank_0_has_a_witness(server: socket.socket, farewell: bytes, said: str) -> None:
    process = rank_1(server)
    wire, _ = server.accept()
    wire.recv(1000)
    wire.sendall(farewell)
    wire.close()

    assert process.communicate(timeout=20) == ("", said)
    assert process.returncode == 1


def test_a_rank_that_hangs_while_rank_0_says_nothing_ends_itself(server: socket.socket) -> None:
    process = rank_1(server, allowance=0.1)
    out, err = process.communicate(timeout=20)

    assert (process.returncode, out) == (1, "")
    where = rf"rank 1 on {re.escape(socket.gethostname())}"
    assert re.fullmatch(rf"commbench: {where}: no progress for \d+ s: timing allreduce 64K\n", err)


# -- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3:"),
        ([0, 1, 2], "ranks 0-2:"),
        ([0, 1, 2, 5], "ranks 0-2, 5:"),
        ([1, 3, 5, 6], "ranks 1, 3, 5-6:"),
    ],
)
def test_ranks_in_a_row_are_one_word(ranks: list[int], text: str) -> None:
    assert _some(ranks) == text


def test_a_slot_knows_what_and_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    slot = Slot(Doing("starting"))
    now[0] = 107.0
    assert (str(slot.doing), slot.age) == ("starting", 7.0)

    slot.set("timing", "allreduce 64K", 60.0)
    now[0] = 108.5
    assert (slot.doing, slot.age) == (Doing("timing", "allreduce 64K", 60.0), 1.5)
    assert str(slot.doing) == "timing allreduce 64K"


def test_a_rank_that_fell_silent_stands_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    watchdog = Watchdog(World(0, 3, 0, 3, "parent"), Slot(Doing("timing", "x")), lambda _: None, lambda _: None)
    for wire in (watchdog._wake_reader, watchdog._wake_writer):
        wire.close()
    watchdog._peers = {1: {"doing": "timing x", "heard": 999.5}, 2: {"doing": "checking x", "heard": 960.0}}

    silent = "silent for 40 s, last checking x (stopped, or its machine is gone)"
    assert watchdog._everyone() == f"rank 2: {silent}; ranks 0-1: timing x"


def test_a_fault_of_which_nothing_else_is_known_ends_with_1() -> None:
    assert Fault("died", "rank 1 died").exit_code == 1


def test_the_own_address_is_one_that_can_be_listened_on() -> None:
    with socket.create_server((own_address(), 0)) as server:
        assert server.getsockname()[1] > 0
