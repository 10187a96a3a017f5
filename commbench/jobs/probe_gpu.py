"""What GPUs need, asked stage by stage: driver, NVML, CuPy, its compiler, libnccl, MPI. No CUDA context is made here.

Each library is loaded by a child process of its own, for one that hangs or crashes must not hide the others.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from commbench.backends import nccl_library
from commbench.jobs.probe import Absent, Question, ask
from commbench.measure import devices
from commbench.measure.procfs import ROOT

_NO_DRIVER = "libcuda.so.1"

_DRIVER = Question(
    module=_NO_DRIVER,
    keys=frozenset({"code", "version", "gpus", "peers"}),
    install="install NVIDIA's driver",
    repair="does nvidia-smi work? dmesg | grep -i xid",
    code="""
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
version, count = ctypes.c_int(), ctypes.c_int()
code = driver.cuInit(0)
driver.cuDriverGetVersion(ctypes.byref(version))
if not code:
    code = driver.cuDeviceGetCount(ctypes.byref(count))
gpus, peers = [], []
handles = [ctypes.c_int() for _ in range(count.value)]
for index, handle in enumerate(handles):
    driver.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, handle)
    gpus.append(name.value.decode(errors="replace"))
for mine in handles:
    row = []
    for other in handles:
        can = ctypes.c_int(mine is other)
        if mine is not other and driver.cuDeviceCanAccessPeer(ctypes.byref(can), mine, other):
            can.value = 0
        row.append(bool(can.value))
    peers.append(row)
answer = {"code": code, "version": version.value, "gpus": gpus, "peers": peers}
""",
)

_NVML = Question(
    module="libnvidia-ml.so.1",
    keys=frozenset({"gpus", "binding"}),
    install="it comes with NVIDIA's driver; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    repair="does nvidia-smi work? dmesg | grep -i xid",
    code="""
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")

def call(function, *arguments):
    code = getattr(nvml, function)(*arguments)
    if code:
        raise OSError(f"{function} returned {code}")

def mode(function, device, more):
    values = [ctypes.c_uint() for _ in range(1 + more)]
    try:
        call(function, device, *map(ctypes.byref, values))
    except (OSError, AttributeError):
        return None  # this GPU, or this driver, has no such thing
    return bool(values[0].value)

call("nvmlInit_v2")
count = ctypes.c_uint()
call("nvmlDeviceGetCount_v2", ctypes.byref(count))
gpus = []
for index in range(count.value):
    device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
    call("nvmlDeviceGetName", device, name, 96)
    gpus.append({
        "name": name.value.decode(),
        "persistence": mode("nvmlDeviceGetPersistenceMode", device, 0),
        "mig": mode("nvmlDeviceGetMigMode", device, 1),
        "ecc": mode("nvmlDeviceGetEccMode", device, 1),
    })
try:
    import pynvml
    pynvml.nvmlInit()
    binding = ""
except Exception as error:
    binding = str(error) or type(error).__name__
answer = {"gpus": gpus, "binding": binding}
""",
)

_CUPY = Question(
    module="cupy",
    keys=frozenset({"version", "runtime", "code", "gpus"}),
    install="pip install 'commbench[cuda12]', or 'commbench[cuda13]' for a driver of CUDA 13",
    repair="pip install --force-reinstall the cupy-cuda12x or cupy-cuda13x that is here",
    code="""
import warnings
warnings.simplefilter("ignore")
import cupy
runtime, code, gpus = cupy.cuda.runtime, 0, 0
try:
    gpus = runtime.getDeviceCount()
except runtime.CUDARuntimeError as error:
    code = error.status
answer = {"version": cupy.__version__, "runtime": runtime.runtimeGetVersion(), "code": code, "gpus": gpus}
""",
)

# What inputs and answers need: an element-wise kernel of a type that wants CUDA's headers, compiled, run, right.
_COMPILER = Question(
    module="cupy",
    keys=frozenset({"nvrtc", "right"}),
    install="",
    repair="pip install 'cupy-cuda12x[ctk]' (13x for CUDA 13) brings NVRTC and CUDA's headers",
    code="""
import cupy
nvrtc = cupy.cuda.nvrtc.getVersion()
array = cupy.zeros(4, "float16")
array.fill(3)
answer = {"nvrtc": list(nvrtc), "right": bool((array == 3).all())}
""",
)

_NCCL = Question(
    module="libnccl.so.2",
    keys=frozenset({"version", "file"}),
    install="",
    repair="pip install 'commbench[cuda12]' or [cuda13] brings one, --nccl-lib PATH names another",
    code="""
