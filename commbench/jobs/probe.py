"""Which libraries, launchers and GPUs are here, found out without loading any library into this process.

A library may be missing, broken, built for another MPI, crash on import, or hang (on a network file system, on
a GPU that fell off its bus). So each is loaded in a child process; whatever goes wrong there is an `Absent`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from commbench.jobs import child
from commbench.measure.devices import nvidia_gpus
from commbench.measure.procfs import ROOT

Flavour = Literal["MPICH", "Open MPI", "Intel MPI", "other"]

_FLAVOURS: tuple[tuple[re.Pattern[str], Flavour], ...] = (
    (re.compile(r"Intel\(R\) MPI"), "Intel MPI"),
    (re.compile(r"Open MPI|OpenRTE|PRRTE"), "Open MPI"),
    (re.compile(r"MPICH|MVAPICH|HYDRA", re.IGNORECASE), "MPICH"),
)
# Both start their ranks by Hydra and PMI, and libraries of one run under the launcher of the other.
_HYDRA: frozenset[Flavour] = frozenset({"MPICH", "Intel MPI"})
# Debian keeps the launchers of several MPIs side by side under their long names.
_MPIEXEC_NAMES = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi")
_LAUNCHER_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class Absent:
    """What cannot be used: why, in one line, and the command or the step that helps.

    Attributes:
        installed: it is there but does not work.
    """

    reason: str
    hint: str
    installed: bool = True


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts ranks.

    Attributes:
        version: "" where asking would be slow.
        complaint: why it does not even tell its version, "" when it works.
    """

    name: str
    path: str
    flavour: Flavour
    version: str
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class Mpi:
    """The MPI that mpi4py loads, and the mpiexec that belongs to it.

    Attributes:
        version: first line of MPI_Get_library_version.
        library: the file that MPI_Init comes from, "" when it is not in a shared library.
        mpi4py: its version.
        numba: numba is installed, so the compiled loop can be tried (`probe_numba` loads it).
        mpiexec: None when there is none here; the ranks then need a launcher of the user's.
        mpiexec_flavour: "other" for a launcher that does not say whose it is.
    """

    version: str
    flavour: Flavour
    library: str
    mpi4py: str
    numba: bool
    mpiexec: str | None = None
    mpiexec_flavour: Flavour | None = None


@dataclass(frozen=True, slots=True)
class Torch:
    """A torch.

    Attributes:
        gloo: its Gloo is built in.
        cuda: the CUDA version that it was built for, None for a CPU build.
        nccl: the version of its NCCL, None where it has none.
        gpus: how many it sees.
    """

    version: str
    gloo: bool
    cuda: str | None
    nccl: str | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """What a child is asked: code that sets `answer`, a dict with `keys`, by loading `module`."""

    module: str
    keys: frozenset[str]
    install: str
    repair: str
    code: str


_MPI = Question(
    module="mpi4py",
    keys=frozenset({"version", "library", "mpi4py", "numba", "prefix"}),
    install="pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI and pip install 'commbench[mpi]'",
    repair="pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI module",
    code="""
import ctypes, importlib.util, os, sys
import mpi4py
mpi4py.rc.initialize = False  # the version call works without, and a child of srun must not take a rank's place
from mpi4py import MPI

class Symbol(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]

symbol = Symbol()
function = getattr(ctypes.CDLL(MPI.__file__), "MPI_Init", None)
if function is not None:
    ctypes.CDLL(None).dladdr(function, ctypes.byref(symbol))
answer = {
    "version": MPI.Get_library_version(),
    "library": os.path.realpath(os.fsdecode(symbol.file)) if symbol.file else "",
    "mpi4py": mpi4py.__version__,
    "numba": importlib.util.find_spec("numba") is not None,
    "prefix": sys.prefix,
}
""",
)

_TORCH = Question(
    module="torch",
    keys=frozenset({"version", "gloo", "cuda", "nccl", "gpus"}),
    install="pip install 'commbench[torch]'",
    repair="pip install --force-reinstall torch",
    code="""
import torch, torch.distributed as dist
answer = {
    "version": str(torch.__version__),
    "gloo": dist.is_available() and dist.is_gloo_available(),
    "cuda": torch.version.cuda,
    "nccl": None,
    "gpus": 0,
}
if torch.version.cuda:
    answer["gpus"] = torch.cuda.device_count()
    if dist.is_nccl_available():
        answer["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
""",
)

_NUMBA = Question(
    module="numba",
    keys=frozenset({"version"}),
    install="pip install 'commbench[mpi]'",
    repair="pip install --upgrade numba",
    code="import numba; answer = {'version': numba.__version__}",
)

