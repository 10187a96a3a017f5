"""The doubles of CUDA, NCCL, NVML and CuPy behave as the documents of the originals say, before others rely on them.

Expected values are from the comments in nccl.h, calculated by hand. What the doubles cannot show:

* asynchrony: what is put into a stream is done at once, so a missing synchronisation, an order between two streams
  that nobody asked for, or a buffer reused too early go unnoticed. Only faults leave a stream unfinished.
* time: a call takes as long as copying through host memory takes; events are a host clock. No rate means anything.
* what NCCL decides: algorithms, protocols, channels, transports, topology, connections made at the first call,
  registration, its sums' order and its averages' rounding (DOUBLE_NCCL_AVG=premultiply comes close to the latter).
* what NCCL does not notice: wrong sizes and addresses, which here are errors and there hang or corrupt.
* the real rules of capture, beyond: no synchronising calls, no legacy stream, a group is one node of one stream.
* several communicators in a process, in one group: they work here however they are interleaved.
* kernels, contexts, the memory pool, other processes' memory, ECC, MIG beyond its names, hosts other than this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import HERE, built, calls, complaints, library, machine, needs_compiler

pytestmark = needs_compiler

I32 = 2


def play(
    scene: str, ranks: int, folder: Path, environment: dict[str, str] | None = None, killed: int = 0, **knobs: Any
) -> list[Any]:
    """Let `ranks` processes play a scene; what each of them returned, None of one that was killed."""
    knobs = {"gpus": ranks, "log": folder / "log-%p", "patience": 20} | knobs
    around = os.environ | machine(built(), **knobs) | (environment or {})
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "scenes.py"), scene, str(rank), str(ranks), str(folder)],
            env=around,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=60) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, err) in zip(started, said, strict=True):
        assert process.returncode in (0, killed), err
    return [
        json.loads(out) if process.returncode == 0 else None for process, (out, _) in zip(started, said, strict=True)
    ]


def log_of_rank(folder: Path, rank: int) -> Path:
    [log] = [
        path
        for path in folder.glob("log-*")
        if any(call["name"] == "double_comm" and call["rank"] == rank for call in calls(path))
    ]
    return log


def in_python(code: str, **knobs: Any) -> str:
    """What a process on such a machine prints."""
    around = os.environ | machine(built(), **knobs)
    done = subprocess.run([sys.executable, "-c", code], env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- NCCL --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return play("collectives", 3, tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return play("collectives", 2, tmp_path_factory.mktemp("two"), nccl="old")


KEPT = [[1, 10], [2, 20], [3, 30]]  # what the ranks had
UNTOUCHED = [99, 99]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("allreduce sum", [[6, 60]] * 3),
        ("allreduce prod", [[6, 6000]] * 3),
        ("allreduce max", [[3, 30]] * 3),
        ("allreduce min", [[1, 10]] * 3),
        ("allreduce avg", [[2, 20]] * 3),
        ("allreduce in place", [[6, 60]] * 3),
        ("reduce", [UNTOUCHED, UNTOUCHED, [6, 60]]),
        ("reduce in place", [[1, 10], [2, 20], [6, 60]]),
        ("broadcast", [[3, 30]] * 3),
        ("broadcast in place", [[3, 30]] * 3),
        ("bcast", [[1, 10]] * 3),
        ("allgather", [[1, 10, 2, 20, 3, 30]] * 3),
        ("allgather in place", [[1, 10, 2, 20, 3, 30]] * 3),
        ("reducescatter", [[6, 60], [306, 360], [606, 660]]),
        ("reducescatter in place", [[6, 60], [306, 360], [606, 660]]),
        ("alltoall", [[1, 10, 2, 20, 3, 30], [101, 110, 102, 120, 103, 130], [201, 210, 202, 220, 203, 230]]),
        ("gather", [UNTOUCHED * 3, UNTOUCHED * 3, [1, 10, 2, 20, 3, 30]]),
        ("gather in place", [UNTOUCHED * 3, UNTOUCHED * 3, [1, 10, 2, 20, 3, 30]]),
        ("scatter", [[3, 30], [103, 130], [203, 230]]),
        ("scatter in place", [[3, 30], [103, 130], [203, 230]]),
        ("shift", [[3, 30], [1, 10], [2, 20]]),
        ("long shift", [[3, 30], [1, 10], [2, 20]]),
        ("message", [[1, 10], [1, 10], None]),
        ("to itself", KEPT),
    ],
)
def test_every_function_does_what_nccl_h_says(three: list[dict[str, Any]], name: str, expected: list[Any]) -> None:
    found = [rank[name][:2] if name in rank else [0, None] for rank in three]

    assert found == [[0, values] for values in expected]


def test_a_long_message_arrives_whole(three: list[dict[str, Any]]) -> None:
    assert [rank["long shift"][2] for rank in three] == [0] * 3


def test_inputs_stay_as_they_were(three: list[dict[str, Any]]) -> None:
    assert [rank["allreduce sum"][2] for rank in three] == KEPT


def test_sums_are_right_in_every_type(three: list[dict[str, Any]]) -> None:
    whole = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")

    assert all(rank[f"sum {kind}"] == [0, [6, 60]] for rank in three for kind in whole)
    # bfloat16 6 is 0x40c0 (1.5 x 2^2), 60 is 0x4270 (1.875 x 2^5)
    assert all(rank["sum bfloat16"] == [0, [0x40C0, 0x4270]] for rank in three)


def test_results_are_rounded_to_nearest_even_after_each_step(three: list[dict[str, Any]]) -> None:
    # float16 holds 2048 and 2050 but not 2049: 2048 + 1 is a tie, to even, twice; 2048 + 3 a tie, to 2052. 2^-24 is
    # its smallest number. 65504 + 16 is the tie that goes to infinity. 0.375 x 2^-14 is below the normal numbers.
    # bfloat16 has 8 bits: 256 + 1 is a tie to 256, 256 + 3 one to 260. int8 wraps: 300 - 256. 7 / 3 is cut off.
    expected = [2048, 2052, 2.0**-23, float("inf"), 0.375 * 2.0**-14, 256, 260, 44, 2, 4 / 3]

    for rank in three:
        assert rank["rounding"] == pytest.approx(expected, rel=1e-7)


def test_alltoall_has_no_in_place_form(three: list[dict[str, Any]]) -> None:
    assert [rank["alltoall in place"] for rank in three] == [[4]] * 3


def test_a_communicator_knows_itself_and_is_of_no_use_after_its_end(three: list[dict[str, Any]]) -> None:
    assert [rank["who"] for rank in three] == [[3, 0, 0, 0], [3, 1, 1, 0], [3, 2, 2, 0]]
    assert [rank["end"] for rank in three] == [[0, 4]] * 3


def test_an_old_library_lacks_three_functions_and_does_the_rest(two: list[dict[str, Any]]) -> None:
    assert [rank["native"] for rank in two] == [False, False]
    assert [rank["allreduce sum"][:2] for rank in two] == [[0, [3, 30]]] * 2
    assert [rank["reducescatter"] for rank in two] == [[0, [3, 30]], [0, [203, 230]]]
    assert [rank["shift"] for rank in two] == [[0, [2, 20]], [0, [1, 10]]]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    first, second = play("misuse", 2, tmp_path_factory.mktemp("misuse"))
    assert {name: code for name, (code, _) in first.items()} == {name: code for name, (code, _) in second.items()}
    return dict(first)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("past the end", 4, "runs 4 bytes past the end of its allocation (32 bytes, used from 16 to 36)"),
        ("host memory", 4, "it is in no memory of a device"),
        ("another GPU's memory", 4, "allocated on device 1 mismatchs with NCCL device 0"),
        ("another GPU's stream", 4, "is not one of device 0"),
        ("overlap", 4, "not in the in-place form"),
        ("allgather in place at the wrong block", 4, "not in the in-place form"),
        ("misaligned", 4, "not aligned"),
        ("root", 4, "invalid root 2"),
        ("type", 4, "invalid type 12"),
        ("reduction", 4, "invalid reduction operation 5"),
        ("no buffer", 4, "sendbuff (nil) is not a valid pointer"),
        ("to itself alone", 5, "Trying to send to self without a matching recv"),
        ("a group that overwrites what it sends", 4, "another call of it uses"),
        ("an error inside a group", 4, "invalid root 7"),
        ("memory freed inside a group", 4, "it is in no memory of a device"),
        ("no group", 5, "not in a group"),
        ("nothing", 0, ""),
    ],
)
def test_wrong_use_is_refused_with_its_reason(refused: dict[str, Any], name: str, code: int, words: str) -> None:
    assert refused[name][0] == code
    assert words in refused[name][1]


def test_a_send_and_a_receive_of_different_counts_fail_on_both_sides(tmp_path: Path) -> None:
    first, second = play("mismatch", 2, tmp_path)

    assert first == second
    assert first[0] == 5
    assert "rank 1: ncclSend(count 5" in first[1]
    assert "rank 0: ncclSend(count 4" in first[1]


def test_two_sends_outside_a_group_wait_for_each_other(tmp_path: Path) -> None:
    for codes in play("deadlock", 2, tmp_path, patience=2):
        assert codes[:3] == [6, 6, 6]
        assert "does not answer" in codes[3] or "left" in codes[3]


def test_a_captured_graph_does_nothing_until_it_is_launched(tmp_path: Path) -> None:
    # Each launch doubles twice: 1 -> 4 -> 16 -> 64.
    for captured, buffer, copy, codes in play("graph", 2, tmp_path):
        assert captured == [[1, 10], [99, 99], True, 900]
        assert buffer == copy == [64, 640]
        assert not any(codes)
    inside = [call for call in calls(log_of_rank(tmp_path, 0)) if call["name"] == "ncclAllReduce"]
    assert [(call["capture"], call["depth"]) for call in inside] == [(1, 0), (1, 1)]


def test_two_ranks_share_a_gpu_only_when_nccl_is_told_so(tmp_path: Path) -> None:
    rooms = iter(range(9))

    def share(**environment: str) -> list[Any]:
        folder = tmp_path / str(next(rooms))
        folder.mkdir()
        nccl = environment.pop("nccl", "new")
        return play("shared", 2, folder, environment, gpus=1, nccl=nccl)

    assert [(code, "NCCL_MULTI_RANK_GPU_ENABLE=1" in words) for code, words in share()] == [(5, True)] * 2
    assert share(NCCL_MULTI_RANK_GPU_ENABLE="1") == [[0, [2]]] * 2
    old = share(NCCL_MULTI_RANK_GPU_ENABLE="1", nccl="old")  # before 2.30.3 the variable means nothing
    assert [(code, words.split(" : ")[0]) for code, words in old] == [(5, "Duplicate GPU detected")] * 2


def test_ranks_that_call_themselves_two_hosts_share_a_gpu(tmp_path: Path) -> None:
    code = (
        "import os, runpy, sys; os.environ['NCCL_HOSTID'] = sys.argv[2];"
        f"sys.argv[0] = {str(HERE / 'scenes.py')!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    around = os.environ | machine(built(), gpus=1, patience=20)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, "shared", str(rank), "2", str(tmp_path)],
            env=around,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]

    assert [json.loads(process.communicate(timeout=60)[0]) for process in started] == [[0, [2]]] * 2


def test_a_hang_leaves_the_streams_of_all_unfinished_without_an_error(tmp_path: Path) -> None:
    for story, after in play("faults", 2, tmp_path, nccl_hang="1:2"):
        assert story == [[0, 0, 0, 0, [2]], [0, 0, 600, 600, [1]]]
        assert after == 0


def test_a_dead_peer_is_an_asynchronous_error(tmp_path: Path) -> None:
    survivor, dead = play("faults", 2, tmp_path, killed=-9, nccl_die="1:2")

    assert dead is None
    assert survivor == [[[0, 0, 0, 0, [2]], [0, 6, 600, 600, [1]]], 0]
    assert complaints(log_of_rank(tmp_path, 0)) == ["rank 1 ended"]


def test_an_asynchronous_error_shows_from_its_call_on(tmp_path: Path) -> None:
    first, second = play("faults", 2, tmp_path, nccl_error="0:3", nccl_wrong="1:4")

    assert [step[:3] for step in first[0]] == [[0, 0, 0], [0, 0, 0], [0, 6, 0], [0, 6, 0]]
    assert [step[1] for step in second[0]] == [0, 0, 0, 0]
    assert [step[4] for step in second[0]] == [[2], [2], [2], [3]]  # one bit is wrong from the fourth on


def test_an_abort_ends_a_call_that_waits(tmp_path: Path) -> None:
    first, _ = play("aborted", 2, tmp_path)

    assert first == [6, "the communicator was aborted"]


def test_a_rank_that_never_comes_is_given_up(tmp_path: Path) -> None:
    assert play("killed", 2, tmp_path, killed=9, patience=0.5)[0] == 6


def test_nothing_is_left_in_shared_memory(two: list[Any], three: list[Any]) -> None:
    assert not [path for path in Path("/dev/shm").iterdir() if "double" in path.name]


def test_the_log_says_where_in_its_allocation_a_buffer_is(tmp_path: Path) -> None:
    play("collectives", 2, tmp_path)
    gathered = [call for call in calls(log_of_rank(tmp_path, 1)) if call["name"] == "ncclAllGather"]

    assert [(call["send_offset"], call["recv_offset"], call["count"], call["dtype"]) for call in gathered] == [
        (0, 0, 2, I32),
        (8, 0, 2, I32),
    ]


def test_the_library_says_its_version_and_what_it_was_built_for() -> None:
    code = (
        "import ctypes; v = ctypes.c_int(); ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(v)); print(v.value)"
    )

    assert in_python(code) == "23007"
    assert in_python(code, nccl="old") == "22703"
    assert in_python(code, nccl_version=22802) == "22802"
    assert b"NCCL version 2.27.3+cuda12.9" in library(built(), "old").read_bytes()


# -- CUDA and CuPy -----------------------------------------------------------------------------------------------

ERRORS = """
import cupy
r = cupy.cuda.runtime
def code(f, *a):
    try: f(*a)
    except r.CUDARuntimeError as e: return e.status
    return 0