from commbench.backends import nccl_library
library = nccl_library.load()
file = nccl_library.file_of(library)
answer = {"version": nccl_library.dotted(nccl_library.version_of(library)), "file": file}
answer |= nccl_library.facts_of(file)
""",
)

# A process that is somebody's rank must not take that rank's place in MPI_Init: it is one of its own.
_MPI = Question(
    module="mpi4py",
    keys=frozenset({"why", "fix"}),
    install="",
    repair="--staged copies through host memory around any MPI",
    code="""
import os
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI_COMM_", "SLURM_", "MPI_LOCAL", "HYDI_", "PALS_")):
        del os.environ[name]
from commbench.backends import mpi_cuda
from commbench.errors import CommbenchError
answer = {"why": "", "fix": ""}
try:
    mpi_cuda.tried()
except CommbenchError as error:
    answer = {"why": error.message, "fix": error.hint}
""",
)

Answer = dict[str, Any] | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What was found. A stage is None when an earlier one leaves nothing to ask.

    Attributes:
        hardware, switches: GPUs and NVSwitches on the PCI bus.
        module: the version of the kernel's driver, None without one.
        manager: nvidia-fabricmanager is seen running.
        driver, nvml, cupy, compiler, nccl, mpi: a child's answers, by the questions above.
        cupy_packages, nccl_packages: "name version" of their distributions here.
        visible: CUDA_VISIBLE_DEVICES.
        settings: NCCL's variables in the environment, and in its files.
        shared_memory: bytes of /dev/shm.
    """

    hardware: int = 0
    switches: int = 0
    module: str | None = None
    manager: bool = False
    driver: Answer
    nvml: Answer | None = None
    cupy: Answer | None = None
    compiler: Answer | None = None
    nccl: Answer | None = None
    mpi: Answer | None = None
    cupy_packages: tuple[str, ...] = ()
    nccl_packages: tuple[str, ...] = ()
    visible: str | None = None
    settings: Mapping[str, Mapping[str, str]]
    shared_memory: int | None = None

    @property
    def works(self) -> bool:
        """The driver has GPUs to offer."""
        return not isinstance(self.driver, Absent) and bool(self.driver["gpus"])

    @property
    def expected(self) -> bool:
        """There is something that could work, or somebody who wants it to: CuPy is installed for nothing else."""
        return bool(self.hardware or self.module or self.cupy_packages) or not is_missing(self.driver)


def is_missing(driver: Answer) -> bool:
    """There is no libcuda.so.1, as opposed to one that does not work."""
    return isinstance(driver, Absent) and _NO_DRIVER in driver.reason and "cannot open" in driver.reason


def probe_gpus(root: Path = ROOT, environ: Mapping[str, str] = os.environ, *, mpi: bool = True) -> Gpus:
    """Ask every stage that has something to ask. A second where there is no GPU, several where there are."""
    hardware, switches = devices.nvidia_hardware(root)
    driver = ask(_DRIVER, limit=20.0)
    here = not isinstance(driver, Absent)
    usable = not isinstance(driver, Absent) and bool(driver["gpus"])
    cupy = ask(_CUPY) if here or importlib.util.find_spec("cupy") is not None else None
    sees = isinstance(cupy, dict) and cupy["gpus"] > 0
    packages = tuple(f"{one.distribution} {one.version}" for one in nccl_library.installed())
    return Gpus(
        hardware=hardware,
        switches=switches,
        module=devices.nvidia_driver(root),
        manager=devices.runs("nv-fabricmanager", root),
        driver=driver,
        nvml=ask(_NVML, limit=20.0) if here else None,
        cupy=cupy,
        compiler=ask(_COMPILER, limit=60.0) if sees else None,
        nccl=ask(_NCCL) if here or packages else None,
        mpi=ask(_MPI, limit=60.0) if usable and sees and mpi else None,
        cupy_packages=_cupy_packages(),
        nccl_packages=packages,
        visible=environ.get("CUDA_VISIBLE_DEVICES"),
        settings={
            "environment": {name: value for name, value in sorted(environ.items()) if name.startswith("NCCL_")},
            "files": nccl_library.settings(environ),
        },
        shared_memory=_size(root / "dev/shm"),
    )


def _cupy_packages() -> tuple[str, ...]:
    found = {str(one.name).lower().replace("_", "-"): one.version for one in distributions()}
    return tuple(f"{name} {found[name]}" for name in sorted(found) if re.fullmatch(r"cupy(-cuda\w+|-rocm\w+)?", name))


def _size(path: Path) -> int | None:
    try:
        size = os.statvfs(path)
    except OSError:
        return None
    return size.f_blocks * size.f_frsize
