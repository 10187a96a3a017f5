"""What this node and this process are: the facts without which a result cannot be compared with another.

A fact that cannot be read is None, so a container or another system than Linux loses facts and nothing else.
Seconds, bytes, hertz and bytes per second throughout. `docs/measuring.md` says which facts must match.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from commbench.measure import cgroup, devices, procfs
from commbench.measure.procfs import ROOT

_CPU = "sys/devices/system/cpu"

# Options of the kernel's command line that change what a benchmark sees; the rest of the line is nobody's business.
_BOOT_OPTIONS = (
    "isolcpus", "nohz_full", "rcu_nocbs", "nosmt", "mitigations", "idle", "processor.max_cstate",
    "intel_idle.max_cstate", "intel_pstate", "amd_pstate", "transparent_hugepage", "hugepagesz", "hugepages",
)  # fmt: skip

_VIRTUAL_PRODUCTS = re.compile(
    r"KVM|QEMU|VMware|VirtualBox|Virtual Machine|Xen|Bochs|OpenStack|Google Compute|Amazon EC2|Firecracker|Apple Virt",
    re.IGNORECASE,
)

_SETTINGS = (
    "NCCL_", "RCCL_", "OMPI_", "PRTE_MCA_", "PMIX_MCA_", "OPAL_", "MPICH_", "MPIR_CVAR_", "HYDRA_", "I_MPI_", "MV2_",
    "UCX_", "FI_", "PSM2_", "PSM3_", "HCOLL_", "SHARP_", "GLOO_", "TORCH_", "CUDA_", "NVIDIA_", "HSA_", "ROCR_",
    "OMP_", "KMP_", "GOMP_", "NUMBA_", "NUMPY_", "SLURM_",
)  # fmt: skip
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")
# What launchers tell each rank about itself and about their sockets: different in every launch, and no setting.
_LAUNCHER_NOISE = re.compile(
    r"OMPI_(COMM_WORLD|WORLD|UNIVERSE|APP_CTX|NUM_APP|FIRST_RANKS|ARGV|COMMAND|TOOL_NAME|FILE_LOCATION|VERSION|LIBDIR"
    r"|MCA_PREFIXES|MCA_(orte|ess|pmix|initial_wdir|num_procs|cpu_type|shmem_RUNTIME))"
    r"|OPAL_USER_PARAMS_GIVEN|MPICH_INTERFACE_HOSTNAME"
    r"|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|STEPID|STEP_ID|JOBID|JOB_ID|JOB_START_TIME|JOB_END_TIME"
    r"|SRUN_COMM|STEP_LAUNCHER|LAUNCH_NODE|SUBMIT|WORKING_CLUSTER|PMI|CONF|SPANK|TMPDIR"
    r"|JOB_USER|JOB_UID|JOB_GID|JOB_GROUP|UMASK|SCRIPT_CONTEXT|CPU_BIND_LIST|.*_HOST$|.*_PORT$)"
)


def node_facts(root: Path = ROOT) -> dict[str, Any]:
    """Facts of the node, the same for all its processes; JSON values under a fixed set of keys."""
    system = re.search(r'^PRETTY_NAME="?(.+?)"?$', procfs.text(root / "etc/os-release") or "", re.MULTILINE)
    return {
        "hostname": socket.gethostname(),
        "machine_id": _machine_id(root),
        "boot_id": procfs.text(root / "proc/sys/kernel/random/boot_id"),
        "system": system[1] if system else platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "glibc": _glibc(),
        "python": platform.python_version(),
        **_processor(root),
        **_frequency(root),
        **_kernel_settings(root),
        **_memory(root),
        **_limits(root),
        "virtual": is_virtual(root),
        "hypervisor": _hypervisor(root),
        "load": load(root),
        "runnable": runnable_processes(root),
        "gpus": [name for name, _ in devices.nvidia_gpus(root)],
        "gpu_driver": devices.nvidia_driver(root),
        "networks": devices.networks(root),
    }


def key_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Of a node's facts those that must be equal before a run may be resumed or compared."""
    return {name: facts.get(name) for name in ("cpu_model", "gpus")}


