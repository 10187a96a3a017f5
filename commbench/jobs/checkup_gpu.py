"""What `doctor` says of GPUs, stage by stage: the first stage that fails is why a back end does not work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from commbench.backends.gpu import dotted, explained
from commbench.jobs.check import Check, State
from commbench.jobs.probe import Absent, Torch
from commbench.jobs.probe_gpu import Gpus, is_missing

_DRIVER = "install NVIDIA's driver; in a container, start it with --gpus all (docker) or --nv (apptainer)"
_LOST = "no SM clock in the records, throttled chunks are not noticed"
_ONE_CUPY = "pip uninstall -y {names}, then pip install the one for your CUDA: they own the same files"
_ONE_NCCL = "pip uninstall -y {names}, then pip install the one for your CUDA: they own the same libnccl.so.2"
# A connection of NCCL through host memory has a buffer for each protocol: LL 512 KiB, LL128 4.7 MiB, Simple 4 MiB
# (computeBuffSizes in src/init.cc). A ring and a tree of two channels is the least that it connects.
_CONNECTION = (512 << 10) + 120 * 640 * 8 * 8 + (4 << 20)
_CONNECTIONS = 4


def checks(gpus: Gpus, torch: Torch | Absent) -> list[Check]:
    """Findings on GPUs, and on the back ends that need them."""
    if not gpus.expected:
        return [
            *(_backend(name, "note", "no NVIDIA GPU here") for name in ("nccl", "torch-nccl", "copies")),
            *(check for check in (*_cupy(gpus), *_nccl(gpus)) if check.state != "missing"),
        ]
    driver = _driver(gpus)
    devices, cupy, nccl = list(_devices(gpus)), list(_cupy(gpus)), list(_nccl(gpus))
    return [
        _works("nccl", [driver, *devices, *cupy, *nccl], "{CuPy}, {libnccl}"),
        _torch_nccl(driver, devices, torch),
        _works("copies", [driver, *devices, *cupy], "{CuPy}"),
        driver,
        *devices,
        *_peers(gpus),
        *_fabric(gpus),
        *_nvml(gpus),
        *cupy,
        *nccl,
        *_torch(torch),
        *_settings(gpus),
        *_shared_memory(gpus),
        *_mpi(gpus),
    ]


def _backend(name: str, state: State, finding: str, fix: str = "") -> Check:
    return Check("back ends", name, state, finding, fix)


def _gpu(name: str, state: State, finding: str, fix: str = "") -> Check:
    return Check("GPUs", name, state, finding, fix)


def _works(name: str, stages: Sequence[Check], summary: str) -> Check:
    """A back end over its stages: what works, or the first that does not."""
    for stage in stages:
        if stage.state in ("missing", "broken"):
            return _backend(name, stage.state, f"{stage.name}: {stage.finding}", stage.fix)
    return _backend(name, "works", summary.format_map({stage.name: stage.finding for stage in stages}))


def _torch_nccl(driver: Check, devices: Sequence[Check], torch: Torch | Absent) -> Check:
    if isinstance(torch, Absent):
        return _backend("torch-nccl", "broken" if torch.installed else "missing", torch.reason, torch.hint)
    if torch.cuda is None or torch.nccl is None:
        finding = f"torch {torch.version} was built without {'NCCL' if torch.cuda else 'CUDA'}"
        return _backend("torch-nccl", "missing", finding, "pip install torch, in a build for CUDA (pytorch.org)")
    found = _works("torch-nccl", [driver, *devices], f"torch {torch.version}, NCCL {torch.nccl}")
    if found.state == "works" and not torch.gpus:
        fix = f"a driver of CUDA {torch.cuda} or later, or a torch for the driver's CUDA"
        return _backend("torch-nccl", "broken", f"torch {torch.version} for CUDA {torch.cuda} sees no GPU", fix)
    return found


# -- driver and devices ------------------------------------------------------------------------------------------


def _driver(gpus: Gpus) -> Check:
    driver, module = gpus.driver, f"kernel driver {gpus.module}" if gpus.module else "no kernel driver"
    if is_missing(driver):
        there = f"{_count(gpus.hardware, 'GPU')} on the PCI bus, " if gpus.hardware else ""
        return _gpu("driver", "missing", f"{there}{module}, but libcuda.so.1 cannot be loaded", _DRIVER)
    if isinstance(driver, Absent):
        return _gpu("driver", "broken", driver.reason, driver.hint)
    if driver["code"]:
        error = explained(driver["code"], f"driver error {driver['code']}, {module}")
        return _gpu("driver", "broken", error.message, error.hint)
    return _gpu("driver", "works", f"{module}, CUDA {dotted(driver['version'])}")


def _devices(gpus: Gpus) -> Iterator[Check]:
    if isinstance(gpus.driver, Absent) or gpus.driver["code"]:
        return
    names = gpus.driver["gpus"]
    hidden = f"; CUDA_VISIBLE_DEVICES is {gpus.visible!r}" if gpus.visible is not None else ""
    if not names:
        fix = "unset CUDA_VISIBLE_DEVICES" if gpus.visible is not None else "does nvidia-smi list any?"
        yield _gpu("devices", "missing", f"the driver shows no GPU{hidden}", fix)
        return
    known = gpus.nvml["gpus"] if isinstance(gpus.nvml, dict) else []
    finding = f"{_models(names)}{_modes(known)}{hidden}"
    if len(set(names)) > 1:
        fix = "choose alike ones with CUDA_VISIBLE_DEVICES: the slowest decides for all"
        yield _gpu("devices", "warning", f"different models: {finding}", fix)
    else:
        yield _gpu("devices", "works", finding)
    if any(gpu["mig"] for gpu in known):
        fix = "sudo nvidia-smi -mig 0 turns it off; slices have no peer access, and a process sees one of them"
        yield _gpu("MIG", "warning", f"on, on {_some(known, 'mig')}", fix)
    if any(gpu["persistence"] is False for gpu in known):
        finding = "off: the driver leaves an idle GPU, and coming back takes a second"
        yield _gpu("persistence", "note", finding, "sudo nvidia-smi -pm 1")


def _modes(known: Sequence[dict[str, Any]]) -> str:
    """ECC, where it is known: different settings are different memory bandwidths."""
    modes = {gpu["ecc"] for gpu in known}
    if len(modes) > 1:
        return f", ECC on {_some(known, 'ecc')}"
    return ", ECC on" if modes == {True} else ", ECC off" if modes == {False} else ""


def _peers(gpus: Gpus) -> Iterator[Check]:
    """Who reads whose memory directly, in words."""
    if not gpus.works or isinstance(gpus.driver, Absent) or len(gpus.driver["gpus"]) == 1:
        return
    names, rows = gpus.driver["gpus"], gpus.driver["peers"]
    count = len(rows)
    islands = {frozenset(peer for peer, can in enumerate(row) if can) for row in rows}
    if islands == {frozenset(range(count))}:
        yield _gpu("peer access", "works", f"between all {count} GPUs")
        return
    fix = "nvidia-smi topo -p2p r says why: PCIe ACS, an IOMMU, a virtual machine"
    if all(len(island) == 1 for island in islands):
        finding = "not offered by this driver; NCCL will stage through host memory"
        # NVIDIA's driver does not offer it on these at all.
        consumer = all("GeForce" in name or "RTX 40" in name or "RTX 50" in name for name in names)
        yield _gpu("peer access", "note" if consumer else "warning", finding, "" if consumer else fix)
        return
    if sum(map(len, islands)) == count:
        groups = " and ".join("{" + ",".join(map(str, sorted(island))) + "}" for island in sorted(islands, key=min))
        yield _gpu("peer access", "warning", f"within {groups}; between them through host memory", fix)
        return
    pairs = [f"{a}-{b}" for a in range(count) for b in range(a + 1, count) if not (rows[a][b] and rows[b][a])]
    shown = ", ".join(pairs[:6]) + (", ..." if len(pairs) > 6 else "")  # noqa: PLR2004 - what a line holds
    yield _gpu("peer access", "warning", f"not between {shown}", fix)


def _fabric(gpus: Gpus) -> Iterator[Check]:
    if not gpus.switches:
        return
    there = _count(gpus.switches, "NVSwitch", "NVSwitches")
    if gpus.manager:
        yield _gpu("fabric manager", "works", f"{there}, nvidia-fabricmanager runs")
    elif gpus.works:
        yield _gpu("fabric manager", "note", f"{there}; nvidia-fabricmanager is not seen, but the GPUs answer")
    else:
        fix = "sudo systemctl start nvidia-fabricmanager, of the driver's own version"
        yield _gpu("fabric manager", "broken", f"{there}, and nvidia-fabricmanager does not run", fix)


def _nvml(gpus: Gpus) -> Iterator[Check]:
    if gpus.nvml is None:
        return
    if isinstance(gpus.nvml, Absent):
        yield _gpu("NVML", "warning", f"{gpus.nvml.reason}: {_LOST}", gpus.nvml.hint)
    elif gpus.nvml["binding"]:
        yield _gpu("NVML", "warning", f"pynvml: {gpus.nvml['binding']}: {_LOST}", "pip install nvidia-ml-py")
    else:
        yield _gpu("NVML", "works", "clocks and what holds them down are recorded")


# -- libraries ---------------------------------------------------------------------------------------------------


def _cupy(gpus: Gpus) -> Iterator[Check]:
    if len(gpus.cupy_packages) > 1:
        yield _gpu("CuPy", "broken", f"{_several(gpus.cupy_packages)}", _one(_ONE_CUPY, gpus.cupy_packages))
        return
    found = gpus.cupy
    if found is None:
        return
    if isinstance(found, Absent):
        yield _gpu("CuPy", "broken" if found.installed else "missing", found.reason, found.hint)
        return
    name = f"CuPy {found['version']} for CUDA {dotted(found['runtime'])}"
    if found["code"] and not isinstance(gpus.driver, Absent):
        error = explained(found["code"], f"CUDA error {found['code']}")
        yield _gpu("CuPy", "broken", f"{name}: {error.message}", error.hint)
        return
    yield _gpu("CuPy", "works", name if gpus.works else f"{name}, not tried")
    if isinstance(gpus.compiler, Absent):
        reason = gpus.compiler.reason.removeprefix("loading cupy: ")
        yield _gpu("NVRTC", "broken", f"CuPy cannot compile: {reason}", gpus.compiler.hint)
    elif gpus.compiler is not None:
        version = ".".join(map(str, gpus.compiler["nvrtc"]))
        right = gpus.compiler["right"]
        finding = f"{version} compiles what writes inputs and compares answers"
        wrong = f"{version}: a kernel that CuPy compiled gives wrong answers"
        fix = "" if right else "does the GPU work? nvidia-smi -q, dmesg | grep -i xid"
        yield _gpu("NVRTC", "works" if right else "broken", finding if right else wrong, fix)


def _nccl(gpus: Gpus) -> Iterator[Check]:
    if len(gpus.nccl_packages) > 1:
        yield _gpu("libnccl", "broken", _several(gpus.nccl_packages), _one(_ONE_NCCL, gpus.nccl_packages))
        return
    found = gpus.nccl
    if found is None:
        return
    if isinstance(found, Absent):
        if "libnccl.so.2: cannot open shared object" in found.reason:
            yield _gpu("libnccl", "missing", "no libnccl.so.2 in this environment or on the loader's path", found.hint)
        else:
            yield _gpu("libnccl", "broken", found.reason.removeprefix("loading libnccl.so.2: "), found.hint)
        return
    built = str(found.get("nccl_built", ""))
    name = f"NCCL {built or found['version']} ({found['file']}, sha256 {found.get('nccl_sha256', '?')})"
    cuda = built.rpartition("+cuda")[2] if "+cuda" in built else ""
    driver = gpus.driver["version"] if not isinstance(gpus.driver, Absent) else 0
    if cuda and driver and int(cuda.partition(".")[0]) > driver // 1000:
        fix = f"pip install nvidia-nccl-cu{driver // 1000}, or update the driver"
        yield _gpu("libnccl", "broken", f"{name}: the driver is of CUDA {dotted(driver)}", fix)
        return
    yield _gpu("libnccl", "works", name)


def _torch(torch: Torch | Absent) -> Iterator[Check]:
    """Only facts: whether it works is a back end's line."""
    if isinstance(torch, Torch) and torch.cuda:
        nccl = f"NCCL {torch.nccl}" if torch.nccl else "no NCCL"
        yield _gpu("torch", "note", f"torch {torch.version} for CUDA {torch.cuda}, {nccl}")