"""


def test_devices_are_what_the_machine_has_and_the_process_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    code = ERRORS + (
        "print(r.getDeviceCount(), [r.getDeviceProperties(i)['name'].decode() for i in range(r.getDeviceCount())],"
        " [r.deviceGetPCIBusId(i) for i in range(r.getDeviceCount())], code(r.setDevice, r.getDeviceCount()))"
    )
    models = "NVIDIA H100 80GB HBM3,NVIDIA GeForce RTX 4090"

    assert in_python(code, gpus=2, gpu_models=models) == (
        "2 ['NVIDIA H100 80GB HBM3', 'NVIDIA GeForce RTX 4090'] ['0000:1B:00.0', '0000:27:00.0'] 101"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert in_python(code, gpus=2, gpu_models=models) == "1 ['NVIDIA GeForce RTX 4090'] ['0000:27:00.0'] 101"
    assert in_python(code, gpus=2, mig=1) == "1 ['NVIDIA H100 80GB HBM3 MIG 1g.10gb'] ['0000:1B:00.0'] 101"


def test_a_missing_driver_an_old_one_and_no_device_have_their_codes() -> None:
    code = ERRORS + "print(code(r.getDeviceCount), code(r.malloc, 8), r.driverGetVersion(), cupy.cuda.is_available())"

    assert in_python(code, driver=11080) == "35 35 11080 False"
    assert in_python(code, cuda=False) == "35 35 0 False"
    assert in_python(code, gpus=0) == "100 100 12090 False"


def test_memory_is_counted_per_device_and_runs_out() -> None:
    code = ERRORS + (
        "m = cupy.cuda.Memory(600)\n"
        "print(r.memGetInfo(), code(r.malloc, 500))\n"
        "try: cupy.empty(500, 'u1')\n"
        "except cupy.cuda.memory.OutOfMemoryError as e: print(e)\n"
        "cupy.cuda.Device(1).use(); print(r.memGetInfo())\n"
        "del m; cupy.cuda.Device(0).use(); print(r.memGetInfo(), code(r.free, 5))"
    )

    assert in_python(code, gpu_memory=1000).splitlines() == [
        "(400, 1000) 2",
        "Out of memory allocating 500 bytes (allocated so far: 600 bytes).",
        "(1000, 1000)",
        "(1000, 1000) 1",
    ]


def test_peer_access_keeps_its_state() -> None:
    code = ERRORS + (
        "print(r.deviceCanAccessPeer(0, 1), [code(f, 1) for f in (r.deviceEnablePeerAccess, r.deviceEnablePeerAccess,"
        " r.deviceDisablePeerAccess, r.deviceDisablePeerAccess)])"
    )

    assert in_python(code) == "1 [0, 704, 0, 705]"
    assert in_python(code, peer_access=0) == "0 [217, 217, 705, 705]"


def test_copies_check_their_ends_and_keep_to_a_rate() -> None:
    code = ERRORS + (
        "import numpy as np\n"
        "h = np.arange(256, dtype=np.uint8); a = cupy.empty(256, 'u1')\n"
        "cupy.cuda.Device(1).use(); b = cupy.empty(256, 'u1')\n"
        "A, B, H = a.data.ptr, b.data.ptr, h.ctypes.data\n"
        "print(code(r.memcpy, A, H, 256, 1), code(r.memcpyPeer, B, 1, A, 0, 256), int((cupy.asarray(h) == b).sum()))\n"
        "print(code(r.memcpy, A, H, 257, 1), code(r.memcpy, A, H, 8, 2), code(r.memcpyPeer, B, 0, A, 0, 8))\n"
        "s = r.streamCreate(); e = [r.eventCreate() for _ in 'ab']\n"
        "p = cupy.cuda.alloc_pinned_memory(256)\n"
        "r.eventRecord(e[0], s); r.memcpyAsync(B, p.ptr, 256, 1, s); r.eventRecord(e[1], s); r.streamSynchronize(s)\n"
        "print(r.eventElapsedTime(*e) >= 10)"
    )

    # 256 bytes at 25,600 bytes per second are 10 ms.
    assert in_python(code, rates="h2d=25600").splitlines() == ["0 0 256", "1 1 1", "True"]


def test_the_driver_needs_a_context_that_the_runtime_made() -> None:
    code = (
        "import ctypes; d = ctypes.CDLL('libcuda.so.1'); before = d.cuStreamQuery(None)\n"
        "import cupy; cupy.cuda.runtime.setDevice(0); print(before, d.cuStreamQuery(None))"
    )

    assert in_python(code) == "201 0"


def test_what_a_capture_forbids_spoils_it() -> None:
    code = ERRORS + (
        "s = r.streamCreateWithFlags(1); r.streamBeginCapture(s, 1)\n"
        "print(code(r.malloc, 8), code(r.deviceSynchronize), code(r.streamSynchronize, s), code(r.streamEndCapture, s),"
        " code(r.streamBeginCapture, 0, 1), code(r.malloc, 8))"
    )

    assert in_python(code) == "900 900 900 901 900 0"


def test_an_array_is_as_strict_as_cupys() -> None:
    code = (
        "import cupy, numpy as np\n"
        "def name(f):\n"
        "    try: return f()\n"
        "    except Exception as e: return type(e).__name__\n"
        "a = cupy.asarray(np.arange(6, dtype=np.int32)); h = np.arange(6, dtype=np.int32)\n"
        "print(name(lambda: np.asarray(a)), name(lambda: a + h), name(lambda: a.__setitem__(slice(0, 2), h[:2])))\n"
        "b = a[2:]; b[:2] = a[:2] + 7\n"
        "print(a.get().tolist(), type(a[1]).__name__, int((a > 6).argmax()), bool((a == 8).any()))\n"
        "print(b.data.ptr - a.data.ptr)\n"
        "print(name(lambda: cupy.ndarray((3,), 'i4', cupy.cuda.MemoryPointer(cupy.cuda.Memory(8), 0))))\n"
        "print(a.view('u1').shape, (~(a == 8)).astype('i1').get().tolist(), a.reshape(2, 3).sum(axis=0).tolist())"
    )

    assert in_python(code).splitlines() == [
        "TypeError TypeError TypeError",
        "[0, 1, 7, 8, 4, 5] ndarray 2 True",
        "8",
        "ValueError",
        "(24,) [1, 1, 1, 0, 1, 1] [8, 5, 12]",
    ]


def test_a_kernel_is_a_python_function_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("def twice(grid, block, args):\n    args[0][:] = args[0] * args[1]\n")
    code = (
        "import cupy; a = cupy.ones(3)\n"
        "cupy.RawKernel('__global__ void twice(double* a, int k)', 'twice')((1,), (3,), (a, 2))\n"
        "print(a.tolist(), cupy.cuda.nvrtc.getVersion())"
    )

    assert in_python(code, kernels=tmp_path / "kernels.py") == "[2.0, 2.0, 2.0] (12, 9)"


COMPARE = """
import inspect, json, re, sys
import cupy
def parameters(f):
    try: return [p.name for p in inspect.signature(f).parameters.values() if p.name not in ("self", "cls")]
    except (ValueError, TypeError): pass
    first = (f.__doc__ or "").splitlines()[0] if f.__doc__ else ""
    inside = re.match(r"[\\w.]+\\((.*?)\\)(\\s*->.*)?$", first)
    if inside is None: return None
    words = [w.split("=")[0].split(":")[0].strip().split(" ")[-1] for w in inside[1].split(",") if w.strip()]
    return [w.lstrip("*") for w in words if w not in ("self", "cls", "/", "*")]
