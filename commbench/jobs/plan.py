"""From what the user asked to what is measured: which back end, how many ranks, whether it can work at all."""

from __future__ import annotations

import importlib.util
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commbench.backends import about
from commbench.backends.base import World
from commbench.backends.buffers import bytes_needed
from commbench.backends.emulated import parse as parse_emulation
from commbench.backends.gpu import explained
from commbench.backends.routes import WITH_HOST, routes
from commbench.errors import UnavailableError, UsageError
from commbench.jobs.probe import Absent, Mpi, Torch, probe_mpi, probe_peers, probe_torch, visible_gpus
from commbench.measure.machine import available_memory_bytes, usable_cores
from commbench.spec import USUAL_ON_GPUS, Sweep
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


def plan(sweep: Sweep, *, launcher: str | None, given: Container[str] | None = None) -> Plan:
    """Settle a sweep of this command's own launches.

    Args:
        sweep: what was asked.
        launcher: the user's prefix that starts the ranks.
        given: the fields of `sweep` that the user named, None for all; of the others some are usual for a device.

    Raises:
        UnavailableError: the back end is not here; the hint installs it.
        UsageError: it cannot do what is asked.
    """
    if sweep.backend != "auto" and about(sweep.backend).one_process:
        return _plan_one_process(sweep, launcher, given)
    gpus = visible_gpus() if sweep.backend == "auto" or _device(sweep) == "cuda" else []
    name, why, mpi = _choose(sweep, launcher, gpus)
    _refuse_emulation(sweep, name)
    settled = on_device(replace(sweep, backend=name), given)
    on_gpus, ranks = settled.device == "cuda", sweep.ranks
    if ranks is None and not launcher:
        ranks = max(len(gpus), 1) if on_gpus else default_ranks()
    settled = replace(settled, ranks=ranks)
    if on_gpus and ranks is not None and not launcher:
        _refuse_too_few(gpus, ranks, settled)
    notes = []
    if ranks is not None:
        settled.points(ranks, about(name).capabilities)
        refuse_what_does_not_fit(settled, ranks)
        if ranks == 1:
            notes.append("one rank: nothing travels, the numbers are call overhead and copies; there is nothing to fit")
        elif ranks > usable_cores() and not about(name).virtual:
            notes.append(f"{ranks} ranks on {usable_cores()} cores: they take turns, so times are the scheduler's")
    return Plan(settled, mpi, why, tuple(notes))


def _plan_one_process(sweep: Sweep, launcher: str | None, given: Container[str] | None) -> Plan:
    """Settle a sweep of a back end that works all GPUs from one process: which of its routes this machine has."""
    name = sweep.backend
    _refuse_emulation(sweep, name)
    for flag, wrong in (
        ("--launcher", launcher is not None),
        (f"--ranks {sweep.ranks}", sweep.ranks not in (None, 1)),
        ("--allow-shared-gpu", sweep.allow_shared_gpu),
    ):
        if wrong:
            raise UsageError(
                f"{flag}: {name} is one process for all GPUs of a machine", "leave it out; --pair 0,1 chooses GPUs"
            )
    settled = replace(on_device(sweep, given), ranks=1)
    settled.points(1, about(name).capabilities)
    _refuse_missing(name)
    if not settled.routes:  # a file that is completed has them
        peers = probe_peers()
        if isinstance(peers, Absent):
            raise UnavailableError(f"--backend {name}: {peers.reason}", peers.hint)
        if peers.code:
            raise explained(peers.code, f"driver error {peers.code}")
        settled = replace(settled, routes=routes(settled, peers.gpus, peers.access))
    _refuse_host_memory(settled)
    return Plan(settled, None, "--backend", ())


def _refuse_host_memory(sweep: Sweep) -> None:
    """The buffers in host memory of each kind that the routes use; those on GPUs are known to the process alone."""
    points, _ = sweep.points(1, about(sweep.backend).capabilities)
    largest = {point.path: bytes_needed(point) for point in points if point.path in WITH_HOST}
    need, there = sum(largest.values()), available_memory_bytes()
    if there is not None and need > there:
        raise UsageError(
            f"--max-bytes {format_size(max(point.bytes for point in points))}: buffers in host memory need "
            f"{need / 2**30:.1f} GiB, {there / 2**30:.1f} GiB are available",
            "use a smaller -e, or --path without pinned or pageable",
        )


def on_device(sweep: Sweep, given: Container[str] | None) -> Sweep:
    """`sweep` on the device that its back end works on, with what is usual there where the user named nothing."""
    able = about(sweep.backend).capabilities
    device = _device(sweep)
    usual: dict[str, Any] = {}
    if device == "cuda" and given is not None:
        usual = {name: value for name, value in {**USUAL_ON_GPUS, **able.usual}.items() if name not in given}
    if sweep.min_bytes > usual.get("max_bytes", sweep.min_bytes):
        del usual["max_bytes"]
    return replace(sweep, device=device, **usual)