# NVML is the driver's own library: it lists GPUs without creating a CUDA context on any.
_NVML = Question(
    module="libnvidia-ml.so.1",
    keys=frozenset({"gpus"}),
    install="install NVIDIA's driver",
    repair="does nvidia-smi work?",
    code="""
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")

def call(function, *arguments):
    code = getattr(nvml, function)(*arguments)
    if code:
        raise OSError(f"{function} returned {code}")

def word(function, device):
    buffer = ctypes.create_string_buffer(96)
    call(function, device, buffer, 96)
    return buffer.value.decode()

call("nvmlInit_v2")
count = ctypes.c_uint()
call("nvmlDeviceGetCount_v2", ctypes.byref(count))
gpus = []
for index in range(count.value):
    device = ctypes.c_void_p()
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
    gpus.append([word("nvmlDeviceGetName", device), word("nvmlDeviceGetUUID", device)])
answer = {"gpus": gpus}
""",
)

# cuInit and what follows look at devices; none of it creates a context on one.
_PEERS = Question(
    module="libcuda.so.1",
    keys=frozenset({"code", "gpus", "access"}),
    install="install NVIDIA's driver",
    repair="install NVIDIA's driver; in a container, start it with --gpus all. Does nvidia-smi work?",
    code="""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
answer = {"code": cuda.cuInit(0), "gpus": 0, "access": []}
count, can = ctypes.c_int(), ctypes.c_int()
if not answer["code"]:
    answer["code"] = cuda.cuDeviceGetCount(ctypes.byref(count))
    answer["gpus"] = count.value
for a in range(count.value):
    for b in range(count.value):
        code = cuda.cuDeviceCanAccessPeer(ctypes.byref(can), a, b)
        answer["code"] = answer["code"] or code
        if can.value and a != b:
            answer["access"].append([a, b])
""",
)


@dataclass(frozen=True, slots=True)
class Peers:
    """The GPUs that CUDA sees, and between which of them there is peer access.

    Attributes:
        gpus: how many.
        access: pairs (a, b) where a may address the memory of b, as the driver says.
        code: the driver's error, 0 for none.
    """

    gpus: int
    access: frozenset[tuple[int, int]]
    code: int = 0


def probe_mpi(python: str = sys.executable, *, launcher: bool = True, limit: float = 30.0) -> Mpi | Absent:
    """The MPI that `python`'s mpi4py loads, and its mpiexec: beside the library, in `python`'s prefix, on PATH.

    Args:
        python: the interpreter that the ranks will run.
        launcher: look for an mpiexec; False when the user brings a launcher.
        limit: seconds until the child is given up.
    """
    answer = ask(_MPI, python, limit)
    if isinstance(answer, Absent):
        return answer
    version = _first_line(str(answer["version"]))
    mpi = Mpi(version, flavour_of(version), str(answer["library"]), str(answer["mpi4py"]), bool(answer["numba"]))
    if not launcher:
        return mpi
    nearest = min(
        _launchers(_MPIEXEC_NAMES, _mpiexec_directories(mpi.library, str(answer["prefix"]))),
        key=lambda candidate: (bool(candidate.complaint), _distance(mpi.flavour, candidate.flavour)),
        default=None,
    )
    if nearest is None:
        return mpi
    loaded = f"mpi4py loads {mpi.flavour} ({mpi.library})"
    if nearest.complaint:
        return Absent(
            f"{loaded}, but {nearest.path} --version fails: {nearest.complaint}",
            f"repair {mpi.flavour}'s mpiexec, or give --launcher",
        )
    if not can_start(nearest.flavour, mpi.flavour):
        return Absent(
            f"{loaded}, but the only mpiexec that works is {nearest.flavour}'s ({nearest.path})",
            f"put {mpi.flavour}'s mpiexec on PATH (on a cluster: load its module), or give --launcher",
        )
    return replace(mpi, mpiexec=nearest.path, mpiexec_flavour=nearest.flavour)


def probe_torch(python: str = sys.executable, *, limit: float = 60.0) -> Torch | Absent:
    """The torch here, and whether its Gloo is built in. Takes a second or two where torch is installed."""
    answer = ask(_TORCH, python, limit)
    if isinstance(answer, Absent):
        return answer
    return Torch(answer["version"], bool(answer["gloo"]), answer["cuda"], answer["nccl"], int(answer["gpus"]))


def probe_numba(python: str = sys.executable, *, limit: float = 60.0) -> str | Absent:
    """The version of numba, after loading it."""
    answer = ask(_NUMBA, python, limit)
    return answer if isinstance(answer, Absent) else str(answer["version"])


