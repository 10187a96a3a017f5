"""The compiled loop calls what it was told, in order, with the right arguments.

The C functions are Python functions behind C pointers that write down what they are called with.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commbench.backends import kernels
from commbench.backends.base import host_loop
from commbench.backends.kernels import ARGUMENTS, CompiledLoop, Program, Strided, address_of
from commbench.errors import MeasurementError

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * ARGUMENTS)


@pytest.fixture(scope="module")
def loop() -> CompiledLoop:
    compiled, why_not = kernels.load()
    if compiled is None:
        pytest.skip(why_not)
    return compiled


class Diary:
    """C functions by name that write down name and first arguments of each call."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._keep: list[Any] = []

    def function(self, name: str, shown: int = 1, answer: Callable[[], int] = lambda: 0) -> int:
        """The address of a new function."""

        def called(*arguments: int) -> int:
            self.said.append((name, *arguments[:shown]))
            return answer()

        pointer = C_FUNCTION(called)
        self._keep.append(pointer)
        address = ctypes.cast(pointer, ctypes.c_void_p).value
        assert address is not None
        return address


@pytest.fixture
def diary() -> Diary:
    return Diary()


# -- programs ----------------------------------------------------------------------------------------------------


def test_a_program_is_addresses_and_rows_of_twelve_arguments() -> None:
    program = Program.of([(11, [1, 2]), (22, [3])], [(33, [4, 5, 6])])

    assert program.functions.tolist() == [11, 22]
    assert program.arguments.tolist() == [[[1, 2, *[0] * 10], [3, *[0] * 11]]]
    assert program.tail_functions.tolist() == [33]
    assert program.tail_arguments.tolist() == [[4, 5, 6, *[0] * 9]]
    assert program.arguments.dtype == np.int64


def test_a_strided_argument_moves_from_row_to_row_and_comes_back() -> None:
    program = Program.of([(11, [Strided(100, 10, 3), Strided(0, 7, 2), Strided(5, 1), 9])], rows=6)

    assert program.arguments[:, 0, :4].tolist() == [
        [100, 0, 5, 9],
        [110, 7, 6, 9],
        [120, 0, 7, 9],
        [100, 7, 8, 9],
        [110, 0, 9, 9],
        [120, 7, 10, 9],
    ]


def test_a_program_keeps_alive_what_its_arguments_point_into() -> None:
    array = np.zeros(3)

    assert Program.of([(1, [array.ctypes.data])], keep=[array]).keep[0] is array


def test_an_empty_program_can_be_run(loop: CompiledLoop) -> None:
    out = np.full(5, -1.0)

    assert loop.run(Program.of([]), out, 2, 1, 1.0, None, 0) == 0
    assert (out >= 0).all()


# -- the loop ----------------------------------------------------------------------------------------------------


def test_all_twelve_arguments_arrive_also_negative_and_large_ones(loop: CompiledLoop, diary: Diary) -> None:
    values = [1, -2, 3 << 40, -(1 << 63), (1 << 63) - 1, 6, 7, 8, 9, 10, 11, 12]
    loop.run(Program.of([(diary.function("f", 12), values)]), np.empty(1), 0, 1, 1.0, None, 0)

    assert diary.said == [("f", *values)]


def test_ranks_are_aligned_twice_before_each_batch_and_lead_in_comes_first(loop: CompiledLoop, diary: Diary) -> None:
    program = Program.of([(diary.function("a"), [1]), (diary.function("b"), [2])], [(diary.function("tail"), [3])])
    loop.run(program, np.empty(1), 1, 2, 1.0, (diary.function("align"), [4]), 0)

    batch = [("align", 4), ("align", 4), ("a", 1), ("b", 2), ("a", 1), ("b", 2), ("tail", 3)]
    assert diary.said == batch + batch


def test_each_call_takes_the_next_row_and_the_next_run_goes_on_from_there(loop: CompiledLoop, diary: Diary) -> None:
    program = Program.of([(diary.function("f"), [Strided(100, 10)])], rows=3)

    position = loop.run(program, np.empty(2), 1, 2, 1.0, None, 2)
    assert [row for _, row in diary.said] == [120, 100, 110, 120, 100, 110]
    assert position == (2 + 6) % 3

    diary.said.clear()
    loop.run(program, np.empty(1), 0, 1, 1.0, None, position)
    assert diary.said == [("f", 120)]