def _device(sweep: Sweep) -> str:
    return sweep.device or about(sweep.backend).capabilities.devices[0]


def _refuse_too_few(gpus: list[str], ranks: int, sweep: Sweep) -> None:
    """Where NVML tells nothing, the ranks find out themselves."""
    if gpus and ranks > len(gpus) and not sweep.allow_shared_gpu:
        raise UsageError(
            f"--ranks {ranks}: there {'is' if len(gpus) == 1 else 'are'} only {len(gpus)} GPU{'s' * (len(gpus) > 1)}",
            f"use --ranks {len(gpus)}; --allow-shared-gpu tests answers with several ranks on one GPU",
        )


def plan_as_rank(sweep: Sweep, world: World, *, given: Container[str] | None = None) -> Plan:
    """Settle a sweep of a process that is a rank already: the launcher says what can be.

    Raises:
        UnavailableError, UsageError: as `plan`.
    """
    if sweep.backend == "auto":
        name, why = _choose_as_rank(sweep, world)
    else:
        name, why = sweep.backend, "--backend"
    _refuse_emulation(sweep, name)
    if about(name).one_process:
        raise UsageError(
            f"--backend {name} is one process for all GPUs of a machine, a launcher started {world.size}",
            "start it without mpirun, torchrun or srun, once on each machine",
        )
    _refuse_missing(name)
    if sweep.ranks not in (None, world.size):
        raise UsageError(f"--ranks {sweep.ranks}: the launcher started {world.size}", "leave --ranks out")
    settled = replace(on_device(replace(sweep, backend=name), given), ranks=world.size)
    settled.points(world.size, about(name).capabilities)
    notes = () if world.size > 1 else ("one rank: nothing travels, there is nothing to fit",)
    return Plan(settled, None, why, notes)


def _choose_as_rank(sweep: Sweep, world: World) -> tuple[str, str]:
    """All ranks must come to the same: NVML is asked on each, and nodes of one job are alike or the run refuses."""
    by = "an MPI launcher" if world.launcher == "mpi" else world.launcher
    if sweep.device != "cpu" and (gpus := visible_gpus()):
        return _for_gpus(gpus)[0], f"started by {by}, GPUs are here"
    _refuse_no_gpu(sweep)
    return ("mpi" if world.launcher == "mpi" else "gloo"), f"started by {by}"


def _refuse_no_gpu(sweep: Sweep) -> None:
    """Only where the back end is chosen here: one that was named says more of what it lacks."""
    if sweep.device == "cuda":
        raise UnavailableError(
            "--device cuda: no GPU is visible here", "is CUDA_VISIBLE_DEVICES right? `commbench doctor` says more"
        )


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
    if about(sweep.backend).virtual or sweep.device == "cuda":  # a GPU's memory is known to its ranks alone
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


def _choose(sweep: Sweep, launcher: str | None, gpus: list[str]) -> tuple[str, str, Mpi | None]:
    """(back end, why, its MPI)."""
    asked = sweep.backend
    if asked != "auto":
        about(asked)
        return asked, "--backend", _mpi_for(asked, launcher)
    # A curve of the host, taken for one of the GPUs, would mislead: where GPUs are it needs asking for.
    if gpus and sweep.device != "cpu":
        return (*_for_gpus(gpus), None)
    _refuse_no_gpu(sweep)
    found = probe_mpi(launcher=launcher is None)
    if isinstance(found, Mpi):
        return "mpi", "the first of mpi and gloo that works here", found
    if importlib.util.find_spec("torch") is not None:
        return "gloo", "no usable MPI here, torch is", None
    raise UnavailableError(
        f"no back end works here: {found.reason}; torch is not installed",
        "pip install 'commbench[mpich]' brings an MPI, pip install 'commbench[torch]' Gloo; see `commbench doctor`",
    )


def _for_gpus(gpus: list[str]) -> tuple[str, str]:
    """(back end, why) on a machine with GPUs; what it needs besides is found out by the ranks."""
    here = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} here"
    if importlib.util.find_spec("cupy") is not None:
        return "nccl", here
    torch = probe_torch()
    if isinstance(torch, Torch) and torch.cuda:
        return "torch-nccl", f"{here}, CuPy is not"
    raise UnavailableError(
        f"{here}, but neither CuPy nor a torch for CUDA to use them",
        "pip install 'commbench[cuda12]' (or [cuda13]); --device cpu measures the host; see `commbench doctor`",
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
    how = "+".join(sweep.paths) or sweep.path_label()
    count = "" if about(sweep.backend).one_process else f"-{ranks or 'n'}r"
    return Path("results") / f"{stamp}-{what}-{sweep.backend}-{how}{count}.jsonl"
