"""Pairs of launches that are only told about: how many, of which points, in which order, and what ends them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from commbench.backends import about
from commbench.errors import LaunchError, ResultsError, StoppedError, UsageError
from commbench.job import Job
from commbench.jobs import pairs
from commbench.jobs.launch import Launch
from commbench.jobs.pairs import Pairs, Side
from commbench.jobs.runs import Desk
from commbench.measure.lines import end_line
from commbench.measure.liveness import Fault
from commbench.records import Record, Seconds
from commbench.results import Writer, load
from commbench.spec import Point, Sweep

SWEEP = Sweep(ops=("allreduce",), backend="emulated", ranks=2, max_bytes=16 << 10)  # 12 sizes
POINTS = SWEEP.points(2, about("emulated").capabilities)[0]


class Silent:
    """A view, and a watcher, that write down what the gate says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def run(self, header: Mapping[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def now(self, line: Mapping[str, Any]) -> None: ...
    def record(self, record: Record) -> None: ...
    def pair(self, number: int, last: int, what: str) -> None: ...
    def done(self, number: int, seconds: float) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)


@dataclass
class Machine:
    """Takes the place of ranks: writes down the jobs and answers with records of a known truth.

    Attributes:
        slowdown: of side b.
        noise: of each pair's ratio.
        changed: has the last word on a record; of a job and a record.
        faults: (side, pair) to how that launch ends.
        raises: (side, pair) to what its launch raises instead.
        begins: whether its launches get as far as their first line.
    """

    slowdown: float = 0.0
    noise: float = 0.0
    changed: Callable[[Job, Record], Record] = lambda _job, record: record
    faults: dict[tuple[str, int], Fault] = field(default_factory=dict)
    raises: dict[tuple[str, int], BaseException] = field(default_factory=dict)
    begins: bool = True
    jobs: list[Job] = field(default_factory=list)
    order: list[tuple[int, str]] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, job: Job, take: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
        self.jobs.append(job)
        at = job.side, job.pair or 0
        self.order.append((job.pair or 0, job.side))
        if self.begins or at not in self.raises:
            take(self._opened(job))
            factor = math.exp(self.noise * self.draw.gauss(0, 1)) * (1 + self.slowdown * (job.side == "b"))
            for point in job.only or POINTS:
                time = 1e-6 * factor * math.exp(0.001 * self.draw.gauss(0, 1))
                record = Record(
                    point=point, run=job.run, launch=job.launch, check="ok", samples=9, seconds=Seconds(median=time)
                )
                line = self.changed(job, record).to_json()
                seconds = line["seconds"]
                take(line | {"flags": [], "states": list(line["states"]), "seconds": seconds})
        if at in self.raises:
            raise self.raises[at]
        return end_line(job, self.faults.get(at))

    @staticmethod
    def _opened(job: Job) -> dict[str, Any]:
        facts = {"run": job.run, "launch": job.launch, "ranks": 2, "points": 12, "session": job.session}
        return {"kind": "run", "schema": 1, "pair": job.pair, "side": job.side, "visits": job.visits} | facts


@dataclass
class Bench:
    """A gate on a machine that is only told about."""

    folder: Path
    machine: Machine = field(default_factory=Machine)
    watcher: Silent = field(default_factory=Silent)
    writers: list[Writer] = field(default_factory=list)

    def gate(self, *, turns: bool = False, count: int = 5, sweep: Sweep = SWEEP) -> Pairs:
        self.writers = [Writer(self.folder / f"{name}.jsonl") for name in "ab"]
        sides = [Side(name, sweep, None, None, {"WHICH": name}, ("python",)) for name in "ab"]
        desks = [Desk(writer, Silent()) for writer in self.writers]
        return Pairs(sides, desks, ("commbench", "gate"), self.watcher, count, 12.0, turns)

    @property
    def measured(self) -> list[int | None]:
        """The pairs of the launches of side a."""
        return [job.pair for job in self.machine.jobs if job.side == "a"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    one = Bench(tmp_path)

    class Told:
        def __init__(self, job: Job, commands: Any) -> None:
            self.job, self.commands = job, commands

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, take: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
            return one.machine.run(self.job, take)

    def together(launches: Sequence[Launch], takes: Sequence[Any], first: int) -> dict[int, Any]:
        ends: dict[int, Any] = {}
        for side in (first, 1 - first):
            try:
                ends[side] = launches[side].run(takes[side])
            except LaunchError as error:
                ends[side] = error
        return ends

    monkeypatch.setattr(pairs, "Launch", Told)
    monkeypatch.setattr(pairs, "run_together", together)
    yield one
    for writer in one.writers:
        writer.close()


# -- how many ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [True, False])
def test_what_is_clear_after_the_first_pairs_is_settled_there(bench: Bench, turns: bool) -> None:
    settled = bench.gate(turns=turns).measure()

    assert bench.measured == [1, 2, 3, 4, 5]
    assert settled == {POINTS[0].curve}
    assert bench.watcher.said == []


def test_what_is_suspicious_gets_as_many_pairs_again(bench: Bench) -> None:
    bench.machine.slowdown = 0.08
    settled = bench.gate().measure()

    assert bench.measured == list(range(1, 11))
    assert settled == frozenset()
    assert bench.watcher.said == ["the first pairs leave doubt: 5 more pairs"]


def test_what_is_not_clear_gets_as_many_pairs_again(bench: Bench) -> None:
    bench.machine.noise = 0.1
    bench.gate().measure()

    assert len(bench.measured) == 10


def test_of_several_curves_only_the_undecided_ones_are_measured_again(bench: Bench) -> None:
    """With twice as many pairs, since they share the error rate."""
    sweep = Sweep(ops=("allreduce", "allgather"), backend="emulated", ranks=2, max_bytes=16 << 10)
    points = sweep.points(2, about("emulated").capabilities)[0]

    def slow_allgather(job: Job, record: Record) -> Record:
        factor = 1.1 if record.point.op == "allgather" and job.side == "b" else 1.0
        assert record.seconds is not None
        return Record(
            **asdict(record) | {"point": record.point, "seconds": Seconds(median=record.seconds.median * factor)}
        )

    bench.machine.changed = slow_allgather
    bench.machine.run, told = (lambda job, take: told(job if job.only else _all(job, points), take)), bench.machine.run
    settled = bench.gate(sweep=sweep).measure()

    assert bench.measured == list(range(1, 16))
    later = [job for job in bench.machine.jobs if (job.pair or 0) > 5]
    assert {point.op for job in later for point in job.only or ()} == {"allgather"}
    assert later[0].seconds == pytest.approx(6.0)  # half of the points
    assert {curve.op for curve in settled} == {"allreduce"}
    assert bench.watcher.said == ["1 of 2 curves are undecided: 10 more pairs"]


def _all(job: Job, points: Sequence[Point]) -> Job:
    return replace(job, only=tuple(points))


# -- what is started -----------------------------------------------------------------------------------------------


def test_both_sides_of_a_pair_are_one_run_of_one_session_with_their_own_environment(bench: Bench) -> None:
    bench.gate(turns=True).measure()

    assert {job.session for job in bench.machine.jobs} == {bench.machine.jobs[0].session}
    assert len({job.launch for job in bench.machine.jobs}) == 10
    for job in bench.machine.jobs:
        assert (job.run, job.environment, job.seconds) == (job.pair, {"WHICH": job.side}, 12.0)
        assert job.visits == pairs.VISITS
        assert job.command == ("commbench", "gate")


def test_without_turns_launches_stop_by_their_own_rule(bench: Bench) -> None:
    bench.gate(turns=False).measure()

    assert {job.visits for job in bench.machine.jobs} == {None}


def test_the_order_inside_of_a_pair_is_drawn_and_the_same_for_the_same_seed(bench: Bench, tmp_path: Path) -> None:
    bench.machine.slowdown = 0.08
    bench.gate(count=8).measure()
    first = [side for _, side in bench.machine.order[::2]]

    assert {"a", "b"} == set(first)
    again = Bench(tmp_path / "again", bench.machine)
    bench.machine.order = []
    again.gate(count=8).measure()
    assert [side for _, side in bench.machine.order[::2]] == first
    for writer in again.writers:
        writer.close()


# -- states of the cores -------------------------------------------------------------------------------------------


def test_cells_in_different_states_are_measured_again_twice_and_then_left(bench: Bench) -> None:
    def moved(job: Job, record: Record) -> Record:
        name = "far" if record.point.bytes == 8 and job.side == "b" else "near"
        states = ({"seconds": 1e-7, "state": name, "after": name, "median": 1e-6, "samples": 9},)
        return Record(**asdict(record) | {"point": record.point, "seconds": record.seconds, "states": states})

    bench.machine.changed = moved
    bench.gate().measure()
    again = [job for job in bench.machine.jobs if job.launches > 1 and job.side == "a"]

    assert [(job.pair, job.launches) for job in again] == [(k, 2) for k in range(1, 6)] + [(k, 3) for k in range(1, 6)]
    assert {job.only for job in again} == {(POINTS[0],)}
    assert {job.run for job in again} == {1, 2, 3, 4, 5}


# -- what ends it --------------------------------------------------------------------------------------------------


def test_a_wrong_answer_ends_the_gate_after_its_pair(bench: Bench) -> None:
    def wrong(job: Job, record: Record) -> Record:
        changes = {"point": record.point, "seconds": record.seconds}
        if job.side == "b" and record.point.bytes == 64:
            changes |= {"check": "wrong", "status": "failed", "reason": "element 3"}
        return Record(**asdict(record) | changes)

    bench.machine.changed = wrong
    bench.gate().measure()

    assert bench.measured == [1]


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_launch_that_dies_ends_the_gate_after_its_pair(bench: Bench, side: str) -> None:
    bench.machine.faults = {(side, 2): Fault("died", "rank 1 died")}
    bench.gate().measure()

    assert bench.measured == [1, 2]
    assert load(bench.folder / f"{side}.jsonl").ends[-1]["reason"] == "rank 1 died"


def test_a_launch_that_ended_without_a_word_is_closed_in_its_file(bench: Bench) -> None:
    bench.machine.raises = {("b", 1): LaunchError("the ranks ended (exit status -9)")}
    bench.gate().measure()

    [end] = load(bench.folder / "b.jsonl").ends
    assert (end["status"], end["fault"], end["reason"]) == ("failed", "failed", "the ranks ended (exit status -9)")


def test_a_side_that_cannot_even_start_is_no_verdict(bench: Bench) -> None:
    bench.machine.begins = False
    bench.machine.raises = {("b", 1): LaunchError("mpiexec: cannot be started", "see `commbench doctor`")}

    with pytest.raises(LaunchError, match="side b could not be measured: mpiexec: cannot be started") as caught:
        bench.gate().measure()
    assert caught.value.hint == "see `commbench doctor`"


def test_what_ranks_call_a_wrong_question_is_one(bench: Bench) -> None:
    bench.machine.faults = {("a", 1): Fault("failed", "--root 7: there are only 2 ranks", 2)}

    with pytest.raises(UsageError, match="side a: --root 7"):
        bench.gate().measure()


@pytest.mark.parametrize("turns", [False, True])
def test_ctrl_c_closes_what_is_open_in_both_files(bench: Bench, turns: bool) -> None:
    bench.machine.raises = {("b", 1): KeyboardInterrupt()}

    with pytest.raises(StoppedError, match="stopped by Ctrl-C"):
        bench.gate(turns=turns).measure()
    [end] = load(bench.folder / "b.jsonl").ends
    assert (end["status"], end["exit_code"]) == ("interrupted", 130)


def test_a_launch_that_was_stopped_stops_the_gate(bench: Bench) -> None:
    bench.machine.faults = {("a", 1): Fault("stopped", "stopped by SIGTERM", 1)}

    with pytest.raises(StoppedError) as caught:
        bench.gate().measure()
    assert caught.value.stop_code == 1


def test_a_full_disk_ends_the_gate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = bench.gate()

    def full(_line: Mapping[str, Any]) -> None:
        raise ResultsError("a.jsonl: cannot be written: No space left on device")

    monkeypatch.setattr(bench.writers[0], "write", full)
    with pytest.raises(ResultsError, match="No space left"):
        gate.measure()
