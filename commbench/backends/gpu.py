"""This rank's GPU: which one it is, a stream, events and graphs, through the driver's own C functions.

Whoever brings the memory (CuPy, torch) has made the device's primary context current; all else is the driver's,
so that a timed region can call it by address and every back end on GPUs shares one clock. The handles are those
of the CUDA runtime: cudaStream_t is CUstream, cudaEvent_t is CUevent (CUDA Driver API, "Interoperability").
"""

from __future__ import annotations

import ctypes
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commbench.backends import kernels
from commbench.backends.base import Calibration, Exchange, World
from commbench.backends.nvml import Monitor
from commbench.errors import MeasurementError, UnavailableError, UsageError
from commbench.stats import Samples

_SHARE = "--allow-shared-gpu puts several ranks on one GPU: that tests answers, never an interconnect"
_MOST_EVENTS = 256
_MARGIN = 512 << 20  # what NCCL, compiled kernels and the driver take beside our buffers
_ENOUGH_STEPS = 100  # a sample of so many steps of its clock is known to 1 %
_PATIENT = 1e-3

# cuda.h
_L2_CACHE_SIZE, _STREAM_NON_BLOCKING, _CAPTURE_THREAD_LOCAL, _NOT_READY = 38, 1, 1, 600

# What a user can do about an error of the driver or the runtime: both number them alike.
_ERRORS = {
    2: ("the GPU is out of memory", "use a smaller --max-bytes, or end what else runs on it (nvidia-smi)"),
    34: ("libcuda.so.1 is the toolkit's stub", "take its stubs folder out of LD_LIBRARY_PATH"),
    35: ("the driver is too old for this build", "update NVIDIA's driver, or install the extra for its CUDA"),
    46: ("all GPUs are busy or in exclusive mode", "nvidia-smi -q -d COMPUTE says who has them"),
    100: ("no GPU is visible", "is CUDA_VISIBLE_DEVICES right? --backend mpi or --backend gloo measures the host"),
    101: ("there is no such GPU", "is CUDA_VISIBLE_DEVICES right?"),
    802: ("the GPUs' fabric is not ready", "is nvidia-fabricmanager running? nvidia-smi -q -d FABRIC"),
    803: ("the driver's kernel module and its libcuda.so.1 are of two versions", "reboot, or reload the nvidia module"),
    804: ("CUDA's compatibility package does not support this GPU", "take cuda-compat out of LD_LIBRARY_PATH"),
    999: ("the driver does not answer", "does nvidia-smi work?"),
}


def load_driver() -> ctypes.CDLL:
    """NVIDIA's driver library.

    Raises:
        UnavailableError: there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        hint = "install NVIDIA's driver; in a container, start it with --gpus all. --backend mpi measures the host"
        raise UnavailableError("no NVIDIA driver here: libcuda.so.1 cannot be loaded", hint) from error


def explained(code: int, detail: str) -> UnavailableError:
    """An error of the driver or the runtime in words."""
    message, hint = _ERRORS.get(code, ("", "does nvidia-smi work? `commbench doctor` goes through the stages"))
    return UnavailableError(f"{message} ({detail})" if message else f"CUDA: {detail}", hint)


# -- which GPU ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which GPU a rank got.

    Attributes:
        index: among those that this process sees.
        sharing: ranks on that GPU, 1 when it is this rank's alone.
        notes: what the user should know about all of them.
    """

    index: int
    sharing: int = 1
    notes: tuple[str, ...] = ()


def assign(world: World, exchange: Exchange, visible: int, *, allow_shared: bool) -> Assignment:
    """Give this rank a GPU: by its place on the node, or the only one it sees.

    A launcher that shows each rank one GPU is recognised by their identities, not by its variables.

    Args:
        world: this rank.
        exchange: a way to the others.
        visible: GPUs that this process sees.
        allow_shared: ranks may share one.

    Raises:
        UsageError: on every rank alike: ranks would share a GPU and may not, or may and do not.
    """
    index = world.local_rank % visible
    found = exchange.gather([socket.gethostname(), *identity(load_driver(), index), visible])
    verdict = exchange.broadcast(_judge(found, allow_shared=allow_shared) if found is not None else None)
    if verdict["message"]:
        raise UsageError(verdict["message"], verdict["hint"])
    return Assignment(index, verdict["sharing"][world.rank], tuple(verdict["notes"]))