def test_the_plain_loop_calls_the_same_in_the_same_order(loop: CompiledLoop, diary: Diary) -> None:
    """Depth, rotation, lead-in, alignment and tail: one diary for both."""
    program = Program.of([(diary.function("f"), [Strided(0, 1)])], [(diary.function("tail"), [9])], rows=4)
    loop.run(program, np.empty(3), 2, 3, 1.0, (diary.function("align"), [7]), 1)
    compiled, diary.said = diary.said, []

    host_loop(
        np.empty(3), 2, 3, 1.0,
        lambda: diary.said.append(("align", 7)),
        lambda position: diary.said.append(("f", position % 4)),
        lambda: diary.said.append(("tail", 9)),
        1,
    )  # fmt: skip
    assert compiled == diary.said


def test_every_duration_is_written_and_scaled(loop: CompiledLoop, diary: Diary) -> None:
    program = Program.of([(diary.function("f"), [])])
    out, nothing = np.full(20, -1.0), np.full(20, -1.0)
    loop.run(program, out, 0, 1, 1.0, None, 0)
    loop.run(program, nothing, 0, 1, 0.0, None, 0)

    assert (out > 0).all()
    assert not nothing.any()


@pytest.mark.parametrize("where", ["body", "align", "tail"])
def test_an_error_code_ends_the_loop(loop: CompiledLoop, diary: Diary, where: str) -> None:
    codes = iter([0, 0, 0, 0, 13])

    def function(name: str) -> int:
        return diary.function(name, answer=lambda: next(codes, 0) if name == where else 0)

    program = Program.of([(function("body"), [])], [(function("tail"), [])])
    with pytest.raises(MeasurementError, match="the collective returned error code 13"):
        loop.run(program, np.empty(100), 0, 1, 1.0, (function("align"), []), 0)
    assert len(diary.said) < 50


def test_functions_of_the_c_library_are_called_by_address(loop: CompiledLoop) -> None:
    """Only the lower 32 bits of what comes back are looked at: C's int. Of equal memory memcmp says 0."""
    libc = ctypes.CDLL(None)
    source, target = np.arange(16, dtype=np.uint8), np.arange(16, dtype=np.uint8)
    compare = address_of(libc, "memcmp"), [source.ctypes.data, target.ctypes.data, 16]
    loop.run(Program.of([compare]), np.empty(3), 0, 1, 1.0, None, 0)

    with pytest.raises(MeasurementError, match="error code 5"):
        loop.run(Program.of([(address_of(libc, "abs"), [-5])]), np.empty(1), 0, 1, 1.0, None, 0)


def test_a_function_that_the_library_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        address_of(ctypes.CDLL(None), "no_such_function_in_any_library")


def test_other_threads_run_while_the_loop_does(loop: CompiledLoop) -> None:
    """The watchdog must. The loop asks a thread and waits in C: a thread that cannot run cannot answer."""
    libc = ctypes.CDLL(None)
    asked, answered = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    for semaphore in (asked, answered):
        libc.sem_init(semaphore, 0, 0)

    def answer() -> None:
        libc.sem_wait(asked)
        libc.sem_post(answered)

    other = threading.Thread(target=answer)
    other.start()
    limit = np.array([time.time() + 20, 0], dtype=np.int64)
    ask = address_of(libc, "sem_post"), [ctypes.addressof(asked)]
    wait = address_of(libc, "sem_timedwait"), [ctypes.addressof(answered), limit.ctypes.data]
    loop.run(Program.of([ask, wait]), np.empty(1), 0, 1, 1.0, None, 0)  # raises when nobody answered
    other.join()


def test_the_clock_is_calibrated_through_the_loop(loop: CompiledLoop) -> None:
    calibration = loop.calibrate(1e-6)

    assert (calibration.clock, calibration.call_overhead) == ("CLOCK_MONOTONIC", 1e-6)
    assert calibration.step >= 1e-9
    assert calibration.overhead > 0


# -- the hand-over -----------------------------------------------------------------------------------------------


def test_two_sides_take_turns_on_one_cache_line(loop: CompiledLoop) -> None:
    """Twenty blocks of one round are 40 turns."""
    line, found = np.zeros(8, dtype=np.int64), [0.0, 0.0]

    def side(k: int) -> None:
        found[k] = loop.handover(line.ctypes.data, k, 0, 1, 1 << 40)

    other = threading.Thread(target=side, args=(1,))
    other.start()
    side(0)
    other.join()

    assert line[0] == 40
    assert min(found) > 0


def test_a_side_whose_other_does_not_answer_gives_up(loop: CompiledLoop) -> None:
    line = np.zeros(8, dtype=np.int64)

    assert loop.handover(line.ctypes.data, 0, 0, 1, 10) == -1
    assert loop.handover(line.ctypes.data, 1, 100, 1, 10) == -1


# -- where it cannot be ------------------------------------------------------------------------------------------


