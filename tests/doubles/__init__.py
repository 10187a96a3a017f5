"""A machine with GPUs, made of C and Python on host memory, for the real product code to run on.

    libcuda.so.1        cuda.c     the driver functions that commbench calls by address, and what the fake CuPy needs
    libnccl.so.2        nccl.c     NCCL's C functions between real processes of one host; "new" and "old" (before 2.28)
    libnvidia-ml.so.1   nvml.c     for ctypes and for the real pynvml
    libaware.so         aware.c    to be preloaded: any MPI then says that it is CUDA-aware, as it is on this machine
    cupy                python/    the names of CuPy that commbench uses, on the libcuda above

`build` compiles them into a folder, `machine` gives the environment of a process that shall find itself on such a
machine, `calls` reads the log of what was called. What this cannot show is in tests/backends/test_doubles.py.

Knobs are environment variables; `machine(folder, gpus=2, peer_access=0)` sets DOUBLE_GPUS and DOUBLE_PEER_ACCESS.
A "CALL" is the k-th communication call (ncclAllReduce .. ncclRecv, not group begin or end) of a process, from 1.

    DOUBLE_GPUS              2              GPUs in the machine; CUDA_VISIBLE_DEVICES chooses among them (not for NVML)
    DOUBLE_GPU_MODELS        NVIDIA H100 80GB HBM3    their names, by commas; the last one holds for the rest
    DOUBLE_GPU_MEMORY        4294967296     bytes of each, counted per process
    DOUBLE_GPU_L2            4194304        bytes of L2 cache
    DOUBLE_PEER_ACCESS       1              0: cudaDeviceCanAccessPeer says no, NVML too
    DOUBLE_NVLINK            1              0: NVML knows no NVLink between them
    DOUBLE_MIG               0              1: every GPU is a MIG instance of one card; a process sees one of them
    DOUBLE_DRIVER            12090          the CUDA version of the driver; below the runtime's major version: error 35
    DOUBLE_CUDA_RUNTIME      12090          that of the fake CuPy
    DOUBLE_NVRTC                            "missing": no NVRTC
    DOUBLE_RATES                            "h2d=25e9,d2h=25e9,pageable_h2d=8e9,pageable_d2h=8e9,d2d=1e12,peer=50e9,
                                            staged=12e9": bytes per second that copies are slowed down to
    DOUBLE_COPY_FAULTS                      "peer=hang,staged=wrong": kinds of copies, as in DOUBLE_RATES, that never
                                            complete, whose last byte is wrong, or that kill the process ("die")
    DOUBLE_KERNELS                          a Python file with one function (grid, block, args) for each RawKernel
    DOUBLE_LOG                              a file (%p: the process id) for one line per call of NCCL, and of events,
                                            copies, captures and graph launches; begins with "#": what was complained of
    DOUBLE_PATIENCE          60             seconds after which whatever waits gives up: NCCL with ncclRemoteError (6),
                                            a stream that is stuck with CUDA_ERROR_LAUNCH_FAILED (719)
    DOUBLE_NCCL_VERSION      23007 / 22703  what ncclGetVersion says
    DOUBLE_NCCL_AVG          sum            "premultiply": floating-point averages as NCCL's kernels form them, each
                                            contribution times the rounded 1/ranks, so that 1/3 is not exact
    DOUBLE_NCCL_ERROR        RANK:CALL      from this call on ncclCommGetAsyncError says ncclRemoteError ("*": all)
    DOUBLE_NCCL_HANG         RANK:CALL      from this call on nothing completes: the rank's stream is stuck, and the
                                            streams of those that wait for it
    DOUBLE_NCCL_DIE          RANK:CALL      the rank is killed in this call
    DOUBLE_NCCL_WRONG        RANK:CALL      from this call on one bit of what the rank receives is wrong
    DOUBLE_NVML_REASONS      0              mask of clock event reasons (0x40: thermal slowdown by hardware)
    DOUBLE_NVML_REASONS_FIRST               only in answer to the first so many questions of a process
    DOUBLE_NVML_SM_CLOCK     1755           MHz
    DOUBLE_NVML_OLD          0              1: a driver that knows only the older name, ...ThrottleReasons
    DOUBLE_NVML_NO_DRIVER    0              1: nvmlInit fails
    DOUBLE_NVML_DRIVER       575.57.08      the driver's version
    DOUBLE_NVML_PERSISTENCE  1              persistence mode
    DOUBLE_NVML_PROCESSES                   "PID:BYTES,...", processes on every GPU
    DOUBLE_MPI_CUDA          1              0: libaware.so says that Open MPI's CUDA support is switched off
    NCCL_MULTI_RANK_GPU_ENABLE, NCCL_HOSTID as in NCCL: 5 (ncclInvalidUsage) when two ranks of a host share a GPU
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FLAGS = ("-O2", "-fwrapv", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) to build the doubles with")

# Each in a folder of its own, so that a machine can be without one of them. What NCCL needs of CUDA it finds by
# the name of the library that is loaded already, or in the folder beside its own.
_LIBRARIES = {
    "cuda/libcuda.so.1": ("cuda.c",),
    "nccl-new/libnccl.so.2": ("nccl.c",),
    "nccl-old/libnccl.so.2": ("nccl.c", "-DOLD"),
    "nvml/libnvidia-ml.so.1": ("nvml.c",),
    "aware/libaware.so": ("aware.c",),
}


def build(folder: Path) -> dict[str, str]:
    """Compile everything into `folder`; returns the environment of a machine with two GPUs.

    Raises:
        subprocess.CalledProcessError: a source does not compile.
    """
    _compile(folder, ["cuda/libcuda.so.1"])
    _compile(folder, [name for name in _LIBRARIES if not name.startswith("cuda/")])
    return machine(folder)


def _compile(folder: Path, libraries: list[str]) -> None:
    """All of them at once."""
    running = []
    for library in libraries:
        source, *more = _LIBRARIES[library]
        file = folder / library
        file.parent.mkdir(parents=True, exist_ok=True)
        links = ["-L", str(folder / "cuda"), "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN/../cuda"] * (source == "nccl.c")
        command = ["cc", *FLAGS, *more, f"-Wl,-soname,{file.name}", "-o", str(file), str(HERE / source), *links]
        running.append(subprocess.Popen(command))
    if failed := [process.args for process in running if process.wait()]:
        raise subprocess.CalledProcessError(1, str(failed))


@lru_cache(maxsize=1)
def built() -> Path:
    """The folder that `build` filled, once per session of tests; it goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="commbench-doubles-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build(folder)
    return folder