def _judge(ranks: list[list[Any]], *, allow_shared: bool) -> dict[str, Any]:
    """Rank 0's word on who got what: [host, uuid, name, GPUs that the rank sees] of every rank."""
    users = Counter((host, uuid) for host, uuid, _, _ in ranks)
    sharing = [users[host, uuid] for host, uuid, _, _ in ranks]
    message = hint = ""
    host, _, _, visible = ranks[int(np.argmax(sharing))]
    here = [rank for rank in ranks if rank[0] == host]
    if max(sharing) > 1 and not allow_shared:
        gpus = max(visible, len({uuid for _, uuid, _, _ in here}))
        message = f"{len(here)} ranks on {host}, but only {gpus} GPU{'s' if gpus > 1 else ''} there"
        hint = f"use --ranks {gpus}; {_SHARE}" if gpus > 1 else _SHARE
    elif max(sharing) == 1 and allow_shared:
        message = "--allow-shared-gpu: every rank has a GPU of its own here"
        hint = "leave it out: results under it are labelled same-gpu"
    models = Counter(name for _, _, name, _ in ranks)
    notes = []
    if len(models) > 1:
        notes.append(f"different GPUs in one run: {', '.join(f'{count} x {name}' for name, count in models.items())}")
    if any(uuid.startswith("MIG-") for _, uuid, _, _ in ranks):
        notes.append("MIG instances: they have no peer access, and NCCL before 2.30.7 refuses two of one GPU")
    return {"message": message, "hint": hint, "sharing": sharing, "notes": notes}


def identity(driver: ctypes.CDLL, index: int) -> tuple[str, str]:
    """(uuid, model) of a GPU that this process sees, as nvidia-smi writes them."""
    device, uuid, name = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256)
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid  # v2 tells MIG instances apart
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), index),
        ask(uuid, device),
        driver.cuDeviceGetName(name, len(name), device),
    ):
        if code:
            raise explained(code, f"driver error {code} describing GPU {index}")
    model = name.value.decode(errors="replace")
    digits = bytes(uuid).hex()
    groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(("MIG" if " MIG " in model else "GPU", *groups)), model


# -- the GPU itself ----------------------------------------------------------------------------------------------


