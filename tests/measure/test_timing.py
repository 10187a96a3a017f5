"""The time loop on one rank with a call whose every second is accounted for, and who was last among several."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from commbench.backends.base import Calibration, HostBackend, Mismatch, World
from commbench.measure.control import SocketControl
from commbench.measure.liveness import Doing, Slot
from commbench.measure.timing import Timed, TimeLoop, chunk_size, depth_for, label
from commbench.spec import Point, Sweep
from commbench.stats import Samples


class Machine(HostBackend):
    """A back end and its call at once: every call takes `lap` seconds of its clock, and is written down."""

    how: Mapping[str, Any] = {}

    def __init__(self, lap: float) -> None:
        self.lap = lap
        self.clock = 0.0
        self.said: list[tuple[Any, ...]] = []
        self.collecting = True
        self.slot = Slot(Doing("starting"))
        self.doing: list[Doing] = []

    def now(self) -> float:
        return self.clock

    def settle(self) -> None:
        self.said.append(("settle",))

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:
        self._time("sync", batch, out, lead)

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        self._time("pipe", depth, out, lead)

    def _time(self, mode: str, depth: int, out: Samples, lead: int) -> None:
        self.said.append((mode, depth, len(out), lead))
        self.collecting = gc.isenabled()
        self.doing.append(self.slot.doing)
        out[:] = self.lap
        self.clock += self.lap * depth * (len(out) + lead)

    # What the time loop never asks of them:
    def graph(self, depth: int, out: Samples, lead: int) -> None: ...
    def refill(self) -> None: ...
    def once(self) -> None: ...
    def check(self) -> Mismatch | None: ...
    def reserve(self, points: Any) -> None: ...
    def libraries(self) -> dict[str, str]: ...
    def calibrate(self) -> Calibration: ...
    def prepare(self, point: Any) -> Any: ...
    def close(self) -> None: ...

    def chunks(self) -> list[tuple[int, int]]:
        """(samples, lead-in) of what was timed, warm-up with its lead-in of 0 included."""
        return [(said[2], said[3]) for said in self.said if said[0] != "settle"]


Visitor = Callable[..., tuple[Machine, Timed]]


@pytest.fixture
def visit(point: Any) -> Visitor:
    """A function: visits a point whose calls take `lap` seconds, `visits` times for `seconds` each."""

    def go(lap: float, seconds: float = 0.3, visits: int = 1, mode: str = "sync", **options: Any) -> Any:
        machine = Machine(lap)
        sweep = Sweep(ops=("allreduce",), backend="emulated", **options)
        alone = SocketControl(World(0, 1, 0, 1, "alone"), 1, "")
        loop = TimeLoop(sweep, machine, alone, machine.slot, Calibration("virtual", 1e-9, 0.0))
        timed = Timed(point(64 << 10, mode=mode), machine)
        for _ in range(visits):
            loop.visit(timed, seconds)
        return machine, timed

    return go


# -- sizes of chunks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lap", "size"),
    [
        (1e-6, 256),  # a millisecond would be 1000: too many for one look
        (1e-5, 100),
        (3e-5, 34),  # 33.3 are not yet a millisecond
        (1e-4, 20),
        (1.0, 20),
        (0.0, 256),
    ],
)
def test_a_chunk_is_a_millisecond_of_20_to_256_samples(lap: float, size: int) -> None:
    assert chunk_size(lap, 1e9, first=True) == chunk_size(lap, 1e9, first=False) == size


@pytest.mark.parametrize(
    ("lap", "left", "first", "size"),
    [
        (0.1, 0.25, True, 2),  # what fits
        (0.1, 0.05, True, 1),  # one at least, however long
        (0.1, -1.0, True, 1),
        (0.1, 0.25, False, 2),
        (0.1, 0.05, False, 0),
        (0.1, -1.0, False, 0),
        (1e-5, 0.905e-3, False, 0),  # 90 of the 100: short samples are not worth a smaller chunk
        (1e-5, 0.905e-3, True, 90),
    ],
)
def test_the_end_of_a_visit_takes_what_fits(lap: float, left: float, first: bool, size: int) -> None:
    assert chunk_size(lap, left, first=first) == size


@pytest.mark.parametrize(
    ("lap", "depth"), [(1e-6, 64), (1e-5, 64), (5e-5, 20), (3e-4, 4), (1e-3, 1), (1.0, 1), (0.0, 64)]
)
def test_a_batch_is_a_millisecond_of_1_to_64_calls(lap: float, depth: int) -> None:
    assert depth_for(1e-3, lap) == depth


# -- warming up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lap", "calls"),
    [
        (1e-4, 50),  # five milliseconds
        (2e-3, 10),  # ten calls
        (0.1, 1),  # ten of these would eat the visit of 0.3 s: half of it holds one
    ],
)
def test_a_point_is_warmed_up_for_ten_calls_and_five_milliseconds_if_they_fit(
    lap: float, calls: int, visit: Visitor
) -> None:
    machine, _ = visit(lap)

    assert sum(size for size, lead in machine.chunks() if lead == 0) == calls


@pytest.mark.parametrize("asked", [0, 7, 600])
def test_the_user_may_say_how_many_calls_warm_up(asked: int, visit: Visitor) -> None:
    machine, _ = visit(1e-5, warmup_iters=asked)

    assert sum(size for size, lead in machine.chunks() if lead == 0) == asked


def test_a_later_visit_begins_with_three_calls(visit: Visitor) -> None:
    machine, timed = visit(1e-4, visits=2)

    second = machine.said.index(("settle",), 1)
    assert machine.said[second + 1] == ("sync", 1, 3, 0)
    assert timed.visits == 2


def test_what_warms_up_is_not_counted(visit: Visitor) -> None:
    machine, timed = visit(1e-4)

    assert timed.trace.count == sum(size for size, lead in machine.chunks() if lead)
    assert sum(timed.histogram.counts.values()) == timed.trace.count


# -- a visit -----------------------------------------------------------------------------------------------------


def test_every_chunk_has_its_lead_in(visit: Visitor) -> None:
    """Three calls, one before calls of 10 ms and more."""
    short, _ = visit(1e-4)
    long, _ = visit(0.02)

    assert {lead for _, lead in short.chunks() if lead} == {3}
    assert {lead for _, lead in long.chunks() if lead} == {1}


@pytest.mark.parametrize("lap", [1e-6, 1e-4, 3e-3, 0.04])
def test_a_visit_lasts_as_long_as_it_was_given(lap: float, visit: Visitor) -> None:
    """And at most one chunk with its lead-in longer: the next is not begun if it does not fit."""
    _, timed = visit(lap)

    chunk = max(20, min(256, 1e-3 / lap)) + 3
    assert 0.3 - chunk * lap <= timed.measured <= 0.3 + 3 * lap
    assert lap * 0.99 <= timed.lap <= 1.6 * lap  # an estimate, with the lead-in of the last chunk


def test_a_call_longer_than_the_visit_is_still_taken_once(visit: Visitor) -> None:
    _, timed = visit(2.0)

    assert timed.trace.values.tolist() == [2.0]


@pytest.mark.parametrize("asked", [1, 19, 256, 1000])
def test_n_samples_are_exactly_n_in_one_visit(asked: int, visit: Visitor) -> None:
    for lap in (1e-6, 1.0):
        _, timed = visit(lap, iters=asked, warmup_iters=0)
        assert timed.trace.count == asked


def test_in_pipe_mode_samples_are_batches_of_one_depth(visit: Visitor) -> None:
    """Calls of 50 us: 20 make a millisecond. The depth is chosen once, from single calls."""
    machine, timed = visit(5e-5, visits=2, mode="pipe")

    assert timed.depth == 20
    assert {said[:2] for said in machine.said if said[-1:] == (3,)} == {("pipe", 20)}
    assert timed.lap == pytest.approx(1e-3, rel=0.2)
    assert timed.trace.minimum == timed.trace.maximum == 5e-5  # seconds per call, not per batch


def test_the_first_chunk_of_batches_is_sized_by_what_a_batch_takes(visit: Visitor) -> None:
    """64 calls of 2 us are 128 us, so 20 of them; by the single call it would be 256 batches, 33 ms."""
    machine, _ = visit(2e-6, mode="pipe")
    first = next(said for said in machine.said if said[-1:] == (3,))

    assert first == ("pipe", 64, 20, 3)


def test_buffers_are_settled_before_each_visit(visit: Visitor) -> None:
    machine, _ = visit(1e-3, visits=3)

    assert machine.said.count(("settle",)) == 3
    assert machine.said[0] == ("settle",)


def test_no_garbage_is_collected_while_something_is_timed(visit: Visitor) -> None:
    machine, _ = visit(1e-3)
    assert not machine.collecting
    assert gc.isenabled()

    gc.disable()
    try:
        visit(1e-3)
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()


def test_the_watchdog_is_told_before_each_chunk_how_long_it_may_take(visit: Visitor) -> None:
    """The time-out, or twenty times what the chunk should take: 20 samples of 4 s are 80 s."""
    short, _ = visit(1e-3, timeout=60.0)
    assert {(d.phase, d.what, d.allowance) for d in short.doing} == {("timing", "allreduce 64K", 60.0)}
    assert short.slot.doing.phase == "waiting for the others after"

    long, _ = visit(4.0, seconds=1000.0, timeout=60.0)
    assert long.doing[-1].allowance == pytest.approx(20 * 4.0 * long.chunks()[-1][0], rel=0.1)


@pytest.mark.parametrize(
    ("size", "mode", "words"), [(64 << 10, "sync", "allreduce 64K"), (8, "pipe", "allreduce 8 (pipe)")]
)
def test_a_point_is_called_by_operation_and_size(size: int, mode: str, words: str, point: Any) -> None:
    assert label(point(size, mode=mode)) == words


def test_a_copy_is_called_by_its_way_too(point: Any) -> None:
    copy = {"op": "p2p", "redop": None, "ranks": 2, "backend": "copies", "device": "cuda", "mode": "pipe"}

    assert label(point(64, path="pinned", variant="pair=host,0", **copy)) == "p2p pinned host,0 64 (pipe)"


# -- who was last ------------------------------------------------------------------------------------------------


class Meeting:
    """Maximum over threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.values: list[Samples] = [np.empty(0)] * size

    def of(self, rank: int) -> Any:
        class Control:
            world = World(rank, len(self.values), rank, len(self.values), "parent")

            def maximum(_, values: Samples) -> Samples:  # noqa: N805 - `self` is the meeting's
                self.values[rank] = values
                self.barrier.wait()
                found: Samples = np.max(self.values, axis=0)
                self.barrier.wait()
                return found

        return Control()


def test_a_rank_was_last_where_it_alone_was_within_a_clock_step_of_the_slowest(point: Callable[..., Point]) -> None:
    durations = [
        # rank 2 alone; 0 and 1 tie within the step; 0 alone; all the same
        np.array([1.0, 5.00, 9.0, 2.0]),
        np.array([2.0, 5.05, 3.0, 2.0]),
        np.array([4.0, 1.00, 3.0, 2.0]),
    ]
    slowest = np.max(durations, axis=0)
    meeting, found = Meeting(3), [-1, -1, -1]

    def be(rank: int) -> None:
        machine = Machine(1.0)
        sweep = Sweep(ops=("allreduce",), backend="emulated")
        loop = TimeLoop(sweep, machine, meeting.of(rank), machine.slot, Calibration("virtual", 0.1, 0.0))
        call = Timed(point(), machine, depth=1)
        found[rank] = loop._times_last(call, durations[rank], slowest)

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 0, 1]


def test_the_samples_of_the_last_visit_are_kept_apart(visit: Visitor) -> None:
    _, once = visit(1e-4, 0.1)
    _, thrice = visit(1e-4, 0.1, visits=3)

    assert once.visit.count == once.trace.count
    assert thrice.visit.count < thrice.trace.count
