"""MPI through mpi4py: the compiled loop calls libmpi's functions by address, mpi4py itself is the fallback."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commbench.backends import kernels, truth
from commbench.backends.base import Calibration, Mismatch, World, calibrate_host_clock, host_loop
from commbench.backends.buffers import Arena, Layout, layout_of
from commbench.errors import LaunchError, UnavailableError
from commbench.ops import OPERATIONS
from commbench.spec import Capabilities, Point
from commbench.stats import Samples

_WHOLE_NUMBERS = frozenset({"int8", "uint8", "int32", "int64"})
_REDUCIBLE = _WHOLE_NUMBERS | {"float16", "float32", "float64"}
_BOTH = (False, True)

CAPABILITIES = Capabilities(
    forms={
        "allreduce": _BOTH,
        "allgather": _BOTH,
        "reduce_scatter": _BOTH,
        "alltoall": _BOTH,
        "alltoallv": (False,),
        "broadcast": (True,),
        "reduce": _BOTH,
        "gather": _BOTH,
        "scatter": _BOTH,
        "sendrecv": (False,),
        "p2p": (False,),
    },
    moves=_REDUCIBLE | {"bfloat16"},
    reduces=dict.fromkeys(("sum", "prod", "min", "max"), _REDUCIBLE),
)

_TYPE_NAMES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "FLOAT16_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
}
_MOST_SLICES = 1 << 18
_LARGEST_COUNT = (1 << 31) - 1
_WINDOW_TAG, _ANSWER_TAG = 7, 8
_STATUSES = 2 * 64 * 8  # 64-bit words: both directions of the deepest window, 40 bytes at most each


def start(thread_level: str, world: World) -> Any:
    """Initialise MPI at `thread_level` and return the mpi4py.MPI module.

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
        MPI.Init_thread(getattr(MPI, f"THREAD_{thread_level.upper()}"))
    if world.launcher == "mpi" and MPI.COMM_WORLD.size != world.size:
        raise LaunchError(
            f"the launcher started {world.size} ranks, but this MPI ({version}) sees {MPI.COMM_WORLD.size}",
            "start the ranks with the mpiexec that belongs to this MPI; under srun use its --mpi, or mpiexec inside",
        )
    return MPI


def _version(mpi: Any) -> str:
    """One line: "MPICH 5.0.2", "Open MPI v5.0.11"."""
    first = mpi.Get_library_version().replace("\x00", "").splitlines()[0]
    return " ".join(first.split(",")[0].replace("Version:", "").split())


def flavour(version: str) -> str:
    """ "MPICH" or "Open MPI" of a library's version text, "" for others; those built on MPICH count as MPICH."""
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


