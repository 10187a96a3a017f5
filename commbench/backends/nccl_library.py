"""libnccl: which file, loaded before anything else could load another, its functions, one communicator.

The functions are called by address from the library that is loaded, not through a binding: a binding knows the
functions it was built with, and costs a microsecond or two per call.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commbench.backends import kernels
from commbench.backends.base import Exchange, World
from commbench.backends.process import mapped_files
from commbench.errors import LaunchError, MeasurementError, UnavailableError

DTYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9,
}  # fmt: skip
REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}

_NAME = "libnccl.so.2"
_INSTALL = "pip install 'commbench[cuda12]' brings one, --nccl-lib PATH names another"
_IN_PROGRESS = 7
_SHARED_GPU = 23003  # NCCL 2.30.3: the first that lets ranks share a GPU when told to
_USERS_CONFIG, _SYSTEMS_CONFIG = "~/.nccl.conf", "/etc/nccl.conf"
_CHUNK = 1 << 22

# What a user can do about a result code (nccl.h).
_HINTS = {
    1: "CUDA failed inside NCCL: out of memory, or a fault of the GPU (dmesg); NCCL_DEBUG=WARN says more",
    2: "the system refused something NCCL needs: /dev/shm, a socket, an RDMA device; NCCL_DEBUG=WARN says more",
    5: "NCCL refuses this use of it, often two ranks on one GPU: NCCL_DEBUG=WARN says more",
    6: "another rank's process or the network between failed: its own message says more",
}


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * 128),)


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution of libnccl from the package index."""

    distribution: str
    version: str