found = {}
for path in json.load(sys.stdin):
    at = cupy
    for part in path.split("."):
        at = getattr(at, part, None)
    if at is None: found[path] = None
    elif isinstance(at, int): found[path] = ["constant", at]
    else: found[path] = ["function", parameters(at) if callable(at) and not isinstance(at, type) else None]
print(json.dumps(found))
"""

NAMES = """
import json, types, cupy
def walk(at, path, seen):
    for name, value in vars(at).items():
        if name.startswith("_") or name == "annotations": continue
        if isinstance(value, types.ModuleType):
            if value.__name__ == f"cupy.{path}{name}": walk(value, f"{path}{name}.", seen)
        elif isinstance(value, type):
            if value.__module__.startswith("cupy") and value not in known:
                known.append(value)
                seen.append(f"{path}{name}")
                walk(value, f"{path}{name}.", seen)
        elif isinstance(value, (int, types.FunctionType, property, classmethod)):
            seen.append(f"{path}{name}")
    return seen
known = []
print(json.dumps(walk(cupy, "", [])))
"""


def test_every_name_is_one_of_the_real_cupy_with_its_parameters() -> None:
    real = os.environ.get("COMMBENCH_REAL_CUPY_PYTHON", "")
    if not real:
        pytest.skip("COMMBENCH_REAL_CUPY_PYTHON names no Python with the real CuPy")
    names = json.loads(in_python(NAMES))

    def about(python: str, environment: dict[str, str]) -> dict[str, Any]:
        done = subprocess.run(
            [python, "-c", COMPARE],
            input=json.dumps(names),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(json.loads(done.stdout))

    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    ours, theirs = about(sys.executable, os.environ | machine(built())), about(real, plain)
    assert len(names) > 100
    assert [name for name in names if theirs[name] is None] == []
    different = {
        name: (ours[name], theirs[name])
        for name in names
        if theirs[name][1] is not None and ours[name][1] is not None and ours[name] != theirs[name]
    }
    assert different == {}


# -- NVML --------------------------------------------------------------------------------------------------------

NVML = "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); h = ctypes.c_void_p(); v = ctypes.c_ulonglong()\n"


def test_nvml_sees_all_gpus_whatever_cuda_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    code = NVML + (
        "s, at = ctypes.create_string_buffer(96), ctypes.byref\n"
        "print(n.nvmlDeviceGetCount_v2(at(v)), n.nvmlInit_v2(), n.nvmlDeviceGetCount_v2(at(v)), v.value)\n"
        "print(n.nvmlDeviceGetHandleByPciBusId_v2(b'0000:27:00.0', at(h)), n.nvmlDeviceGetUUID(h, s, 96))\n"
        "print(s.value.decode())\n"
        "import cupy; print(cupy.cuda.runtime.getDeviceProperties(0)['uuid'].hex())"
    )

    # GPU 1's UUID has a zero byte, at which CuPy's C string ends.
    count, found, uuid, short = in_python(code, gpus=3).splitlines()
    assert (count, found) == ("1 0 0 3", "0 0")
    assert uuid.startswith("GPU-c1e70d33-5900-")
    assert short == "c1e70d3359"


def test_nvml_reports_throttling_as_often_as_it_is_told() -> None:
    code = NVML + (
        "n.nvmlInit_v2(); n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))\n"
        "def ask(): return n.nvmlDeviceGetCurrentClocksEventReasons(h, ctypes.byref(v)), v.value\n"
        "print(ask(), ask(), n.nvmlDeviceGetClockInfo(h, 1, ctypes.byref(v)), v.value)"
    )

    assert in_python(code, nvml_reasons="0x40", nvml_reasons_first=1, nvml_sm_clock=900) == "(0, 64) (0, 0) 0 900"
    assert in_python(code, nvml_old=1) == "(13, 0) (13, 0) 0 1755"