class MpiBackend:
    """All of MPI_COMM_WORLD, on a duplicate of its own."""

    def __init__(self, world: World, thread_level: str, loop: str) -> None:
        self.mpi = start(thread_level, world)
        self.comm = self.mpi.COMM_WORLD.Dup()
        self.comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        self.rank = self.comm.rank
        self.arena = Arena()
        self.cache_bytes = 0
        self.compiled: kernels.CompiledLoop | None = None
        self.why_not = "--loop python"
        if loop != "python":
            self.compiled, self.why_not = kernels.load()
        if self.compiled is None and loop == "compiled":
            raise UnavailableError(f"--loop compiled: {self.why_not}", "pip install 'commbench[mpi]', or leave --loop out")
        self.library_file = _loaded_library()
        self.library = ctypes.CDLL(self.library_file) if self.library_file else ctypes.CDLL(None)

    def reserve(self, points: Sequence[Point]) -> None:
        self.arena.reserve(max((self.layout(point).total for point in points), default=0))

    def layout(self, point: Point) -> Layout:
        return layout_of(point, self.rank, self.cache_bytes, _MOST_SLICES, output_at_own_block=False)

    def prepare(self, point: Point) -> MpiCall:
        return MpiCall(self, point)

    def libraries(self) -> dict[str, str]:
        import mpi4py  # noqa: PLC0415

        levels = {getattr(self.mpi, f"THREAD_{name}"): name.lower() for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
        found = {
            "mpi": _version(self.mpi),
            "mpi_file": self.library_file,
            "mpi_thread_level": levels[self.mpi.Query_thread()],
            "mpi4py": mpi4py.__version__,
        }
        if self.compiled is not None:
            import numba  # noqa: PLC0415

            found["numba"] = numba.__version__
        return found

    def calibrate(self) -> Calibration:
        """Clock and call overhead: an 8-byte all-reduce on MPI_COMM_SELF through the loop in use."""
        mpi, data = self.mpi, np.zeros(4, dtype=np.float32)
        out = np.empty(200)
        if self.compiled is None:
            spec = [data[:2], 2, mpi.FLOAT], [data[2:], 2, mpi.FLOAT]
            host_loop(out, 20, 20, 1.0, None, lambda _: mpi.COMM_SELF.Allreduce(*spec), None, 0)
        else:
            program = kernels.Program.of([
                self.step("MPI_Allreduce", data[:2].ctypes.data, data[2:].ctypes.data, 2, mpi.FLOAT, mpi.SUM, mpi.COMM_SELF)
            ])  # fmt: skip
            self.compiled.run(program, out, 20, 20, 1.0, None, 0)
            return self.compiled.calibrate(call_overhead=float(np.median(out)))
        return calibrate_host_clock(call_overhead=float(np.median(out)))

    def now(self) -> float:
        return float(self.mpi.Wtime())

    def step(self, name: str, *arguments: Any) -> kernels.Step:
        """A call of a C function: MPI objects become handles, numbers and addresses stay."""
        return kernels.address_of(self.library, name), [self._as_argument(value) for value in arguments]

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


class MpiCall:
    """One collective on the arena's slices."""

    def __init__(self, backend: MpiBackend, point: Point) -> None:
        self.backend, self.point, self.rank = backend, point, backend.rank
        self.row = OPERATIONS[point.op]
        if point.block * (point.ranks if self.row.splits else 1) > _LARGEST_COUNT:
            raise UnavailableError(
                f"{point.op}: {point.bytes} bytes of {point.dtype} are more elements than an MPI count holds",
                "use a wider --dtype",
            )
        self.layout = backend.layout(point)
        self.base = backend.arena.address
        self.counts = np.array(truth.block_counts(point), dtype=np.int32) if point.op == "alltoallv" else None
        self.position = 0
        self._programs: dict[int, kernels.Program] = {}
        self._bodies: dict[int, tuple[Callable[[int], Any], Callable[[], Any] | None]] = {}
        self._statuses = np.zeros(_STATUSES, dtype=np.int64)
        self._checked = 0
        self.how = {"loop": "python" if backend.compiled is None else "compiled", "slices": self.layout.slices}

    # -- timing --------------------------------------------------------------------------------------------

    def sync(self, out: Samples, lead: int) -> None:
        self._time(out, lead, 1)

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        self._time(out, lead, depth)

    def once(self) -> None:
        self._time(np.empty(1), 0, 1)

    def _time(self, out: Samples, lead: int, depth: int) -> None:
        scale = 1.0
        if self.point.op == "p2p":
            pair = truth.pair_of(self.point)
            if self.rank not in pair:
                out.fill(0.0)
                return
            both = self.point.option("bidirectional") is not None
            # One way: rank a's clock counts, and half of its round trip where there is one.
            scale = 1.0 if both else 0.0 if self.rank == pair[1] else 0.5 if depth == 1 else 1.0
        # Ping-pong aligns itself: an answer cannot leave before the question came.
        align = self.row.name != "p2p"
        if self.backend.compiled is None:
            body, tail = self._bodies.get(depth) or self._bodies.setdefault(depth, self._python(depth))
            barrier = self.backend.comm.Barrier if align else None
            self.position = host_loop(out, lead, depth, scale, barrier, body, tail, self.position)
            return
        program = self._programs.get(depth) or self._programs.setdefault(depth, self._program(depth))
        step = self.backend.step("MPI_Barrier", self.backend.comm) if align else None
        self.position = self.backend.compiled.run(program, out, lead, depth, scale, step, self.position)

    # -- the collective as C calls -------------------------------------------------------------------------

    def _program(self, depth: int) -> kernels.Program:
        at, step = self.layout, self.backend.step
        send = kernels.Strided(self.base + at.send, at.stride, at.slices)
        receive = kernels.Strided(self.base + at.receive, at.stride, at.slices)
        if self.row.name == "p2p":
            return self._pair_program(depth, send, receive)
        mpi, comm = self.backend.mpi, self.backend.comm
        kind, block, root = self.backend.datatype(self.point), self.point.block, self.point.root
        redop = getattr(mpi, (self.point.redop or "sum").upper())
        here = int(mpi.IN_PLACE) & ((1 << 64) - 1)
        here -= (1 << 64) if here >= 1 << 63 else 0
        in_place, is_root = self.point.in_place, self.rank == root
        source = here if in_place else send
        keep: list[Any] = []
        match self.row.name:
            case "allreduce":
                one = step("MPI_Allreduce", source, receive, block, kind, redop, comm)
            case "allgather":
                one = step("MPI_Allgather", source, block, kind, receive, block, kind, comm)
            case "reduce_scatter":
                one = step("MPI_Reduce_scatter_block", source, receive, block, kind, redop, comm)
            case "alltoall":
                one = step("MPI_Alltoall", source, block, kind, receive, block, kind, comm)
            case "alltoallv":
                keep = [*self._displacements()]
                sizes = [array.ctypes.data for array in keep]
                one = step("MPI_Alltoallv", send, sizes[0], sizes[1], kind, receive, sizes[2], sizes[3], kind, comm)
            case "broadcast":
                one = step("MPI_Bcast", receive, block, kind, root, comm)
            case "reduce":
                one = step("MPI_Reduce", here if in_place and is_root else send, receive, block, kind, redop, root, comm)
            case "gather":
                one = step("MPI_Gather", here if in_place and is_root else send, block, kind, receive, block, kind, root, comm)
            case "scatter":
                target = here if in_place and is_root else receive
                one = step("MPI_Scatter", send, block, kind, target, block, kind, root, comm)
            case _:
                after, before = (self.rank + 1) % self.point.ranks, (self.rank - 1) % self.point.ranks
                one = step("MPI_Sendrecv", send, block, kind, after, 0, receive, block, kind, before, 0, comm, self._ignore())
        return kernels.Program.of([one], rows=at.slices, keep=keep)

    def _pair_program(self, depth: int, send: kernels.Strided, receive: kernels.Strided) -> kernels.Program:
        """Ping-pong (depth 1), exchange (bidirectional), or a window of `depth` messages and one answer."""
        step, comm, ignore = self.backend.step, self.backend.comm, self._ignore()
        kind, block = self.backend.datatype(self.point), self.point.block
        a, b = truth.pair_of(self.point)
        peer, first = a + b - self.rank, self.rank == a
        both = self.point.option("bidirectional") is not None
        if depth == 1 and both:
            exchange = step("MPI_Sendrecv", send, block, kind, peer, 0, receive, block, kind, peer, 0, comm, ignore)
            return kernels.Program.of([exchange], rows=self.layout.slices)
        if depth == 1:
            ping = step("MPI_Send", send, block, kind, peer, 0, comm)
            pong = step("MPI_Recv", receive, block, kind, peer, 0, comm, ignore)
            return kernels.Program.of([ping, pong] if first else [pong, ping], rows=self.layout.slices)
        requests = np.zeros(2 * depth, dtype=np.int64)
        size = self._handle_bytes()
        slot = [kernels.Strided(requests.ctypes.data + k * depth * size, size, depth) for k in range(2)]
        gets = step("MPI_Irecv", receive, block, kind, peer, _WINDOW_TAG, comm, slot[0])
        puts = step("MPI_Isend", send, block, kind, peer, _WINDOW_TAG, comm, slot[1 if both else 0])
        ignore_all = self._ignore()
        wait = step("MPI_Waitall", 2 * depth if both else depth, requests.ctypes.data, ignore_all)
        nothing = requests.ctypes.data
        answer = (
            step("MPI_Recv", nothing, 0, kind, peer, _ANSWER_TAG, comm, ignore)
            if first
            else step("MPI_Send", nothing, 0, kind, peer, _ANSWER_TAG, comm)
        )
        body = [gets, puts] if both else [puts if first else gets]
        tail = [wait] if both else [wait, answer]
        rows = depth * self.layout.slices // np.gcd(depth, self.layout.slices)
        return kernels.Program.of(body, tail, rows=int(rows), keep=[requests])

    def _displacements(self) -> tuple[np.ndarray[Any, Any], ...]:
        """int32 send counts, send offsets, receive counts, receive offsets of alltoallv, in elements."""
        assert self.counts is not None
        received = np.full(self.point.ranks, self.counts[self.rank], dtype=np.int32)
        offsets = [np.concatenate(([0], np.cumsum(c)[:-1])).astype(np.int32) for c in (self.counts, received)]
        return self.counts, offsets[0], received, offsets[1]

    def _ignore(self) -> int:
        # MPI_STATUS_IGNORE is another constant in every MPI; an array to write to is right in all of them.
        return int(self._statuses.ctypes.data)

    def _handle_bytes(self) -> int:
        return int(self.backend.mpi._sizeof(self.backend.mpi.Request))  # noqa: SLF001 - as _handleof

    # -- the collective as mpi4py calls --------------------------------------------------------------------

    def _python(self, depth: int) -> tuple[Callable[[int], Any], Callable[[], Any] | None]:
        """(body, tail) for `host_loop`: what `_program` does, through mpi4py's methods."""
        pairs = [(self._spec(k, "send"), self._spec(k, "receive")) for k in range(min(self.layout.slices, 4096))]
        count = len(pairs)
        if self.row.name == "p2p":
            return self._python_pair(depth, pairs)
        mpi, comm, root = self.backend.mpi, self.backend.comm, self.point.root
        redop = getattr(mpi, (self.point.redop or "sum").upper())
        in_place, is_root = self.point.in_place, self.rank == root
        if in_place and self.row.name in ("allreduce", "allgather", "reduce_scatter", "alltoall"):
            pairs = [(mpi.IN_PLACE, receive) for _, receive in pairs]
        if in_place and is_root and self.row.name in ("reduce", "gather"):
            pairs = [(mpi.IN_PLACE, receive) for _, receive in pairs]
        if in_place and is_root and self.row.name == "scatter":
            pairs = [(send, mpi.IN_PLACE) for send, _ in pairs]
        after, before = (self.rank + 1) % self.point.ranks, (self.rank - 1) % self.point.ranks
        calls: dict[str, Callable[[Any, Any], Any]] = {
            "allreduce": lambda s, r: comm.Allreduce(s, r, redop),
            "allgather": comm.Allgather,
            "reduce_scatter": lambda s, r: comm.Reduce_scatter_block(s, r, redop),
            "alltoall": comm.Alltoall,
            "alltoallv": comm.Alltoallv,
            "broadcast": lambda _, r: comm.Bcast(r, root),
            "reduce": lambda s, r: comm.Reduce(s, r, redop, root),
            "gather": lambda s, r: comm.Gather(s, r, root),
            "scatter": lambda s, r: comm.Scatter(s, r, root),
            "sendrecv": lambda s, r: comm.Sendrecv(s, after, 0, r, before, 0),
        }
        call = calls[self.row.name]
        return (lambda position: call(*pairs[position % count])), None

    def _python_pair(
        self, depth: int, pairs: list[tuple[Any, Any]]
    ) -> tuple[Callable[[int], Any], Callable[[], Any] | None]:
        mpi, comm, count = self.backend.mpi, self.backend.comm, len(pairs)
        a, b = truth.pair_of(self.point)
        peer, first = a + b - self.rank, self.rank == a
        both = self.point.option("bidirectional") is not None

        def exchange(position: int) -> None:
            send, receive = pairs[position % count]
            comm.Sendrecv(send, peer, 0, receive, peer, 0)

        def pingpong(position: int) -> None:
            send, receive = pairs[position % count]
            if first:
                comm.Send(send, peer, 0)
            comm.Recv(receive, peer, 0)
            if not first:
                comm.Send(send, peer, 0)

        if depth == 1:
            return (exchange if both else pingpong), None
        pending: list[Any] = []

        def post(position: int) -> None:
            send, receive = pairs[position % count]
            if both or not first:
                pending.append(comm.Irecv(receive, peer, _WINDOW_TAG))
            if both or first:
                pending.append(comm.Isend(send, peer, _WINDOW_TAG))

        def finish() -> None:
            mpi.Request.Waitall(pending)
            pending.clear()
            if not both and first:
                comm.Recv([bytearray(1), 0, mpi.BYTE], peer, _ANSWER_TAG)
            elif not both:
                comm.Send([b"", 0, mpi.BYTE], peer, _ANSWER_TAG)

        return post, finish

    def _spec(self, k: int, side: str) -> Any:
        """mpi4py's buffer description of slice k: [array, count, type], per block where the call wants blocks."""
        view, kind = self._view(k, side), self.backend.datatype(self.point)
        if self.counts is not None:
            sent, sent_at, received, received_at = self._displacements()
            return [view, (sent, sent_at) if side == "send" else (received, received_at), kind]
        count = self.point.block if self.row.splits else len(view)
        if side == "receive" and self.row.name in ("gather", "reduce") and self.rank != self.point.root:
            return None
        if side == "send" and self.row.name == "scatter" and self.rank != self.point.root:
            return None
        return [view, count, kind]

    # -- answers -------------------------------------------------------------------------------------------

    def _view(self, k: int, side: str) -> truth.Array:
        at = self.layout
        offset, size = (at.send, at.send_bytes) if side == "send" else (at.receive, at.receive_bytes)
        if self.point.in_place and self.row.name == "reduce_scatter":
            size = max(at.send_bytes, at.receive_bytes)
        return self.backend.arena.view(k * at.stride + offset, size, self.point.dtype)

    def _slice(self) -> int:
        return self.position % self.layout.slices

    def refill(self) -> None:
        k = self._slice()
        self._checked = k
        self._view(k, "receive").fill(truth.POISON)
        truth.fill(self._view(k, "send"), truth.inputs(self.point, self.rank))

    def check(self) -> Mismatch | None:
        answers = truth.answers(self.point, self.rank)
        wrong = truth.first_difference(self.point, self._view(self._checked, "receive"), answers)
        return None if wrong is None else Mismatch(self.rank, *wrong)

    def settle(self) -> None:
        self.backend.arena.fill(self.layout, self.point.dtype, truth.fixed_point(self.point))


def _loaded_library() -> str:
    """The libmpi that mpi4py loaded, from the process' memory map; "" where there is none to read."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ""
    files = [line.split(maxsplit=5)[-1] for line in lines if line.count("/")]
    found = [file for file in dict.fromkeys(files) if Path(file).name.startswith(("libmpi.", "libmpich.", "libmpi_abi."))]
    return found[0] if found else ""