def machine(
    folder: Path,
    gpus: int = 2,
    *,
    cuda: bool = True,
    nccl: str = "new",
    nvml: bool = True,
    cupy: bool = True,
    around: Mapping[str, str] = os.environ,
    **knobs: Any,
) -> dict[str, str]:
    """What to set in the environment of a process on a machine with these GPUs.

    Args:
        folder: as `build` was given.
        gpus: how many.
        cuda: whether the driver is there; NCCL still finds it, beside itself.
        nccl: which libnccl the loader finds: "new", "old", "" for none.
        nvml: whether NVML is there.
        cupy: whether CuPy is there.
        around: whose LD_LIBRARY_PATH and PYTHONPATH are kept behind ours.
        knobs: of the list above: `peer_access=0` is DOUBLE_PEER_ACCESS=0.
    """
    libraries = [folder / "cuda"] * cuda + [folder / f"nccl-{nccl}"] * bool(nccl) + [folder / "nvml"] * nvml
    found = {
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), *_kept(around, "LD_LIBRARY_PATH")]),
        "PYTHONPATH": os.pathsep.join([*[str(HERE / "python")] * cupy, *_kept(around, "PYTHONPATH")]),
        "DOUBLE_GPUS": str(gpus),
    }
    return found | {f"DOUBLE_{name.upper()}": str(value) for name, value in knobs.items()}


def library(folder: Path, nccl: str = "new") -> Path:
    """The libnccl.so.2 itself, for --nccl-lib."""
    return folder / f"nccl-{nccl}" / "libnccl.so.2"


def _kept(around: Mapping[str, str], name: str) -> list[str]:
    return [around[name]] if around.get(name) else []


def calls(log: Path) -> list[dict[str, Any]]:
    """The lines of a log, without complaints: {"name": "ncclAllReduce", "count": 4, ...}; addresses as integers.

    send_offset and recv_offset are bytes from the start of the allocation, -1 where there is none. `root` is also
    the peer of a message. depth counts the groups around a call. "double_comm" says which communicator
    ncclCommInitRank made.
    """
    found = []
    for line in log.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, *fields = line.split()
        pairs = (field.split("=") for field in fields)
        found.append({"name": name} | {key: 0 if value == "(nil)" else int(value, 0) for key, value in pairs})
    return found


def complaints(log: Path) -> list[str]:
    """What the doubles refused, in their words."""
    lines = log.read_text().splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("# ")]
