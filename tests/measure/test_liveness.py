"""Who died, who hangs, who was stopped.

The watchdog of rank 0 is real and in a process of its own, because it ends that process. The other ranks are
sockets of the test that say what ranks say.
"""

from __future__ import annotations

import json
import os
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

# Another rank, whose rank 0 is the test. Until its input ends it is busy, with a failure of its own at most.
RANK_1 = """
import sys
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
sys.stdin.read()
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

    def hear_of(self, rank: int) -> str:
        """Wait until rank 0 has heard from `rank`; returns what that is doing."""
        while True:
            self.tell("doing")
            doing: dict[str, str] = self.line("doing")["doing"]
            if str(rank) in doing:
                return doing[str(rank)]

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
    while not (doing := leader.hear_of(1)):
        pass
    assert (doing, leader.hear_of(0)) == ("checking broadcast 8", "timing allreduce 64K")


def test_after_the_end_closed_links_are_no_deaths(leader: Leader) -> None:
    wire = leader.link(1)
    leader.hear_of(1)
    leader.tell("close")
    leader.line("closed")
    assert wire.recv(100) == b"done\n"  # so that the other rank does not take it for dead either
    wire.close()

    out, err = leader.process.communicate(timeout=20)
    assert leader.process.returncode == 0
    assert '"kind"' not in out
    assert err == ""


def test_rank_0_that_nobody_listens_to_any_more_ends_the_launch(leader: Leader) -> None:
    """Its parent was killed: the pipe of its lines is broken."""
    assert leader.process.stdout is not None
    assert leader.process.stderr is not None
    leader.process.stdout.close()

    assert leader.process.wait(20) == 1
    assert leader.process.stderr.read().startswith("commbench: nobody reads what rank 0 says any more")


# -- the other ranks ---------------------------------------------------------------------------------------------


def rank_1(server: socket.socket | None, fault: str = "", allowance: float = 60.0) -> subprocess.Popen[str]:
    return start(RANK_1, str(server.getsockname()[1]) if server else "0", fault, str(allowance))


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a process that ends by itself, though its input is still open."""
    code = process.wait(20)
    out, err = process.communicate()
    return code, out, err


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
    assert end_of(process) == (1, "", "")


def test_a_rank_without_a_link_says_itself_why_it_fails() -> None:
    process = rank_1(None, "no MPI here")

    assert end_of(process) == (1, "", "commbench: rank 1: no MPI here\n")


@pytest.mark.parametrize(
    ("farewell", "said"), [(b"", "commbench: rank 0 is gone while rank 1 was timing allreduce 64K\n"), (b"bye\n", "")]
)
def test_the_silent_death_of_rank_0_has_a_witness(server: socket.socket, farewell: bytes, said: str) -> None:
    process = rank_1(server)
    wire, _ = server.accept()
    wire.recv(1000)
    wire.sendall(farewell)
    wire.close()

    assert end_of(process) == (1, "", said)


def test_a_rank_that_was_told_that_all_is_done_goes_on_to_its_own_end(server: socket.socket) -> None:
    process = rank_1(server)
    wire, _ = server.accept()
    wire.recv(1000)
    wire.sendall(b"done\n")
    wire.close()
    time.sleep(0.3)

    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


def test_a_rank_that_hangs_while_rank_0_says_nothing_ends_itself(server: socket.socket) -> None:
    process = rank_1(server, allowance=0.1)
    code, out, err = end_of(process)

    assert (code, out) == (1, "")
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


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    """Of rank 0 of five, never started, at 1000 s: rank 2 was last heard at 960, rank 3 on another host, 4 not yet."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    one = Watchdog(World(0, 5, 0, 5, "parent"), Slot(Doing("timing", "x")), lambda _: None, lambda _: None)
    here = socket.gethostname()
    one._peers = {
        1: {"host": here, "pid": 11, "doing": "timing x", "heard": 999.5},
        2: {"host": here, "pid": 12, "doing": "checking x", "heard": 960.0},
        3: {"host": "elsewhere", "pid": 13, "doing": "timing x", "heard": 980.0},
    }
    yield one
    for wire in (one._wake_reader, one._wake_writer):
        wire.close()


def test_ranks_that_fell_silent_stand_first(watchdog: Watchdog) -> None:
    gone = "(stopped, or its machine is gone)"
    assert watchdog._everyone() == (
        f"rank 2: silent for 40 s, last checking x {gone}; rank 3: silent for 20 s, last timing x {gone}; "
        "ranks 0-1: timing x; rank 4: not linked"
    )


def test_only_the_silent_ranks_of_this_host_are_ended(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process (SIGSTOP, a debugger) would not notice that all is over, and launchers wait for it."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    watchdog._end_the_stopped()

    assert killed == [(12, signal.SIGKILL)]


def test_a_fault_of_which_nothing_else_is_known_ends_with_1() -> None:
    assert Fault("died", "rank 1 died").exit_code == 1


def test_the_own_address_is_one_that_can_be_listened_on() -> None:
    with socket.create_server((own_address(), 0)) as server:
        assert server.getsockname()[1] > 0
