"""Starting the ranks of one launch, listening to rank 0, and ending all of them, whatever happens.

`command_lines` is a function from numbers to argument lists and environments, tested without launching. `Launch`
runs them. Ranks are started with a session of their own, so that Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from commbench.backends import about
from commbench.errors import LaunchError
from commbench.job import Job
from commbench.jobs.probe import Mpi
from commbench.measure.__main__ import LINE_MARK
from commbench.measure.machine import usable_cores
from commbench.measure.ranks import PARENT_MARK, RANK_VARIABLES

KEPT = "finished records are kept; --resume measures the rest"
_DOCTOR = "`commbench doctor` checks the launcher and the libraries"
_WITNESS = "commbench: "
_LINES_KEPT, _LONGEST_QUOTE = 200, 200
_GRACE = 5.0
_MODULE = "commbench.measure"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """One process to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def command_lines(
    job: Job,
    *,
    launcher: str | None,
    mpi: Mpi | None,
    environment: Mapping[str, str] = os.environ,
    python: Sequence[str] = (sys.executable,),
) -> list[CommandLine]:
    """What to start for `job`: one launcher, or one child a rank.

    Args:
        job: goes to every rank as one word of the command line, which every launcher passes on.
        launcher: the user's prefix, as "srun -N2 -n16" or "mpirun -np 16 -H a,b".
        mpi: the MPI in use, for back ends on MPI without a `launcher`.
        environment: of this process. Variables that would make a child take itself for somebody else's rank go.
        python: the words that start an interpreter, perhaps of another environment or in a container.
    """
    rank = (*python, "-m", _MODULE, job.encode())
    # The job's own variables are set in the ranks too, but LD_PRELOAD and launchers look at the process' alone.
    clean = {name: value for name, value in environment.items() if name not in RANK_VARIABLES} | dict(job.environment)
    if launcher:
        return [CommandLine((*shlex.split(launcher), *rank), clean)]
    count = job.sweep.ranks or 1
    if about(job.sweep.backend).control == "mpi":
        assert mpi is not None
        assert mpi.mpiexec is not None
        return [CommandLine((mpi.mpiexec, *_flags(mpi, count), "-n", str(count), *rank), clean)]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(count), PARENT_MARK: "1"}
    # All ranks are here: Gloo would otherwise look for the interface of the host's name, which may not resolve.
    where |= {"GLOO_SOCKET_IFNAME": clean.get("GLOO_SOCKET_IFNAME", "lo"), "LOCAL_WORLD_SIZE": str(count)}
    return [CommandLine(rank, clean | where | {"RANK": str(k), "LOCAL_RANK": str(k)}) for k in range(count)]


def _flags(mpi: Mpi, count: int) -> list[str]:
    if mpi.mpiexec_flavour != "Open MPI":
        return []
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return root + (["--oversubscribe"] if count > usable_cores() else [])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Launch:
    """One launch of all ranks. Use as a context manager: leaving it ends every process it started."""

    def __init__(self, job: Job, commands: Sequence[CommandLine]) -> None:
        self.job = job
        self._commands = commands
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._readers: list[threading.Thread] = []
        self._said: list[str] = []
        self._placement: list[dict[str, Any]] = []
        self.last = "starting"

    def __enter__(self) -> Self:
        try:
            for command in self._commands:
                process = subprocess.Popen(
                    command.argv,
                    env=dict(command.environment),
                    stdin=subprocess.PIPE if self.job.visits else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                self._processes.append(process)
                assert process.stdout is not None
                assert process.stderr is not None
                for stream in (process.stdout, process.stderr):
                    reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
                    reader.start()
                    self._readers.append(reader)
        except BaseException as error:
            self.end()  # Ctrl-C may come between two ranks
            if not isinstance(error, OSError):
                raise
            name = self._commands[0].argv[0]
            raise LaunchError(
                f"{name}: cannot be started: {error.strerror}", "check --launcher, or see `commbench doctor`"
            ) from error
        threading.Thread(target=self._close_queue, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    def run(self, on_line: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Hand every line of rank 0 to `on_line`; returns the "end" line.

        Raises:
            LaunchError: the ranks ended, or fell silent, without one.
        """
        patience = self.job.sweep.init_timeout + _GRACE
        while True:
            try:
                line = self._lines.get(timeout=patience)
            except queue.Empty:
                raise LaunchError(
                    f"rank 0 has been silent for {patience:.0f} s; it was {self.last}",
                    "raise --timeout if the point is that slow" if self._placement else "raise --init-timeout",
                ) from None
            if line is None:
                raise LaunchError(self._obituary(), KEPT if self._placement else _DOCTOR)
            match line.get("kind"):
                case "now":
                    self.last = f"{line['phase']} {line['what']}".strip() if "phase" in line else self.last
                    # Rank 0 beats once a second and judges hangs itself; silence means that it cannot.
                    patience = float(line.get("allowance", self.job.sweep.timeout)) + _GRACE - 1
                case "run":
                    self._placement = list(line.get("placement", ()))
                    on_line(line)
                    continue
                case "end":
                    self._wait_for_the_end()
                    return line
            on_line(line)

    def give_turn(self) -> None:
        """Let rank 0 of a job that takes turns go on; launchers hand their standard input to it."""
        stream = self._processes[0].stdin
        assert stream is not None
        with contextlib.suppress(OSError):  # it is gone, which `run` will say
            stream.write(b"\n")
            stream.flush()

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            text = raw.decode(errors="replace")
            before, mark, ours = text.partition(LINE_MARK)
            if mark:
                try:
                    line = json.loads(ours)
                except ValueError:
                    continue
                if isinstance(line, dict):
                    self._lines.put(line)
            if before.strip():
                self._said.append(before.rstrip())
                del self._said[:-_LINES_KEPT]

    def _close_queue(self) -> None:
        for reader in self._readers:
            reader.join()
        self._lines.put(None)

    def _obituary(self) -> str:
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE)
        codes = sorted({process.returncode for process in self._processes if process.returncode})
        ended = f"the ranks ended (exit status {', '.join(map(str, codes)) or 0})"
        if witness := [line.partition(_WITNESS)[2] for line in self._said if _WITNESS in line]:
            return f"{ended}: {'; '.join(dict.fromkeys(witness[-3:]))}"
        said = [line[:_LONGEST_QUOTE] for line in self._said if line.strip(" =-*")]
        return f"{ended} while {self.last}{': ' if said else ' and said nothing'}{'; '.join(dict.fromkeys(said[-3:]))}"

    def _wait_for_the_end(self) -> None:
        deadline = time.monotonic() + _GRACE
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(deadline - time.monotonic(), 0.01))

    def end(self) -> None:
        """End every process of this launch: politely, then not."""
        with _undisturbed():
            self._end()

    def _end(self) -> None:
        for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
            alive = [process for process in self._processes if process.poll() is None]
            for process in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + patience
            for process in alive:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(deadline - time.monotonic(), 0.01))
        self._kill_ranks_left_behind()
        for process in self._processes:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _kill_ranks_left_behind(self) -> None:
        """Hydra gives each rank a session of its own, and a stopped rank ignores its polite end."""
        word = self.job.encode().encode()
        here = socket.gethostname()
        for rank in self._placement:
            if rank.get("host") != here:
                continue
            # The number may be another process' by now: only one that was given this very job is ours.
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{rank['pid']}/cmdline").read_bytes():
                    os.kill(int(rank["pid"]), signal.SIGKILL)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave ranks behind: ending them takes seconds at most."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