def test_where_arguments_are_passed_otherwise_there_is_no_compiled_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(kernels.sys, "platform", "darwin")

    assert kernels.load() == (None, "no compiled loop on darwin arm64")


def test_without_numba_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> CompiledLoop:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr(kernels, "CompiledLoop", missing)

    assert kernels.load() == (None, "numba cannot be imported: No module named 'numba'")


def test_the_cache_of_compiled_code_is_a_folder_that_nobody_else_may_write(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    kernels._choose_cache()
    [folder] = (tmp_path / "home").iterdir()
    assert kernels.os.environ["NUMBA_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700

    folder.chmod(0o777)
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    kernels._choose_cache()
    assert kernels.os.environ["NUMBA_CACHE_DIR"].startswith(str(tmp_path / "tmp"))


def test_a_cache_that_the_user_chose_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/mine")
    kernels._choose_cache()

    assert kernels.os.environ["NUMBA_CACHE_DIR"] == "/mine"


# -- into a stream -----------------------------------------------------------------------------------------------


class Stream:
    """C functions that write down what they are called with, in the place of a driver and a library."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int, int]] = []
        self.fails = ""
        self._kept: list[Any] = []

    def function(self, name: str) -> int:
        """The address of one."""

        def call(*arguments: int) -> int:
            self.said.append((name, arguments[0], arguments[1]))
            return 3 if name == self.fails else 0

        self._kept.append(ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 12)(call))
        address = ctypes.cast(self._kept[-1], ctypes.c_void_p).value
        assert address is not None
        return address

    def queue(self, *, align: bool = True) -> kernels.Queue:
        events = np.array([[100 + i for i in range(40)], [200 + i for i in range(40)]], dtype=np.int64)
        step = (self.function("align"), (1, 2)) if align else None
        return kernels.Queue(events, 7, self.function("record"), self.function("wait"), step)


def loops() -> list[Any]:
    found = [pytest.param(kernels.enqueue, id="plain")]
    compiled, _ = kernels.load()
    return found + ([pytest.param(compiled.enqueue, id="compiled")] if compiled else [])


@pytest.mark.parametrize("enqueue", loops())
def test_each_sample_lies_between_two_events_after_the_ranks_met(enqueue: Any) -> None:
    stream, host = Stream(), np.zeros(2)
    body = [(stream.function("op"), (kernels.Strided(50, 10), 0))]
    program = kernels.Program.of(body, [(stream.function("tail"), (9, 0))], rows=3)
    done = enqueue(program, host, 1, 2, stream.queue(), 2)

    assert stream.said == [
        ("align", 1, 2), ("op", 70, 0), ("op", 50, 0), ("tail", 9, 0),  # the lead-in, not recorded
        ("align", 1, 2), ("record", 100, 7), ("op", 60, 0), ("op", 70, 0), ("tail", 9, 0), ("record", 200, 7),
        ("align", 1, 2), ("record", 101, 7), ("op", 50, 0), ("op", 60, 0), ("tail", 9, 0), ("record", 201, 7),
    ]  # fmt: skip
    assert (done.failed, done.driver, done.position) == (0, 0, 2)
    assert (host > 0).all()


@pytest.mark.parametrize("enqueue", loops())
def test_the_host_stays_sixteen_samples_ahead(enqueue: Any) -> None:
    stream = Stream()
    program = kernels.Program.of([(stream.function("op"), (1,))])
    enqueue(program, np.zeros(18), 0, 1, stream.queue(align=False), 0)
    assert [said for said in stream.said if said[0] == "wait"] == [("wait", 200, 0), ("wait", 201, 0)]
    assert not [said for said in stream.said if said[0] == "align"]


@pytest.mark.parametrize("enqueue", loops())
@pytest.mark.parametrize(("fails", "failed", "driver"), [("op", 3, 0), ("align", 3, 0), ("record", 0, 3)])
def test_a_call_that_fails_ends_the_chunk_and_is_told_from_the_driver(
    enqueue: Any, fails: str, failed: int, driver: int
) -> None:
    stream = Stream()
    stream.fails = fails
    program = kernels.Program.of([(stream.function("op"), (1,))])
    done = enqueue(program, np.zeros(5), 0, 1, stream.queue(), 0)
    assert (done.failed, done.driver) == (failed, driver)
    assert sum(said[0] == "op" for said in stream.said) == 1


@pytest.mark.parametrize("folder", ["new/folder", "file/folder"])
def test_a_cache_folder_that_is_not_there_or_cannot_be_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / folder))
    with kernels._one_compiles():
        assert (tmp_path / "new/folder").is_dir() == folder.startswith("new")