class Gpu:
    """The device whose context is current in this thread, with one stream of our own.

    Attributes:
        index: among those that this process sees.
        sharing: ranks that use it.
        uuid, name, pci: whose it is.
        stream: handle of a stream that does not wait for the default one.
        queue: events and addresses for `kernels.enqueue`, without alignment.
        monitor: its clock and what holds it down.
    """

    def __init__(self, assignment: Assignment, stream: int | None = None) -> None:
        self.index, self.sharing = assignment.index, assignment.sharing
        self.driver = driver = load_driver()
        self.uuid, self.name = identity(driver, self.index)
        self._device = self._get(driver.cuDeviceGet, ctypes.c_int, self.index)
        bus = ctypes.create_string_buffer(32)
        self._expect(driver.cuDeviceGetPCIBusId(bus, len(bus), self._device), "cuDeviceGetPCIBusId")
        self.pci = bus.value.decode().lower()
        self.stream = stream or self._get(driver.cuStreamCreate, ctypes.c_void_p, _STREAM_NON_BLOCKING)
        pairs = [[self._get(driver.cuEventCreate, ctypes.c_void_p, 0) for _ in range(_MOST_EVENTS)] for _ in range(2)]
        record, wait = (kernels.address_of(driver, name) for name in ("cuEventRecord", "cuEventSynchronize"))
        self.queue = kernels.Queue(np.array(pairs, dtype=np.int64), self.stream, record, wait)
        self.monitor = Monitor(self.pci)
        self._graphs: list[int] = []

    def _expect(self, code: int, what: str) -> None:
        if code:
            raise explained(code, f"driver error {code} in {what}")

    def _get(self, function: Any, kind: type[Any], *arguments: Any) -> int:
        """What a driver function writes through its first argument."""
        value = kind()
        self._expect(function(ctypes.byref(value), *arguments), function.__name__)
        return int(value.value or 0)

    def room(self) -> int:
        """Bytes that this rank may allocate."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._expect(self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
        return max(free.value - _MARGIN, 0) // self.sharing

    def shortage(self, size: int) -> str:
        """Why `size` bytes cannot be allocated, "" when they can."""
        room = self.room()
        return f"needs {size >> 20}M of GPU memory, {room >> 20}M are free" if size > room else ""

    @property
    def cache_bytes(self) -> int:
        """The L2 cache."""
        return self._get(self.driver.cuDeviceGetAttribute, ctypes.c_int, _L2_CACHE_SIZE, self._device)

    def synchronize(self) -> None:
        """Wait for everything that was started on the device."""
        self._expect(self.driver.cuCtxSynchronize(), "cuCtxSynchronize")

    # -- time --

    def wait(self, watch: Callable[[], None] = lambda: None) -> None:
        """Wait until the stream has done all it was given; `watch` is called meanwhile and may raise."""
        start = time.perf_counter()
        query, stream = self.driver.cuStreamQuery, ctypes.c_void_p(self.stream)
        while (code := query(stream)) == _NOT_READY:
            watch()
            if time.perf_counter() - start > _PATIENT:
                time.sleep(_PATIENT)  # a processor that spins is taken from the ranks that still enqueue
        watch()
        if code:
            raise MeasurementError(f"CUDA driver error {code} while the stream ran", "dmesg may hold an Xid of the GPU")

    def elapsed(self, out: Samples) -> None:
        """Seconds between the pairs of events that the last `len(out)` samples recorded."""
        milliseconds = ctypes.c_float()
        starts, stops = self.queue.events.tolist()
        for i in range(len(out)):
            pair = ctypes.c_void_p(starts[i]), ctypes.c_void_p(stops[i])
            self._expect(self.driver.cuEventElapsedTime(ctypes.byref(milliseconds), *pair), "cuEventElapsedTime")
            out[i] = milliseconds.value * 1e-3

    def calibrate(self, pair: Callable[[Samples], Any]) -> Calibration:
        """Step and overhead of the events, from pairs with nothing between.

        Args:
            pair: enqueues as many pairs as its argument has elements. The device should be busy before each, or
                the pair would be as far apart as the host put it.
        """
        gaps = np.empty((4, _MOST_EVENTS))
        for row in gaps:
            pair(row)
            self.wait()
            self.elapsed(row)
        step = smallest_step(gaps.ravel())
        return Calibration("cuda events", step, float(np.median(gaps)), shortest=_ENOUGH_STEPS * step)

    # -- graphs --

    @contextmanager
    def capture(self) -> Iterator[list[int]]:
        """What is put into the stream meanwhile becomes a graph; its executable's handle is appended at the end."""
        driver, built = self.driver, list[int]()
        stream = ctypes.c_void_p(self.stream)
        self._expect(driver.cuStreamBeginCapture_v2(stream, _CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture")
        graph = ctypes.c_void_p()
        try:
            yield built
        finally:
            code = driver.cuStreamEndCapture(stream, ctypes.byref(graph))
        self._expect(code, "cuStreamEndCapture")
        instantiate = driver.cuGraphInstantiateWithFlags
        try:
            built.append(self._get(instantiate, ctypes.c_void_p, graph, ctypes.c_ulonglong(0)))
        finally:
            driver.cuGraphDestroy(graph)
        self._graphs += built

    def forget_graphs(self) -> None:
        """Destroy all executable graphs: ncclCommDestroy waits, for ever, until no graph refers to the communicator.

        That is commDestroySync in NCCL's src/init.cc. Nothing may launch them afterwards.
        """
        while self._graphs:
            self.driver.cuGraphExecDestroy(ctypes.c_void_p(self._graphs.pop()))

    # -- facts --

    def facts(self) -> dict[str, Any]:
        """This rank's device, for the file."""
        return {"gpu": {"index": self.index, "name": self.name, "uuid": self.uuid, "pci": self.pci}}

    def versions(self) -> dict[str, str]:
        return {"cuda_driver": dotted(self._get(self.driver.cuDriverGetVersion, ctypes.c_int))}


def smallest_step(values: Samples) -> float:
    """The smallest difference between values of a clock, at least 1 ns; half a microsecond where all are equal.

    That is what CUDA's documentation gives as the resolution of an event.
    """
    steps: npt.NDArray[np.float64] = np.diff(np.unique(np.round(values * 1e9)))
    return float(steps.min()) * 1e-9 if len(steps) else 0.5e-6


def dotted(version: int) -> str:
    """CUDA's 12040 as "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"
