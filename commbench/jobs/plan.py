"""From what the user asked to what is measured: which back end, how many ranks, whether it can work at all."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from commbench.backends import about
from commbench.backends.base import World
from commbench.backends.buffers import bytes_needed
from commbench.backends.emulated import parse as parse_emulation
from commbench.errors import UnavailableError, UsageError
from commbench.jobs.probe import Absent, Mpi, probe_mpi, visible_gpus
from commbench.measure.machine import available_memory_bytes, usable_cores
from commbench.spec import Sweep
from commbench.units import format_size

_FEWEST_RANKS, _MOST_RANKS = 2, 8


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep that can start.

    Attributes:
        sweep: with its back end and rank count settled (ranks None where a launcher decides).
        mpi: the MPI to start ranks with, None where it is not needed.
        why: why this back end, in a few words.
        notes: what the user should know before it starts.
    """

    sweep: Sweep
    mpi: Mpi | None
    why: str
    notes: tuple[str, ...]


def plan(sweep: Sweep, *, launcher: str | None) -> Plan:
    """Settle a sweep of this command's own launches.

    Raises:
        UnavailableError: the back end is not here; the hint installs it.
        UsageError: it cannot do what is asked.
    """
    name, why, mpi = _choose(sweep.backend, launcher)
    _refuse_emulation(sweep, name)
    ranks = sweep.ranks if launcher else sweep.ranks or default_ranks()
    settled = replace(sweep, backend=name, ranks=ranks)
    notes = []
    if ranks is not None:
        settled.points(ranks, about(name).capabilities)
        refuse_what_does_not_fit(settled, ranks)
        if ranks == 1:
            notes.append("one rank: nothing travels, the numbers are call overhead and copies; there is nothing to fit")
        elif ranks > usable_cores() and not about(name).virtual:
            notes.append(f"{ranks} ranks on {usable_cores()} cores: they take turns, so times are the scheduler's")
    return Plan(settled, mpi, why, tuple(notes))


def plan_as_rank(sweep: Sweep, world: World) -> Plan:
    """Settle a sweep of a process that is a rank already: the launcher says what can be.

    Raises:
        UnavailableError, UsageError: as `plan`.
    """
    if sweep.backend == "auto":
        name, why = (
            ("mpi", "started by an MPI launcher")
            if world.launcher == "mpi"
            else ("gloo", f"started by {world.launcher}")
        )
    else:
        name, why = sweep.backend, "--backend"
    _refuse_emulation(sweep, name)
    _refuse_missing(name)
    if sweep.ranks not in (None, world.size):
        raise UsageError(f"--ranks {sweep.ranks}: the launcher started {world.size}", "leave --ranks out")
    settled = replace(sweep, backend=name, ranks=world.size)
    settled.points(world.size, about(name).capabilities)
    notes = () if world.size > 1 else ("one rank: nothing travels, there is nothing to fit",)
    return Plan(settled, None, why, notes)


def _refuse_emulation(sweep: Sweep, name: str) -> None:
    parse_emulation(sweep.emulate)
    if sweep.emulate and name != "emulated":
        raise UsageError("--emulate describes the emulated back end", "add --backend emulated")


def default_ranks() -> int:
    """One rank a core, 2 to 8."""
    return min(max(usable_cores(), _FEWEST_RANKS), _MOST_RANKS)


def refuse_what_does_not_fit(sweep: Sweep, ranks: int) -> None:
    """Refuse sizes beyond this machine's memory before anything is allocated.

    Raises:
        UsageError: with the number of bytes that would be needed.
    """
    if about(sweep.backend).virtual:
        return
    points, _ = sweep.points(ranks, about(sweep.backend).capabilities)
    largest = max(points, key=bytes_needed)
    need, there = bytes_needed(largest) * ranks, available_memory_bytes()
    if there is not None and need > there:
        raise UsageError(
            f"--max-bytes {format_size(largest.bytes)}: {ranks} ranks need {need / 2**30:.1f} GiB of buffers, "
            f"{there / 2**30:.1f} GiB are available",
            "use a smaller -e, or fewer --ranks",
        )


def _choose(asked: str, launcher: str | None) -> tuple[str, str, Mpi | None]:
    """(back end, why, its MPI)."""
    if asked != "auto":
        about(asked)
        return asked, "--backend", _mpi_for(asked, launcher)
    if gpus := visible_gpus():
        # A curve of the host's memory, taken for one of the GPUs, would mislead: it needs asking for.
        raise UnavailableError(
            f"{len(gpus)} GPUs are here, and this version measures host memory only",
            "--backend mpi or --backend gloo measures the host",
        )
    found = probe_mpi(launcher=launcher is None)
    if isinstance(found, Mpi):
        return "mpi", "the first of mpi and gloo that works here", found
    if importlib.util.find_spec("torch") is not None:
        return "gloo", "no usable MPI here, torch is", None
    raise UnavailableError(
        f"no back end works here: {found.reason}; torch is not installed",
        "pip install 'commbench[mpich]' brings an MPI, pip install 'commbench[torch]' Gloo; see `commbench doctor`",
    )


def _mpi_for(name: str, launcher: str | None) -> Mpi | None:
    if about(name).control != "mpi":
        _refuse_missing(name)
        return None
    found = probe_mpi(launcher=launcher is None)
    if isinstance(found, Absent):
        raise UnavailableError(f"--backend {name}: {found.reason}", found.hint)
    return found


def _refuse_missing(name: str) -> None:
    row = about(name)
    for module in row.modules:
        if importlib.util.find_spec(module) is None:
            raise UnavailableError(
                f"--backend {name}: {module} is not installed", f"pip install 'commbench[{row.install}]'"
            )


def expectation(sweep: Sweep, points: int) -> str:
    """What is about to be measured and how long it may take, for the first line."""
    runs = f"{sweep.runs} runs" if sweep.runs > 1 else "1 run"
    limit = f"-n {sweep.iters}" if sweep.iters else f"at most {sweep.total_budget:g} s of measuring"
    return f"{points} points x {runs}, {limit}"


def default_output(sweep: Sweep, ranks: int | None, stamp: str) -> Path:
    """The name results/<utc>-<operation>-<back end>-<path>-<ranks>r.jsonl."""
    what = sweep.ops[0] if len(sweep.ops) == 1 else f"{len(sweep.ops)}ops"
    return Path("results") / f"{stamp}-{what}-{sweep.backend}-auto-{ranks or 'n'}r.jsonl"