def environment_facts(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that steer communication libraries and OpenMP, by an allow-list of prefixes.

    Values that may be secrets are written as "(hidden)"; what launchers tell each rank is left out.
    """
    return {
        name: "(hidden)" if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value
        for name, value in sorted(environ.items())
        if name.startswith(_SETTINGS) and not _LAUNCHER_NOISE.match(name)
    }


def process_facts(root: Path = ROOT) -> dict[str, Any]:
    """Facts of this process: where it may run ("pinned": on fewer CPUs than the node offers), how it is scheduled."""
    status = procfs.fields(procfs.text(root / "proc/self/status"))
    cpus = status.get("Cpus_allowed_list")
    # Fields after the name in parentheses, which may hold blanks itself: proc(5) counts them from 3.
    stat = (procfs.text(root / "proc/self/stat") or "").rpartition(")")[2].split()
    nice, policy = (int(stat[16]), int(stat[38])) if len(stat) > 38 else (None, None)  # noqa: PLR2004 - see above
    allowed = set(procfs.numbers(cpus))
    offered = procfs.numbers(cgroup.limits(root).cpus) or _online(root)
    return {
        "pid": os.getpid(),
        "cpus": cpus,
        "pinned": len(allowed) < len(offered) if allowed and offered else None,
        "numa_nodes": [node["node"] for node in numa_nodes(root) if allowed & set(procfs.numbers(node["cpus"]))],
        "memory_nodes": status.get("Mems_allowed_list"),
        "policy": _POLICIES.get(policy, str(policy)) if policy is not None else None,
        "nice": nice,
    }


_POLICIES = {0: "other", 1: "fifo", 2: "round-robin", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}


def last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """The size of one last-level cache, as CPU 0 sees it."""
    return max(((cache["level"], cache["bytes"]) for cache in caches(root)), default=(0, None))[1]


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """What can be allocated without swapping or being killed: free on the node, and left by the control group."""
    meminfo = procfs.fields(procfs.text(root / "proc/meminfo"))
    known = (procfs.kilobytes(meminfo.get("MemAvailable")), cgroup.limits(root).memory_left_bytes)
    return min((size for size in known if size is not None), default=None)


def usable_cores(root: Path = ROOT) -> int:
    """CPUs (hardware threads) that this process can keep busy: by affinity and control group quota, at least 1."""
    count, quota = allowed_cpus(root), cgroup.limits(root).cpu_quota
    return max(1, count if quota is None else min(count, int(quota)))


def allowed_cpus(root: Path = ROOT) -> int:
    """How many CPUs (hardware threads) this process may run on, by its affinity."""
    allowed = procfs.fields(procfs.text(root / "proc/self/status")).get("Cpus_allowed_list")
    return len(procfs.numbers(allowed)) or os.cpu_count() or 1


def runnable_processes(root: Path = ROOT) -> int | None:
    """Threads running or waiting for a CPU on the whole node now, the caller among them."""
    match = re.search(r" (\d+)/\d+ ", procfs.text(root / "proc/loadavg") or "")
    return int(match[1]) if match else None


def load(root: Path = ROOT) -> float | None:
    """The load average of the last minute: threads that run or wait, also for a disk."""
    match = re.match(r"[\d.]+", procfs.text(root / "proc/loadavg") or "")
    return float(match[0]) if match else None


def caches(root: Path = ROOT) -> list[dict[str, Any]]:
    """CPU 0's caches, nearest first: level, type ("data", "instruction", "unified"), bytes, CPUs that share one."""
    found = []
    for index in sorted((root / _CPU / "cpu0/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KM])", procfs.text(index / "size") or "")
        level = procfs.integer(index / "level")
        if size and level is not None:
            found.append(
                {
                    "level": level,
                    "type": (procfs.text(index / "type") or "unified").lower(),
                    "bytes": int(size[1]) << {"K": 10, "M": 20}[size[2]],
                    "shared_by": len(procfs.numbers(procfs.text(index / "shared_cpu_list"))) or None,
                }
            )
    return found


def numa_nodes(root: Path = ROOT) -> list[dict[str, Any]]:
    """The NUMA nodes: number, CPUs, bytes of memory."""
    found = []
    for directory in (root / "sys/devices/system/node").glob("node[0-9]*"):
        memory = re.search(r"MemTotal:\s*(\d+ kB)", procfs.text(directory / "meminfo") or "")
        found.append(
            {
                "node": int(directory.name.removeprefix("node")),
                "cpus": procfs.text(directory / "cpulist") or "",
                "memory_bytes": procfs.kilobytes(memory[1]) if memory else None,
            }
        )
    return sorted(found, key=lambda node: int(node["node"]))


def governors(root: Path = ROOT) -> list[str]:
    """The frequency governors in use, usually one; empty where the kernel does not steer the frequency."""
    found = {procfs.text(root / _CPU / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in _online(root)}
    return sorted(governor for governor in found if governor)


def is_virtual(root: Path = ROOT) -> bool | None:
    """Whether this is a virtual machine; None where nothing tells."""
    flags = procfs.fields(procfs.text(root / "proc/cpuinfo")).get("flags")
    if flags is not None:
        return "hypervisor" in flags.split()
    product = _hypervisor(root)
    return product is not None if product or (root / "sys/class/dmi/id").is_dir() else None


def _machine_id(root: Path) -> str | None:
    # The id itself is confidential by its specification (machine-id(5)); a keyed hash of it is not.
    known = procfs.text(root / "etc/machine-id")
    return hashlib.sha256(f"commbench {known}".encode()).hexdigest()[:16] if known else None


def _glibc() -> str | None:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ") or None
    except ValueError:  # another libc
        return None


def _online(root: Path) -> list[int]:
    return procfs.numbers(procfs.text(root / _CPU / "online"))


def _processor(root: Path) -> dict[str, Any]:
    info = procfs.fields(procfs.text(root / "proc/cpuinfo"))
    online = _online(root)
    topology = [root / _CPU / f"cpu{cpu}/topology" for cpu in online]
    arm = f"implementer {info.get('CPU implementer')} part {info.get('CPU part')}" if "CPU part" in info else None
    smt = procfs.integer(root / _CPU / "smt/active")
    return {
        "cpu_model": info.get("model name") or info.get("cpu") or arm,
        "sockets": _distinct(cpu / "physical_package_id" for cpu in topology),
        "cores": _distinct(cpu / "core_cpus_list" for cpu in topology)
        or _distinct(cpu / "thread_siblings_list" for cpu in topology),  # before Linux 5.3
        "cpus": len(online) or os.cpu_count(),
        "smt": bool(smt) if smt is not None else None,
        "microcode": info.get("microcode"),
        "caches": caches(root),
        "last_level_cache_bytes": last_level_cache_bytes(root),
        "mitigations": _mitigations(root),
    }


def _distinct(paths: Iterable[Path]) -> int | None:
    return len({procfs.text(path) for path in paths} - {None}) or None


def _mitigations(root: Path) -> dict[str, list[str]]:
    """The names of CPU flaws that this kernel works around ("mitigated", which costs time) or leaves open."""
    states = {path.name: procfs.text(path) or "" for path in sorted((root / _CPU / "vulnerabilities").glob("*"))}
    return {
        "mitigated": [name for name, state in states.items() if "Mitigation:" in state],
        "vulnerable": [name for name, state in states.items() if state.startswith("Vulnerable")],
    }


def _frequency(root: Path) -> dict[str, Any]:
    steering = root / _CPU / "cpu0/cpufreq"
    names = {"min": "min", "max": "max", "current": "cur"}
    kilohertz = {name: procfs.integer(steering / f"scaling_{short}_freq") for name, short in names.items()}
    no_turbo = procfs.integer(root / _CPU / "intel_pstate/no_turbo")
    boost = procfs.integer(root / _CPU / "cpufreq/boost")
    return {
        "governor": ",".join(governors(root)) or None,
        "frequency_driver": procfs.text(steering / "scaling_driver"),
        **{f"frequency_{name}_hertz": value and value * 1000 for name, value in kilohertz.items()},
        "boost": not no_turbo if no_turbo is not None else bool(boost) if boost is not None else None,
    }


def _kernel_settings(root: Path) -> dict[str, Any]:
    words = [word.partition("=") for word in (procfs.text(root / "proc/cmdline") or "").split()]
    huge_pages = re.search(r"\[(\w+)\]", procfs.text(root / "sys/kernel/mm/transparent_hugepage/enabled") or "")
    balancing = procfs.integer(root / "proc/sys/kernel/numa_balancing")
    return {
        "boot_options": {name: value or True for name, _, value in words if name in _BOOT_OPTIONS},
        "huge_pages": huge_pages[1] if huge_pages else None,
        "numa_balancing": bool(balancing) if balancing is not None else None,
        "clocksource": procfs.text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    }


def _memory(root: Path) -> dict[str, Any]:
    return {
        "memory_bytes": procfs.kilobytes(procfs.fields(procfs.text(root / "proc/meminfo")).get("MemTotal")),
        "memory_available_bytes": available_memory_bytes(root),
        "numa_nodes": numa_nodes(root),
    }


def _limits(root: Path) -> dict[str, Any]:
    found = cgroup.limits(root)
    return {
        "cgroup_cpu_quota": found.cpu_quota,
        "cgroup_cpus": found.cpus,
        "cgroup_memory_bytes": found.memory_bytes,
    }


def _hypervisor(root: Path) -> str | None:
    """The maker of the virtual machine, as far as it says so."""
    identity = root / "sys/class/dmi/id"
    product = " ".join(filter(None, (procfs.text(identity / name) for name in ("sys_vendor", "product_name"))))
    if _VIRTUAL_PRODUCTS.search(product) and "metal" not in product:
        return product
    return procfs.text(root / "sys/hypervisor/type")
