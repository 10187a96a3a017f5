"""What ranks do in the tests of the doubles: `python scenes.py NAME RANK RANKS FOLDER`, the result as JSON.

The ranks know each other by a file in FOLDER with the unique id.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np

KINDS = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]
SUM, PROD, MAX, MIN, AVG = range(5)
I32, F16, F32, BF16 = 2, 6, 7, 9


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * 128),)


class Player:
    """One rank: CuPy, libnccl and a stream on a GPU of its own; `connect` makes the communicator."""

    def __init__(self, rank: int, ranks: int, folder: Path) -> None:
        self.cupy, self.run = cupy, cupy.cuda.runtime
        self.rank, self.ranks, self.folder = rank, ranks, folder
        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.nccl.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)
        self.comm = ctypes.c_void_p()
        self.stream = 0

    def connect(self, device: int | None = None) -> int:
        """The code of ncclCommInitRank."""
        file = self.folder / "id"
        identity = UniqueId()
        if self.rank == 0:
            self.nccl.ncclGetUniqueId(ctypes.byref(identity))
            (self.folder / "id.new").write_bytes(bytes(identity))
            (self.folder / "id.new").rename(file)
        while not file.exists():
            time.sleep(0.005)
        identity = UniqueId.from_buffer_copy(file.read_bytes())
        self.run.setDevice(self.rank if device is None else device)
        self.stream = self.run.streamCreateWithFlags(self.run.streamNonBlocking)
        return int(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.ranks, identity, self.rank))

    def __getattr__(self, name: str) -> Any:
        """An NCCL function that takes the communicator and the stream last: `player.AllReduce(a, b, 2, I32, SUM)`."""

        def call(*arguments: Any, stream: int | None = None) -> int:
            words = [a.data.ptr if isinstance(a, self.cupy.ndarray) else a or 0 for a in arguments]
            words += [self.comm.value or 0, self.stream if stream is None else stream]
            return int(getattr(self.nccl, f"nccl{name}")(*map(ctypes.c_void_p, words)))

        return call

    @contextlib.contextmanager
    def group(self, codes: list[int]) -> Iterator[None]:
        codes.append(self.nccl.ncclGroupStart())
        yield
        codes.append(self.nccl.ncclGroupEnd())

    def array(self, values: Any, kind: int = I32) -> Any:
        return self.cupy.asarray(np.array(values, dtype="uint16" if kind == BF16 else KINDS[kind]))

    def empty(self, count: int, kind: int = I32) -> Any:
        return self.array([99] * count, kind)

    def error(self) -> str:
        return self.nccl.ncclGetLastError(self.comm).decode()

    def asynchronous(self) -> int:
        state = ctypes.c_int(-1)
        self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
        return state.value


def bfloat16(values: list[float]) -> list[int]:
    """The upper half of float32; for values that it holds exactly."""
    return [int(bits >> 16) for bits in np.array(values, dtype=np.float32).view(np.uint32)]


Story = dict[str, Any]


def collectives(p: Player) -> Story:
    """Every function once, out of place and in place; rank r has 1 + r and 10 (1 + r), block j of it plus 100 j.

    Returns name -> [code, array, ...].
    """
    p.connect()
    found: Story = {}
    _reductions(p, found)
    _copies(p, found)
    found["native"] = hasattr(p.nccl, "ncclAlltoAll")
    if found["native"]:
        _native(p, found)
    _messages(p, found)
    _types(p, found)
    count, rank, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    p.nccl.ncclCommCount(p.comm, ctypes.byref(count))
    p.nccl.ncclCommUserRank(p.comm, ctypes.byref(rank))
    p.nccl.ncclCommCuDevice(p.comm, ctypes.byref(device))
    found["who"] = [count.value, rank.value, device.value, p.nccl.ncclCommFinalize(p.comm)]
    last = p.empty(1)
    found["end"] = [p.nccl.ncclCommDestroy(p.comm), p.AllReduce(last, last, 1, I32, SUM)]
    return found


def _mine(p: Player) -> list[int]:
    return [1 + p.rank, 10 * (1 + p.rank)]


def _blocks(p: Player) -> list[int]:
    return [value + 100 * j for j in range(p.ranks) for value in _mine(p)]


def _own(p: Player, array: Any) -> Any:
    return array[2 * p.rank : 2 * p.rank + 2]


def _lists(*arrays: Any) -> list[Any]:
    return [array.tolist() for array in arrays]


def _reductions(p: Player, found: Story) -> None:
    root = p.ranks - 1
    for name, op in {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN, "avg": AVG}.items():
        send, receive = p.array(_mine(p)), p.empty(2)
        found[f"allreduce {name}"] = [p.AllReduce(send, receive, 2, I32, op), *_lists(receive, send)]
    send = p.array(_mine(p))
    found["allreduce in place"] = [p.AllReduce(send, send, 2, I32, SUM), *_lists(send)]
    send, receive = p.array(_mine(p)), p.empty(2)
    code = p.Reduce(send, receive if p.rank == root else None, 2, I32, SUM, root)
    found["reduce"] = [code, *_lists(receive)]
    found["reduce in place"] = [p.Reduce(send, send, 2, I32, SUM, root), *_lists(send)]
    send, receive = p.array(_blocks(p)), p.empty(2)
    found["reducescatter"] = [p.ReduceScatter(send, receive, 2, I32, SUM), *_lists(receive)]
    found["reducescatter in place"] = [p.ReduceScatter(send, _own(p, send), 2, I32, SUM), *_lists(_own(p, send))]


def _copies(p: Player, found: Story) -> None:
    root = p.ranks - 1
    send, receive = p.array(_mine(p)), p.empty(2)
    found["broadcast"] = [p.Broadcast(send if p.rank == root else None, receive, 2, I32, root), *_lists(receive)]
    found["broadcast in place"] = [p.Broadcast(send, send, 2, I32, root), *_lists(send)]
    send = p.array(_mine(p))
    found["bcast"] = [p.Bcast(send, 2, I32, 0), *_lists(send)]
    send, receive = p.array(_mine(p)), p.empty(2 * p.ranks)
    found["allgather"] = [p.AllGather(send, receive, 2, I32), *_lists(receive)]
    receive = p.empty(2 * p.ranks)
    _own(p, receive)[:] = send
    found["allgather in place"] = [p.AllGather(_own(p, receive), receive, 2, I32), *_lists(receive)]


def _native(p: Player, found: Story) -> None:
    root = p.ranks - 1
    send, receive = p.array(_blocks(p)), p.empty(2 * p.ranks)
    found["alltoall"] = [p.AlltoAll(send, receive, 2, I32), *_lists(receive)]
    found["alltoall in place"] = [p.AlltoAll(send, send, 2, I32)]
    send, receive = p.array(_mine(p)), p.empty(2 * p.ranks)
    code = p.Gather(send, receive if p.rank == root else None, 2, I32, root)
    found["gather"] = [code, *_lists(receive)]
    receive = p.empty(2 * p.ranks)
    if p.rank == root:
        _own(p, receive)[:] = send
        send = _own(p, receive)
    found["gather in place"] = [p.Gather(send, receive, 2, I32, root), *_lists(receive)]
    send, receive = p.array(_blocks(p)), p.empty(2)
    code = p.Scatter(send if p.rank == root else None, receive, 2, I32, root)
    found["scatter"] = [code, *_lists(receive)]
    receive = _own(p, send) if p.rank == root else receive
    found["scatter in place"] = [p.Scatter(send, receive, 2, I32, root), *_lists(receive)]


def _messages(p: Player, found: Story) -> None:
    after, before = (p.rank + 1) % p.ranks, (p.rank - 1) % p.ranks
    codes: list[int] = []
    short, receive = p.array(_mine(p)), p.empty(2)
    with p.group(codes):
        codes += [p.Send(short, 2, I32, after), p.Recv(receive, 2, I32, before)]
    found["shift"] = [max(codes), *_lists(receive)]
    # 300,000 bytes are five pieces of a box. The k-th message of a pair meets its k-th receive.
    send, long, two = p.array(np.arange(75_000) + p.rank), p.empty(75_000), p.empty(2)
    with p.group(codes):
        codes += [p.Send(send, 75_000, I32, after), p.Send(short, 2, I32, after)]
        codes += [p.Recv(long, 75_000, I32, before), p.Recv(two, 2, I32, before)]
    wrong = int((long != send - p.rank + before).sum())
    found["long shift"] = [max(codes), *_lists(two), wrong]
    if p.rank < 2:  # outside a group: one sends, the other receives
        pair = p.array(_mine(p))
        code = p.Send(pair, 2, I32, 1) if p.rank == 0 else p.Recv(pair, 2, I32, 0)
        found["message"] = [code, *_lists(pair)]
    with p.group(codes):
        codes += [p.Send(short, 2, I32, p.rank), p.Recv(two, 2, I32, p.rank)]
    found["to itself"] = [max(codes), *_lists(two)]


def _types(p: Player, found: Story) -> None:
    for kind, name in enumerate(KINDS):
        send = p.array(bfloat16(_mine(p)) if kind == BF16 else _mine(p), kind)
        found[f"sum {name}"] = [p.AllReduce(send, send, 2, kind, SUM), *_lists(send)]
    cases: list[tuple[int, int, list[float]]] = [
        (F16, SUM, [2048, 1, 1]),
        (F16, SUM, [2048, 3, 0]),
        (F16, SUM, [2.0**-24, 2.0**-24, 0]),
        (F16, SUM, [65504, 16, 0]),
        (F16, PROD, [2.0**-14, 0.375, 1]),
        (BF16, SUM, [256, 1, 1]),
        (BF16, SUM, [256, 3, 0]),
        (0, SUM, [100, 100, 100]),
        (I32, AVG, [1, 2, 4]),
        (F32, AVG, [1, 1, 2]),
    ]
    found["rounding"] = [_folded(p, *case) for case in cases]


def _folded(p: Player, kind: int, op: int, values: list[float]) -> float:
    value = values[p.rank]
    array = p.array(bfloat16([value]) if kind == BF16 else [value], kind)
    p.AllReduce(array, array, 1, kind, op)
    if kind == BF16:
        return float(np.array([int(array.get()[0]) << 16], dtype=np.uint32).view(np.float32)[0])
    return float(array.get()[0])


def misuse(p: Player) -> Any:
    """Calls that are wrong on each rank by itself: nobody waits for anybody."""
    p.connect()
    buffer, other = p.empty(8), p.empty(8)
    host = np.zeros(8, dtype=np.int32)
    far = p.cupy.cuda.Device(1 - p.rank)
    with far:
        theirs, strange = p.empty(8), p.run.streamCreate()
    found = {}
    for name, call in {
        "past the end": lambda: p.AllReduce(buffer[4:], other, 5, I32, SUM),
        "host memory": lambda: p.AllReduce(host.ctypes.data, other, 8, I32, SUM),
        "another GPU's memory": lambda: p.AllReduce(buffer, theirs, 8, I32, SUM),
        "another GPU's stream": lambda: p.AllReduce(buffer, other, 8, I32, SUM, stream=strange),
        "overlap": lambda: p.AllReduce(buffer, buffer[2:], 4, I32, SUM),
        "allgather in place at the wrong block": lambda: p.AllGather(buffer[2 * (1 - p.rank) :], buffer, 2, I32),
        "misaligned": lambda: p.AllReduce(buffer.data.ptr + 2, other, 1, I32, SUM),
        "root": lambda: p.Broadcast(buffer, buffer, 1, I32, 2),
        "type": lambda: p.AllReduce(buffer, buffer, 1, 12, SUM),
        "reduction": lambda: p.AllReduce(buffer, buffer, 1, I32, 5),
        "no buffer": lambda: p.AllReduce(None, other, 1, I32, SUM),
        "to itself alone": lambda: p.Send(buffer, 1, I32, p.rank),
    }.items():
        found[name] = [call(), p.error()]
    codes: list[int] = []
    with p.group(codes):
        codes.append(p.Send(buffer, 4, I32, 1 - p.rank))
        codes.append(p.Recv(buffer[2:], 4, I32, 1 - p.rank))
    found["a group that overwrites what it sends"] = [codes[-1], p.error()]
    codes = []
    with p.group(codes):
        codes.append(p.Send(buffer, 4, I32, 7))
    found["an error inside a group"] = [codes[-1], p.error()]
    codes = []
    with p.group(codes):
        codes.append(p.AllReduce(p.empty(4), p.empty(4), 4, I32, SUM))  # freed before the group ends
    found["memory freed inside a group"] = [codes[-1], p.error()]
    found["no group"] = [p.nccl.ncclGroupEnd(), p.error()]
    found["nothing"] = [p.AllReduce(None, None, 0, I32, SUM), ""]
    return found


def mismatch(p: Player) -> Any:
    """Counts that differ between a send and its receive."""
    p.connect()
    buffer = p.empty(8)
    code = p.Send(buffer, 4, I32, 1) if p.rank == 0 else p.Recv(buffer, 5, I32, 0)
    return [code, p.error()]


def deadlock(p: Player) -> Any:
    """Both send first, outside a group."""
    p.connect()
    buffer, other = p.empty(1), p.empty(1)
    codes = [p.Send(buffer, 1, I32, 1 - p.rank)]
    codes.append(p.Recv(other, 1, I32, 1 - p.rank) if not codes[0] else codes[0])
    return [*codes, p.asynchronous(), p.error()]


def graph(p: Player) -> Any:
    """Two all-reduces in place and a copy, captured and launched three times: what ran when."""
    p.connect()
    buffer, copy = p.array([1, 10]), p.empty(2)
    event = p.run.eventCreate()
    codes: list[int] = []
    p.run.streamBeginCapture(p.stream, p.run.streamCaptureModeThreadLocal)
    p.AllReduce(buffer, buffer, 2, I32, SUM)
    with p.group(codes):
        codes.append(p.AllReduce(buffer, buffer, 2, I32, SUM))
    p.run.memcpyAsync(copy.data.ptr, buffer.data.ptr, 8, p.run.memcpyDeviceToDevice, p.stream)
    p.run.eventRecord(event, p.stream)
    captured = [buffer.tolist(), copy.tolist(), p.run.streamIsCapturing(p.stream), p.run.eventQuery(event)]
    made = p.run.streamEndCapture(p.stream)
    launch = p.run.graphInstantiate(made)
    p.run.graphDestroy(made)
    codes += [p.driver.cuGraphLaunch(ctypes.c_void_p(launch), ctypes.c_void_p(p.stream)) for _ in range(3)]
    return [captured, buffer.tolist(), copy.tolist(), codes]


def shared(p: Player) -> Any:
    """Two ranks on the one GPU."""
    code = p.connect(device=0)
    if code:
        return [code, p.error()]
    buffer = p.array([1])
    return [p.AllReduce(buffer, buffer, 1, I32, SUM), buffer.tolist()]


def faults(p: Player) -> Any:
    """Four all-reduces, and how things stand after each: code, asynchronous error, stream; then an abort."""
    p.connect()
    event = p.run.eventCreate()
    story = []
    for _ in range(4):
        buffer = p.array([1])
        code = p.AllReduce(buffer, buffer, 1, I32, SUM)
        p.run.eventRecord(event, p.stream)
        story.append([code, p.asynchronous(), p.run.streamQuery(p.stream), p.run.eventQuery(event), buffer.tolist()])
        if story[-1][2]:
            break
    (p.folder / f"seen-{p.rank}").touch()
    until = time.monotonic() + 10  # an abort would be an error to a peer that has not looked yet
    while not all((p.folder / f"seen-{k}").exists() for k in range(p.ranks)) and not p.asynchronous():
        assert time.monotonic() < until
        time.sleep(0.005)
    p.nccl.ncclCommAbort(p.comm)
    return [story, p.run.streamQuery(p.stream)]


def aborted(p: Player) -> Any:
    """Rank 1 never comes to the all-reduce: a thread of rank 0 aborts it."""
    p.connect()
    if p.rank:
        time.sleep(1)
        return [0, ""]
    buffer = p.array([1])
    threading.Timer(0.3, lambda: p.nccl.ncclCommAbort(p.comm)).start()
    return [p.AllReduce(buffer, buffer, 1, I32, SUM), p.error()]


def killed(p: Player) -> Any:
    """Ends without a word while its peer waits to be connected."""
    if p.rank:
        os._exit(9)
    return p.connect()


if __name__ == "__main__":
    scene, rank, ranks, folder = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[scene](Player(int(rank), int(ranks), Path(folder)))))
