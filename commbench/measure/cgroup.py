"""The limits that control groups put on this process: version 1, version 2, or both mounted side by side.

A limit may sit on any level between the process's own group and the top of the mount; the tightest holds.
Inside a container the top of the mount is usually the container's own group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from commbench.measure import procfs
from commbench.measure.procfs import ROOT

# Version 1 writes "no limit" as the largest multiple of a page that fits 63 bits.
_NO_LIMIT = 1 << 60
# The name of version 2 in /proc/self/cgroup, where version 1 has a controller's.
_VERSION_2 = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the control groups allow; None is "no limit, or none that can be seen".

    Attributes:
        cpu_quota: CPUs' worth of time per period, 1.5 for 150 ms in 100 ms. Beyond it all threads are stopped.
        cpus: the CPUs that may be used, as the kernel lists them: "0-3,8".
        memory_bytes: the most memory.
        memory_left_bytes: what of it is not used; file cache that would be given back counts as free.
    """

    cpu_quota: float | None
    cpus: str | None
    memory_bytes: int | None
    memory_left_bytes: int | None


def limits(root: Path = ROOT) -> Limits:
    """The tightest limits over all levels of this process's groups."""
    quotas = [_cpu_quota(level) for level in _levels(root, "cpu")]
    memory = [_memory(level) for level in _levels(root, "memory")]
    return Limits(
        cpu_quota=min((quota for quota in quotas if quota is not None), default=None),
        cpus=next(filter(None, map(_cpus, _levels(root, "cpuset"))), None),
        memory_bytes=min((limit for limit, _ in filter(None, memory)), default=None),
        memory_left_bytes=min((left for _, left in filter(None, memory)), default=None),
    )


def _cpu_quota(level: Path) -> float | None:
    quota, _, period = (procfs.text(level / "cpu.max") or "").partition(" ")
    if not quota:
        quota = procfs.text(level / "cpu.cfs_quota_us") or ""
        period = procfs.text(level / "cpu.cfs_period_us") or ""
    if not (quota.isdecimal() and period.isdecimal() and int(period)):  # "max" and -1: no quota
        return None
    return int(quota) / int(period)


def _cpus(level: Path) -> str | None:
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    return next(filter(None, (procfs.text(level / name) for name in names)), None)


def _memory(level: Path) -> tuple[int, int] | None:
    """(limit, what is left of it) in bytes."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = procfs.integer(level / limit_name)
        if limit is not None and 0 <= limit < _NO_LIMIT:
            used = procfs.integer(level / used_name) or 0
            cache = re.search(rf"^{cache_name} (\d+)$", procfs.text(level / "memory.stat") or "", re.MULTILINE)
            return limit, min(limit, max(0, limit - used + int(cache[1] if cache else 0)))
    return None


def _levels(root: Path, controller: str) -> list[Path]:
    """The directories of this process's group and its parents, the process's own first."""
    groups = dict(_groups(root))
    key = controller if controller in groups else _VERSION_2
    group = PurePosixPath(groups.get(key, "/"))
    for top, mounted_at, controllers in _mounts(root):
        if key in controllers:
            # A container may see the host's name of its group, but have only the group itself mounted.
            inside = group.relative_to(top).parts if group.is_relative_to(top) else ()
            steps = () if ".." in inside else inside
            directory = root / mounted_at.lstrip("/")
            return [directory.joinpath(*steps[:depth]) for depth in range(len(steps), -1, -1)]
    return []


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """(controller, group) of each line of /proc/self/cgroup: "4:cpu,cpuacct:/docker/5f", "0::/user.slice"."""
    for line in (procfs.text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, group


def _mounts(root: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(group at the top, where it is mounted, controllers) of every cgroup file system."""
    for line in (procfs.text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind in ("cgroup", "cgroup2"):
            _, _, _, top, mounted_at, *_ = left.split()
            yield top, mounted_at, [_VERSION_2] if kind == "cgroup2" else options.split(" ")[-1].split(",")