def installed() -> list[Installed]:
    """The nvidia-nccl distributions here: two of them overwrite each other's libnccl.so.2."""
    found = []
    for name in ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        try:
            found.append(Installed(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def find(asked: str = "") -> str:
    """What to load: the file asked for, the one that is loaded, the one in this environment, or the system's.

    Raises:
        UnavailableError: the file asked for is not there.
    """
    if asked:
        if not os.path.isfile(asked):  # noqa: PTH113 - Path.is_file raises where a folder may not be entered
            raise UnavailableError(f"--nccl-lib {asked}: no such file", "give the libnccl.so.2 itself, not its folder")
        return str(Path(asked).resolve())
    return next(iter(loaded()), "") or _packaged() or _NAME


def loaded() -> list[str]:
    """Every libnccl in this process, from its memory map."""
    return [file for file in mapped_files() if Path(file).name.startswith("libnccl.so")]


def plugins() -> list[str]:
    """NCCL's plugins in this process: network, tuner, profiler. What is loaded is not thereby used."""
    return sorted(Path(file).name for file in mapped_files() if re.search(r"/libnccl-(net|tuner|profiler|env)", file))


def _packaged() -> str:
    """The libnccl.so.2 of an nvidia-nccl distribution, found without importing anything."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "nccl" / "lib" / _NAME
        if file.is_file():
            return str(file)
    return ""


def load(asked: str = "") -> ctypes.CDLL:
    """Load libnccl so that whoever asks for libnccl.so.2 later, CuPy or torch, gets the same one.

    Raises:
        UnavailableError: there is none, or another one is loaded already.
    """
    file = find(asked)
    if asked and (others := [other for other in loaded() if other != file]):
        raise UnavailableError(
            f"--nccl-lib {asked}: {others[0]} is loaded already", "is it in LD_PRELOAD, or linked into this Python?"
        )
    where = f"--nccl-lib {asked}: " if asked else ""
    try:
        library = ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UnavailableError(f"{where}libnccl cannot be loaded: {error}", _INSTALL) from error
    if not hasattr(library, "ncclCommInitRank"):
        raise UnavailableError(f"{where}{file} is not NCCL: it has no ncclCommInitRank", _INSTALL)
    return library


def file_of(library: ctypes.CDLL) -> str:
    """Where a libnccl was loaded from, whatever its name; "" when it cannot be found out."""
    symbol = _Symbol()
    ctypes.CDLL(None).dladdr(library.ncclGetVersion, ctypes.byref(symbol))
    return os.path.realpath(os.fsdecode(symbol.file)) if symbol.file else ""


def version_of(library: ctypes.CDLL) -> int:
    """NCCL_VERSION_CODE at run time: 23007 for 2.30.7."""
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    return code.value


def dotted(code: int) -> str:
    """23007 as "2.30.7"; before 2.9 the digits were fewer."""
    if code < 10_000:  # noqa: PLR2004 - NCCL_VERSION in nccl.h
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"


def settings(environment: Mapping[str, str] = os.environ, files: tuple[str, ...] | None = None) -> dict[str, str]:
    """What NCCL's configuration files set: they steer it as the environment does, and nobody sees them there.

    NCCL_CONF_FILE replaces ~/.nccl.conf, either comes before /etc/nccl.conf, and a variable of the environment
    beats all (initEnvFunc and setEnvFile in src/misc/param.cc).
    """
    if files is None:
        files = (environment.get("NCCL_CONF_FILE") or _USERS_CONFIG, _SYSTEMS_CONFIG)
    found: dict[str, str] = {}
    for name in files:
        try:
            lines = Path(name).expanduser().read_text(errors="replace").splitlines()[:1000]
        except (OSError, RuntimeError):
            continue
        for line in lines:
            key, equals, value = line.partition("=")
            if equals and key.startswith("NCCL_") and key not in environment:
                found.setdefault(key.strip(), value.strip())
    return found


def share_a_gpu(library: ctypes.CDLL, world: World) -> None:
    """Tell NCCL, before it reads its environment, that ranks may share a GPU; what the user has set stays.

    From 2.30.3 there is a variable for it. Older ones refuse two ranks of one host on one GPU, but believe
    NCCL_HOSTID: then the ranks talk over sockets, as between hosts.
    """
    if version_of(library) >= _SHARED_GPU:
        wanted = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
    else:
        wanted = {"NCCL_HOSTID": f"commbench-{world.rank}"}
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


class NcclLibrary:
    """A libnccl with one communicator of all ranks.

    Attributes:
        version: NCCL_VERSION_CODE.
        init_seconds: what ncclCommInitRank took on this rank.
    """

    def __init__(self, library: ctypes.CDLL, world: World, exchange: Exchange) -> None:
        self.c = library
        self.version = version_of(library)
        self.comm = ctypes.c_void_p()
        self.c.ncclGetErrorString.restype = ctypes.c_char_p
        if self.has("ncclGetLastError"):
            self.c.ncclGetLastError.restype = ctypes.c_char_p
        self.file = file_of(library)
        self._connect(world, exchange)

    def _connect(self, world: World, exchange: Exchange) -> None:
        identity = _UniqueId()
        if world.rank == 0:
            self._expect(self.c.ncclGetUniqueId(ctypes.byref(identity)), "no unique id")
        # Over the control plane, whatever that is: NCCL's own bootstrap starts with it.
        word = exchange.broadcast(bytes(identity.internal).hex() if world.rank == 0 else None)
        identity = _UniqueId.from_buffer_copy(bytes.fromhex(word))
        self.c.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, _UniqueId, ctypes.c_int)
        start = time.perf_counter()
        code = self.c.ncclCommInitRank(ctypes.byref(self.comm), world.size, identity, world.rank)
        self._expect(code, f"rank {world.rank} of {world.size} got no communicator")
        self.init_seconds = time.perf_counter() - start

    def _expect(self, code: int, what: str) -> None:
        if code:
            raise LaunchError(f"NCCL: {what}: {self.explain(code)}", _HINTS.get(code, "NCCL_DEBUG=WARN says more"))

    def has(self, name: str) -> bool:
        """Whether this build has a function: later ones have more collectives."""
        return hasattr(self.c, name)

    def step(self, name: str, *arguments: int | kernels.Strided) -> kernels.Step:
        """A call of a C function, for a program."""
        return kernels.address_of(self.c, name), arguments

    @property
    def handle(self) -> int:
        """The communicator as an argument of a step."""
        return self.comm.value or 0

    def explain(self, code: int) -> str:
        """A result code in NCCL's words, with the last thing it complained of."""
        text = (self.c.ncclGetErrorString(code) or b"").decode(errors="replace") or f"error {code}"
        last = b""
        if self.has("ncclGetLastError"):
            last = self.c.ncclGetLastError(self.comm) or b""
        detail = next(iter(last.decode(errors="replace").splitlines()), "").strip()
        return f"{text} ({detail})" if detail else text

    def watch(self, before_abort: Callable[[], None]) -> None:
        """Raise what NCCL's own threads ran into.

        Args:
            before_abort: destroys the graphs that refer to the communicator, for which aborting it would wait.

        Raises:
            MeasurementError: the communicator is of no further use; it is aborted, so that its kernels end.
        """
        state = ctypes.c_int()
        code = self.c.ncclCommGetAsyncError(self.comm, ctypes.byref(state)) or state.value
        if code not in (0, _IN_PROGRESS):
            message = self.explain(code)
            before_abort()
            self.c.ncclCommAbort(self.comm)
            self.comm = ctypes.c_void_p()
            raise MeasurementError(f"NCCL: {message}", _HINTS.get(code, ""))

    def facts(self) -> dict[str, str]:
        """Version, file, what it was built for, and whatever else steers it."""
        found = {"nccl": f"NCCL {dotted(self.version)}", "nccl_file": self.file}
        found |= facts_of(self.file) if self.file else {}
        if names := plugins():
            found["nccl_plugins"] = ", ".join(names)
        if values := settings():
            found["nccl_conf"] = " ".join(f"{name}={value}" for name, value in sorted(values.items()))
        return found

    def notes(self) -> Iterator[str]:
        """What is wrong with the NCCLs of this process and this environment."""
        if others := [file for file in loaded() if file != self.file]:
            yield f"{1 + len(others)} libnccl in one process: {self.file}, which is measured, and {', '.join(others)}"
        if len(packages := installed()) > 1:
            names = " and ".join(f"{package.distribution} {package.version}" for package in packages)
            yield f"{names} are both installed and own the same libnccl.so.2: uninstall one and reinstall the other"

    def close(self) -> None:
        if self.comm:
            self.c.ncclCommDestroy(self.comm)
            self.comm = ctypes.c_void_p()


def facts_of(file: str) -> dict[str, str]:
    """The SHA-256 of a libnccl, and the version text in it, which names the CUDA it was built with."""
    digest, built, tail = hashlib.sha256(), b"", b""
    try:
        with Path(file).open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if not built and (match := re.search(rb"NCCL version ([\w.+-]+\+cuda[\d.]+)", tail + chunk)):
                    built = match[1]
                tail = chunk[-100:]
    except OSError:
        return {}
    return {"nccl_sha256": digest.hexdigest()[:16]} | ({"nccl_built": built.decode()} if built else {})