def probe_peers(python: str = sys.executable, *, limit: float = 60.0) -> Peers | Absent:
    """What the driver says of peer access between the visible GPUs, without creating a CUDA context."""
    answer = ask(_PEERS, python, limit)
    if isinstance(answer, Absent):
        return Absent("no NVIDIA driver here" if "cannot open" in answer.reason else answer.reason, answer.hint)
    return Peers(answer["gpus"], frozenset((a, b) for a, b in answer["access"]), answer["code"])


def find_launchers() -> list[Launcher]:
    """The mpiexec, mpirun, srun and torchrun that a shell would start, or that lie beside this Python."""
    directories = [*os.get_exec_path(), f"{sys.prefix}/bin"]
    first: dict[str, Launcher] = {}
    for found in _launchers(("mpiexec", "mpirun", "srun", "torchrun"), directories):
        first.setdefault(found.name, found)
    return list(first.values())


def visible_gpus(
    root: Path = ROOT, environ: Mapping[str, str] = os.environ, python: str = sys.executable, *, limit: float = 20.0
) -> list[str]:
    """The models of the NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves, without creating a CUDA context.

    Asks NVML, else what the kernel driver lists. [] is an answer: there is none.
    """
    answer = ask(_NVML, python, limit)
    gpus = nvidia_gpus(root) if isinstance(answer, Absent) else [(name, uuid) for name, uuid in answer["gpus"]]
    return _left_visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))


def flavour_of(text: str) -> Flavour:
    """Whose library or launcher says this of itself; MVAPICH and Cray's MPI count as the MPICH they are made of."""
    return next((flavour for pattern, flavour in _FLAVOURS if pattern.search(text)), "other")


def can_start(launcher: Flavour, library: Flavour) -> bool:
    """Whether a launcher may start ranks of a library; the benefit of the doubt where one of them is unknown."""
    return _distance(library, launcher) < _FOREIGN


_FOREIGN = 3


def _distance(library: Flavour, launcher: Flavour) -> int:
    """How far a launcher is from belonging to a library: 0 it does, 1 it works, 2 who knows, 3 it will not work."""
    if library == launcher:
        return 0
    if {library, launcher} <= _HYDRA:
        return 1
    return 2 if "other" in (library, launcher) else _FOREIGN


def _mpiexec_directories(library: str, prefix: str) -> list[str]:
    # Intel keeps libmpi in lib/release, one level deeper than the others. A virtual environment that is not
    # activated is not on PATH, yet its wheels bring the mpiexec that belongs to its library.
    beside = [str(parent / "bin") for parent in list(Path(library).parents)[1:3]] if library else []
    return [*beside, f"{prefix}/bin", *os.get_exec_path()]


def _launchers(names: Iterable[str], directories: Iterable[str]) -> Iterator[Launcher]:
    """The launchers that exist, in the order of the directories; each is asked for its --version."""
    seen: set[str] = set()
    for directory in directories:
        for name in names:
            path = Path(directory).absolute() / name
            if str(path) in seen or not (path.is_file() and os.access(path, os.X_OK)):
                continue
            seen.add(str(path))
            if name == "torchrun":  # would import torch to answer
                yield Launcher(name, str(path), "other", "")
                continue
            output = child.run([str(path), "--version"], _LAUNCHER_LIMIT)
            version = re.search(r"\d+\.\d[\w.]*", output.text)
            yield Launcher(name, str(path), flavour_of(output.text), version[0] if version else "", output.complaint)


def _left_visible(gpus: Sequence[tuple[str, str]], setting: str | None) -> list[str]:
    """CUDA's own rule: numbers or beginnings of UUIDs, up to the first that names nothing."""
    if setting is None:
        return [name for name, _ in gpus]
    visible = []
    for word in setting.replace(" ", "").split(","):
        if word.isdecimal() and int(word) < len(gpus):
            visible.append(gpus[int(word)][0])
        elif word.startswith("MIG-"):  # a slice; which GPU it is of does not matter here
            visible.append(word)
        elif named := [name for name, uuid in gpus if word and uuid.startswith(word)]:
            visible.append(named[0])
        else:
            break
    return visible


def ask(question: Question, python: str = sys.executable, limit: float = 30.0) -> dict[str, Any] | Absent:
    """What a child answers to `question`, or what went wrong there."""
    answer = child.evaluate(question.code, python, limit)
    if answer.missing == question.module:
        return Absent(f"{question.module} is not installed", question.install, installed=False)
    if answer.complaint:
        return Absent(f"loading {question.module}: {answer.complaint}", question.repair)
    if not question.keys <= answer.value.keys():
        return Absent(f"loading {question.module}: the answer is garbage: {answer.value}", question.repair)
    return answer.value


def _first_line(text: str) -> str:
    """Without the tabs and runs of blanks of MPICH's, and the NUL at the end of Open MPI's."""
    return " ".join(text.replace("\0", " ").strip().partition("\n")[0].split())
