"""libmpi: initialised at the thread level asked for, with a communicator, its C functions and its handles."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from commbench.backends import kernels
from commbench.backends.base import World
from commbench.backends.process import mapped_files
from commbench.errors import LaunchError, UnavailableError
from commbench.ops import OPERATIONS
from commbench.spec import THREAD_LEVELS, Point

_TYPE_NAMES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "FLOAT16_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
}

_LATER = 10.0


def start(thread_level: str, world: World, init_timeout: float) -> Any:
    """Initialise MPI at `thread_level` and return the mpi4py.MPI module; ends the process after `init_timeout`.

    The flavour of library and launcher are compared first: Open MPI's mpirun with an MPICH library would abort
    inside MPI_Init, the other way round every rank would be alone in a world of its own.

    Raises:
        UnavailableError: mpi4py or an MPI library is missing.
        LaunchError: library and launcher do not belong together.
    """
    try:
        import mpi4py  # noqa: PLC0415 - loading MPI is what this function is for

        mpi4py.rc.initialize = False
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(f"MPI cannot be loaded: {error}", "pip install 'commbench[mpich]'") from error
    version = _version(MPI)
    library, launcher = flavour(version), launcher_flavour(os.environ)
    if launcher and library and launcher != library:
        raise LaunchError(
            f"the launcher is {launcher}'s, but mpi4py loads {version}",
            "start the ranks with the mpiexec that belongs to this MPI; `commbench doctor` names it",
        )
    if not MPI.Is_initialized():
        with _mortal(init_timeout):
            MPI.Init_thread(getattr(MPI, f"THREAD_{thread_level.upper()}"))
    if world.launcher == "mpi" and MPI.COMM_WORLD.size != world.size:
        raise LaunchError(
            f"the launcher started {world.size} ranks, but this MPI ({version}) sees {MPI.COMM_WORLD.size}",
            "start the ranks with the mpiexec that belongs to this MPI; under srun use its --mpi, or mpiexec inside",
        )
    return MPI


@contextmanager
def _mortal(limit: float) -> Iterator[None]:
    """MPI_Init waits for all ranks, for ever, and mpi4py holds the interpreter lock: no watchdog runs, no handler.

    So signals do what they do to any program, and a thread in C, which needs no lock, ends the process in time.
    """
    names = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_DFL) for number in names}
    with Path(os.devnull).open("w") as nowhere:
        # Later than our parent, which can say what happened.
        faulthandler.dump_traceback_later(limit + _LATER, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            for number, handler in before.items():
                signal.signal(number, handler)


def _version(mpi: Any) -> str:
    """One line: "MPICH 5.0.2", "Open MPI v5.0.11"."""
    first = mpi.Get_library_version().replace("\x00", "").splitlines()[0]
    return " ".join(first.split(",")[0].replace("Version:", "").split())


def flavour(version: str) -> str:
    """Whose MPI a version text names: "MPICH" (and those built on it), "Open MPI", or "" for others."""
    text = version.lower()
    if "open mpi" in text:
        return "Open MPI"
    return "MPICH" if any(name in text for name in ("mpich", "intel", "mvapich", "cray")) else ""


def launcher_flavour(environment: Mapping[str, str]) -> str:
    """Whose launcher started this process, from the variables it set; "" when it could be any."""
    if "OMPI_COMM_WORLD_RANK" in environment:
        return "Open MPI"
    if "PMI_RANK" in environment and ("HYDI_CONTROL_FD" in environment or "MPI_LOCALNRANKS" in environment):
        return "MPICH"
    return ""


class MpiLibrary:
    """MPI as a back end needs it.

    Attributes:
        mpi: the mpi4py.MPI module.
        version: whose and which, in one line.
        c: its C functions.
        comm: a duplicate of MPI_COMM_WORLD; errors are returned, not fatal.
        compiled: the compiled loop, None where mpi4py's methods are used.
    """

    def __init__(self, world: World, thread_level: str, loop: str, init_timeout: float) -> None:
        self.mpi = start(thread_level, world, init_timeout)
        self.comm = self.mpi.COMM_WORLD.Dup()
        self.comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        self.compiled, why_not = (None, "") if loop == "python" else kernels.load()
        if self.compiled is None and loop == "compiled":
            raise UnavailableError(f"--loop compiled: {why_not}", "pip install 'commbench[mpi]', or leave --loop out")
        self.file = _loaded_library()
        self.version = _version(self.mpi)
        self.c = ctypes.CDLL(self.file or None)

    def versions(self) -> dict[str, str]:
        """What can change a number: library, file, thread level in force, mpi4py, numba."""
        import mpi4py  # noqa: PLC0415 - loaded by `start`

        levels = {getattr(self.mpi, f"THREAD_{level.upper()}"): level for level in THREAD_LEVELS}
        found = {
            "mpi": self.version,
            "mpi_file": self.file,
            "mpi_thread_level": levels[self.mpi.Query_thread()],
            "mpi4py": mpi4py.__version__,
        }
        if self.compiled is not None:
            import numba  # noqa: PLC0415 - loaded by `kernels`

            found["numba"] = numba.__version__
        return found

    def step(self, name: str, *arguments: Any) -> kernels.Step:
        """A call of a C function: MPI objects become handles, numbers and addresses stay."""
        return kernels.address_of(self.c, name), [self._as_argument(value) for value in arguments]

    def _as_argument(self, value: Any) -> int | kernels.Strided:
        if isinstance(value, int | kernels.Strided):
            return value
        handle: int = self.mpi._handleof(value)  # noqa: SLF001 - mpi4py's documented way to a C handle
        return handle - (1 << 64) if handle >= 1 << 63 else handle

    def datatype(self, point: Point) -> Any:
        """The MPI type; data that is only moved needs its size, not its meaning, so bfloat16 moves as 16 bits."""
        if not OPERATIONS[point.op].reduces and point.itemsize == 2:  # noqa: PLR2004 - the two 16-bit types
            return self.mpi.UINT16_T
        found = getattr(self.mpi, _TYPE_NAMES[point.dtype], self.mpi.DATATYPE_NULL)
        if found == self.mpi.DATATYPE_NULL:
            raise UnavailableError(f"this MPI has no reductions of {point.dtype}", "use --dtype float32")
        return found

    def close(self) -> None:
        self.comm.Free()
        if not self.mpi.Is_finalized():
            self.mpi.Finalize()


def remove_shared_memory() -> None:
    """What MPICH removes in MPI_Finalize, for a process that will not get there: its segment in /dev/shm.

    Two megabytes a launch: where a container has 64, MPI would soon find no room and die of a bus error.
    """
    with suppress(OSError):
        for file in mapped_files():
            if file.startswith("/dev/shm/mpich_shm_"):  # noqa: S108 - only what this process has mapped
                Path(file).unlink(missing_ok=True)


def _loaded_library() -> str:
    """The libmpi that mpi4py loaded, from the process' memory map; "" where there is none to read."""
    found = [file for file in mapped_files() if Path(file).name.startswith(("libmpi.", "libmpich.", "libmpi_abi."))]
    return found[0] if found else ""