def _settings(gpus: Gpus) -> Iterator[Check]:
    for where, values in gpus.settings.items():
        if values:
            words = " ".join(f"{name}={value}" for name, value in values.items())
            place = "set in the environment" if where == "environment" else "set by nccl.conf files, in every run"
            yield _gpu("NCCL settings", "note", f"{words} ({place})")


def _shared_memory(gpus: Gpus) -> Iterator[Check]:
    if isinstance(gpus.driver, Absent) or gpus.shared_memory is None or len(gpus.driver["gpus"]) < 2:  # noqa: PLR2004
        return
    need = len(gpus.driver["gpus"]) * _CONNECTIONS * _CONNECTION
    if gpus.shared_memory < need:
        size = f"{gpus.shared_memory >> 20}M in /dev/shm"
        finding = f"{size}: NCCL wants {need >> 20}M or more where these GPUs talk through host memory without cuMem"
        yield _gpu("shared memory", "warning", finding, "docker run --shm-size=1g --ulimit memlock=-1")


def _mpi(gpus: Gpus) -> Iterator[Check]:
    found = gpus.mpi
    if found is None:
        return
    name = "mpi on GPUs"
    if isinstance(found, Absent):
        died = "killed by signal" in found.reason
        finding = f"MPI was handed GPU memory and died: {found.reason}" if died else f"not found out: {found.reason}"
        yield _gpu(name, "broken" if died else "note", finding, found.hint)
    elif found["why"]:
        yield _gpu(name, "note", found["why"], found["fix"])
    else:
        yield _gpu(name, "works", "this MPI is CUDA-aware: a message and a sum of GPU memory arrived")


# -- words -------------------------------------------------------------------------------------------------------


def _models(names: Sequence[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())


def _some(known: Sequence[dict[str, Any]], mode: str) -> str:
    numbers = [str(index) for index, gpu in enumerate(known) if gpu[mode]]
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _several(packages: Sequence[str]) -> str:
    return f"{' and '.join(packages)} are both installed"


def _one(fix: str, packages: Sequence[str]) -> str:
    return fix.format(names=" ".join(package.partition(" ")[0] for package in packages))
