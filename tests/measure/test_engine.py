"""One rank's walk over an emulated sweep: the lines it emits, why points stop, and what fails them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commbench.backends import open_backend
from commbench.backends.base import World
from commbench.errors import MeasurementError, UsageError
from commbench.job import Job
from commbench.measure import engine, machine
from commbench.measure.__main__ import LINE_MARK
from commbench.measure.control import SocketControl
from commbench.measure.engine import Closing, Engine, even_share, visit_seconds
from commbench.measure.lines import differences, end_line
from commbench.measure.liveness import Doing, Fault, Slot
from commbench.records import Record
from commbench.results import dump_line
from commbench.spec import Sweep

ROOT = Path(__file__).parent.parent.parent
ALONE = World(0, 1, 0, 1, "alone")

Lines = list[dict[str, Any]]


def sweep_of(**changes: Any) -> Sweep:
    """Three sizes, in calls of a millisecond: a visit is some hundred of them."""
    usual: dict[str, Any] = {"ops": ("allreduce",), "backend": "emulated", "ranks": 1, "max_bytes": 32, "budget": 2.0}
    return Sweep(**usual | {"emulate": "alpha=1ms"} | changes)


def job_of(sweep: Sweep, **changes: Any) -> Job:
    usual: dict[str, Any] = {"run": 1, "seconds": 100.0, "session": "s", "launch": "l", "command": ("commbench",)}
    return Job(sweep=sweep, **usual | changes)


def build(job: Job, lines: Lines) -> Engine:
    def emit(line: Any) -> None:
        lines.append(json.loads(dump_line(line)))

    control = SocketControl(ALONE, 1, "")
    backend = open_backend(job.sweep, ALONE, control, job.run, 0)
    return Engine(job, backend, control, Slot(Doing("starting")), Closing(job, emit))


def walk(sweep: Sweep, **changes: Any) -> tuple[Lines, int]:
    """The lines of a launch of one rank, and its exit code."""
    lines: Lines = []
    return lines, build(job_of(sweep, **changes), lines).lead()


def finished(lines: Lines) -> list[Record]:
    records = [Record.from_json(line) for line in lines if line["kind"] == "record"]
    return [record for record in records if not record.partial]


def visited(lines: Lines) -> list[int]:
    """Sizes in the order of visits: each visit ends with a record, partial or not."""
    return [line["bytes"] for line in lines if line["kind"] == "record"]


# -- a launch from its first line to its last --------------------------------------------------------------------


def test_a_launch_is_a_run_its_records_with_traces_and_an_end() -> None:
    lines, code = walk(sweep_of())

    assert code == 0
    assert (lines[0]["kind"], lines[-1]["kind"]) == ("run", "end")
    for before, line in pairwise(lines):
        if line["kind"] == "trace":
            assert (before["kind"], before["bytes"], before["flags"]) == ("record", line["bytes"], [])
    kinds = [line["kind"] for line in lines]
    assert {kind: kinds.count(kind) for kind in ("run", "trace", "end")} == {"run": 1, "trace": 3, "end": 1}
    assert {line["launch"] for line in lines if "launch" in line} == {"l"}


def test_the_first_line_says_who_where_and_with_what() -> None:
    header = walk(sweep_of(emulate="alpha=2us"))[0][0]

    assert header["schema"] == 1
    assert (header["run"], header["session"], header["launches"]) == (1, "s", 1)
    assert (header["ranks"], header["points"], header["backend"]) == (1, 3, "emulated")
    assert header["libraries"] == {"emulated": "alpha=2us"}
    assert header["key"]["ranks_per_node"] == [1]
    assert len(header["placement"]) == len(header["nodes"]) == 1
    assert header["calibration"]["clock"] == "virtual"
    assert header["sweep"]["emulate"] == "alpha=2us"


def test_the_last_line_says_how_it_ended() -> None:
    end = walk(sweep_of())[0][-1]

    assert {name: end[name] for name in ("run", "status", "fault", "reason", "exit_code")} == {
        "run": 1, "status": "complete", "fault": "", "reason": "", "exit_code": 0,
    }  # fmt: skip


def test_notes_on_sizes_are_told_after_the_first_line() -> None:
    lines, _ = walk(sweep_of(min_bytes=1))

    assert [line["kind"] for line in lines[:4]] == ["run", "note", "note", "record"]
    assert lines[1]["text"] == "allreduce: the smallest size was raised to 4 bytes, one float32 a rank"


def test_the_records_hold_the_emulated_truth() -> None:
    """Without noise: alpha + D/B to the last digit, an interval of half a clock step (1 ns) to each side."""
    lines, _ = walk(sweep_of(emulate="alpha=2us,bandwidth=1GB/s", max_bytes=8192, factor=1024))

    assert [record.point.bytes for record in finished(lines)] == [8, 8192]
    for record in finished(lines):
        truth = 2e-6 + record.point.bytes / 1e9
        assert record.seconds is not None
        assert record.seconds.median == record.seconds.p5 == record.seconds.max == pytest.approx(truth)
        assert record.seconds.low == pytest.approx(truth - 0.5e-9)
        assert record.seconds.high == pytest.approx(truth + 0.5e-9)
        assert (record.status, record.check, record.flags, record.slowest) == ("ok", "ok", (), None)
        assert sum(record.histogram["counts"]) == record.samples if record.histogram else False


def test_a_noisy_median_is_the_truth_within_its_noise() -> None:
    """Its logarithm is off by 1.2533·sigma/√n, n at least the 2048 that a trace keeps; four of those are allowed."""
    [record] = finished(walk(sweep_of(emulate="alpha=5us,noise=10%", max_bytes=8))[0])

    assert record.seconds is not None
    assert record.samples > 2048
    assert abs(math.log(record.seconds.median / 5.0008e-6)) < 4 * 1.2533 * 0.1 / math.sqrt(2048)


def process(sweep: Sweep) -> tuple[Lines, int]:
    """The marked lines of `python -m commbench.measure JOB`, as the parent starts it, and its exit code."""
    command = [sys.executable, "-m", "commbench.measure", job_of(sweep).encode()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    # Not splitlines(): the mark is a line's end to it.
    marked = [line.removeprefix(LINE_MARK) for line in done.stdout.split("\n") if line.startswith(LINE_MARK)]
    lines = [json.loads(line) for line in marked]
    return [line for line in lines if line["kind"] != "now"], done.returncode


def test_a_real_process_of_one_rank_tells_the_same() -> None:
    sweep = sweep_of(emulate="alpha=2us,bandwidth=1GB/s")
    lines, code = process(sweep)

    assert (lines[0]["kind"], lines[-1]["kind"], code) == ("run", "end", 0)
    assert finished(lines) == finished(walk(sweep)[0])


def test_a_real_process_that_cannot_measure_ends_with_its_reason() -> None:
    [end], code = process(sweep_of(emulate="alpha=nonsense"))

    assert code == end["exit_code"] == 2
    assert (end["kind"], end["status"], end["fault"]) == ("end", "failed", "failed")
    assert end["reason"].startswith("--emulate alpha: 'nonsense' is not a duration")


# -- the order and the time of visits ----------------------------------------------------------------------------


def test_the_first_run_goes_up_in_sizes_and_later_ones_in_a_seeded_order() -> None:
    sizes = [8 << k for k in range(10)]

    def order(run: int, seed: int = 1) -> list[int]:
        return visited(walk(sweep_of(max_bytes=sizes[-1], iters=1, seed=seed), run=run)[0])

    assert order(1) == sizes
    assert order(2) != sizes
    assert sorted(order(2)) == sizes
    assert order(2) == order(2)
    assert order(2) != order(3)
    assert order(2) != order(2, seed=2)


def test_every_point_is_visited_three_times_in_passes() -> None:
    lines, _ = walk(sweep_of())

    assert visited(lines)[:9] == [8, 16, 32] * 3
    assert {record.how["visits"] for record in finished(lines)} == {3}


def test_a_later_run_keeps_its_order_from_pass_to_pass() -> None:
    sizes = visited(walk(sweep_of(max_bytes=256), run=2)[0])

    assert sizes[:6] == sizes[6:12] != sorted(sizes[:6])


def test_a_point_has_a_number_after_its_first_visit() -> None:
    lines, _ = walk(sweep_of())
    first = Record.from_json(lines[1])

    assert first.partial
    assert first.seconds is not None
    assert first.stop == ""
    assert first.histogram is None


@pytest.mark.parametrize(
    ("left", "points", "number", "budget", "seconds"),
    [
        # Three passes over 10 points are 30 visits of what is left; the budget caps a visit at a third of it.
        (6.0, 10, 1, 5.0, 0.2),
        (6.0, 10, 1, 0.3, 0.1),
        (4.0, 10, 2, 5.0, 0.2),
        (2.0, 10, 3, 5.0, 0.2),
        (1.0, 5, 3, 5.0, 0.2),
        (1.0, 5, 7, 5.0, 0.2),  # later passes share what is left among those that come back
        (600.0, 10, 1, 5.0, 0.3),  # nobody stays longer at once
        (0.01, 10, 1, 5.0, 0.01),  # nor shorter
        (-3.0, 10, 1, 5.0, 0.01),
    ],
)
def test_a_visit_is_a_fair_share_of_what_is_left(
    left: float, points: int, number: int, budget: float, seconds: float
) -> None:
    assert visit_seconds(left, points, number, budget) == pytest.approx(seconds)


# -- why a point stops -------------------------------------------------------------------------------------------


def test_a_point_that_is_known_well_enough_stops() -> None:
    """Three visits of 0.3 s make more than the 0.3 s, 60 samples and 3 visits that are asked for."""
    records = finished(walk(sweep_of(emulate="alpha=1ms,noise=5%"))[0])

    assert {record.stop for record in records} == {"precision"}
    assert all(record.samples >= 60 and record.how["seconds"] >= 0.3 for record in records)


def test_a_point_that_stays_vague_stops_at_its_budget() -> None:
    """Calls of a second each: their 2 % would take hours."""
    [record] = finished(walk(sweep_of(emulate="alpha=1s,noise=90%", max_bytes=8, budget=5.0))[0])

    assert record.stop == "budget"
    assert {"few_samples", "unstable"} <= set(record.flags)
    assert record.how["seconds"] >= 5


def test_the_launchs_own_time_ends_every_point() -> None:
    lines, code = walk(sweep_of(emulate="alpha=1s,noise=90%", budget=1e6), seconds=30.0)

    assert {record.stop for record in finished(lines)} == {"budget"}
    assert len(finished(lines)) == 3
    assert code == 0


@pytest.mark.parametrize("count", [1, 7, 300, 5000])
def test_n_gives_exactly_n_samples_whatever_the_budget(count: int) -> None:
    records = finished(walk(sweep_of(iters=count, emulate="alpha=1ms,noise=50%"), seconds=1e-9)[0])

    assert {(record.samples, record.stop, record.how["visits"]) for record in records} == {(count, "iterations", 1)}


# -- taking turns ------------------------------------------------------------------------------------------------


def taking_turns(**changes: Any) -> tuple[Lines, list[int]]:
    """The lines of a launch that asks before each visit, and how many lines there were at each turn."""
    lines: Lines = []
    job = job_of(sweep_of(**changes), visits=4, seconds=1.2)
    one, asked = build(job, lines), list[int]()
    one._turn = lambda: asked.append(len(lines))
    one.lead()
    return lines, asked


def test_a_launch_that_takes_turns_asks_before_each_visit_and_before_it_ends() -> None:
    lines, asked = taking_turns()

    assert len(asked) == 3 * 4 + 1
    assert lines[asked[-1]]["kind"] == "end"
    assert [record.how["visits"] for record in finished(lines)] == [4, 4, 4]
    assert {record.stop for record in finished(lines)} == {"visits"}


def test_it_stays_as_long_at_every_visit_and_files_no_partial_records() -> None:
    """1.2 s over 12 visits of calls of 1 ms: 100 of them, less the lead-in."""
    lines, _ = taking_turns()

    assert len([line for line in lines if line["kind"] == "record"]) == 3
    assert all(300 <= record.samples <= 400 for record in finished(lines))


def test_a_launch_of_its_own_asks_nobody() -> None:
    lines: Lines = []

    assert build(job_of(sweep_of()), lines)._turn is None


@pytest.mark.parametrize(("seconds", "visits", "each"), [(12.0, 240, 0.05), (1.0, 1000, 0.01), (100.0, 10, 0.3)])
def test_an_even_share_is_neither_too_short_nor_too_long(seconds: float, visits: int, each: float) -> None:
    assert even_share(seconds, visits) == pytest.approx(each)


def test_each_visit_leaves_what_it_alone_came_to() -> None:
    for record in finished(walk(sweep_of(emulate="alpha=1ms,noise=10%"))[0]):
        visits = list(record.states)
        assert len(visits) == record.how["visits"]
        assert sum(visit["samples"] for visit in visits) == record.samples
        assert len({visit["median"] for visit in visits}) == len(visits)
        assert all(visit["median"] == pytest.approx(1e-3, rel=0.1) for visit in visits)
        assert {(visit["seconds"], visit["state"], visit["after"]) for visit in visits} == {(None, "", "")}


# -- what fails --------------------------------------------------------------------------------------------------


def test_a_wrong_answer_fails_its_point_before_it_is_timed() -> None:
    lines, code = walk(sweep_of(emulate="alpha=1ms,wrong=0@16"))
    right, wrong, last = sorted(finished(lines), key=lambda record: record.point.bytes)

    assert code == 1
    assert (wrong.status, wrong.check, wrong.seconds, wrong.samples) == ("failed", "wrong", None, 0)
    assert wrong.reason == "rank 0: element 3 is 2, expected 1"
    assert [(record.status, record.check) for record in (right, last)] == [("ok", "ok")] * 2
    assert (lines[-1]["status"], lines[-1]["reason"], lines[-1]["exit_code"]) == ("failed", "1 of 3 points failed", 1)
    assert lines[-1]["fault"] == ""  # a launch that went through, with a point that failed


def test_an_answer_that_became_wrong_while_timing_fails_its_point_and_keeps_its_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: Lines = []
    one = build(job_of(sweep_of(max_bytes=8)), lines)
    said = iter(["", "rank 0: element 1 is 0, expected 1"])
    monkeypatch.setattr(one, "_check", lambda _: next(said))

    assert one.lead() == 1
    [record] = finished(lines)
    assert (record.status, record.check) == ("failed", "wrong")
    assert record.reason == "rank 0: element 1 is 0, expected 1"
    assert record.seconds is not None


def test_without_checks_nothing_is_checked_and_the_record_says_so() -> None:
    lines, code = walk(sweep_of(emulate="alpha=1ms,wrong=0@16", check=False))

    assert code == 0
    assert {record.check for record in finished(lines)} == {"skipped"}


def test_buffers_that_do_not_fit_are_refused_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB in place, on a node with 10 MiB."""
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 10 << 20)
    row = replace(engine.about("emulated"), virtual=False)
    monkeypatch.setattr(engine, "about", lambda _: row)

    with pytest.raises(MeasurementError, match="allreduce 64M needs 64M of buffers on this node, 10M are available"):
        build(job_of(sweep_of(max_bytes=64 << 20, in_place="yes")), [])


# -- going on from an earlier launch -----------------------------------------------------------------------------


def test_only_the_missing_points_are_measured_and_marked() -> None:
    points = build(job_of(sweep_of()), []).points
    lines, _ = walk(sweep_of(), only=(points[2],), launches=2)

    assert [(record.point, record.flags) for record in finished(lines)] == [(points[2], ("resumed",))]
    assert (lines[0]["launches"], lines[0]["points"]) == (2, 1)


def test_a_launch_goes_on_only_where_the_first_one_was() -> None:
    key = walk(sweep_of())[0][0]["key"]

    assert walk(sweep_of(), expect=key)[1] == 0
    with pytest.raises(UsageError, match="the file was measured with cpu_model = 'Z80', this is"):
        walk(sweep_of(), expect=key | {"cpu_model": "Z80"})


# -- ended from outside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "statuses", "status"),
    [("hung", ["hung"], "failed"), ("died", ["failed"], "failed"), ("stopped", [], "interrupted")],
)
def test_the_point_at_work_when_a_launch_ends_is_filed_unless_the_user_stopped_it(
    kind: str, statuses: list[str], status: str
) -> None:
    lines: Lines = []
    one = build(job_of(sweep_of()), lines)
    one._come_by(1, 0.01)
    Closing(one.job, one.emit).on_fault(Fault(kind, "why", 1))  # before an engine is known: the end alone
    assert [line["kind"] for line in lines] == ["end"]

    closing = Closing(one.job, one.emit)
    closing.engine = one
    closing.on_fault(Fault(kind, "rank 1 is gone", 1))
    records = [Record.from_json(line) for line in lines[1:] if line["kind"] == "record"]
    assert [record.status for record in records] == statuses
    assert all((record.point.bytes, record.reason) == (16, "rank 1 is gone") for record in records)
    assert (lines[-1]["status"], lines[-1]["fault"], lines[-1]["reason"]) == (status, kind, "rank 1 is gone")


def test_a_beat_says_what_is_done_and_how_far_the_walk_is() -> None:
    lines: Lines = []
    one = build(job_of(sweep_of(emulate="alpha=5us,bandwidth=10GB/s")), lines)
    closing = Closing(one.job, one.emit)
    closing.on_beat(Doing("meeting the other ranks", "", 600.0))
    closing.engine = one
    one._come_by(1, 0.01)
    closing.on_beat(Doing("timing", "allreduce 16", 60.0))

    assert lines[0] == {"kind": "now", "phase": "meeting the other ranks", "what": "", "allowance": 600.0}
    now = lines[1]
    assert (now["phase"], now["what"], now["finished"], now["points"]) == ("timing", "allreduce 16", 0, 3)
    assert now["point"]["bytes"] == 16
    assert now["median"] == pytest.approx(5.0016e-6)
    assert now["seconds"] == 100.0
    assert 0.01 <= now["elapsed"] < 1  # on the virtual clock


@pytest.mark.parametrize(
    ("fault", "failed", "status", "code"),
    [
        (None, "", "complete", 0),
        (None, "2 of 3 points failed", "failed", 1),
        (Fault("died", "why"), "", "failed", 1),
        (Fault("failed", "why", 2), "", "failed", 2),
        (Fault("stopped", "why", 130), "", "interrupted", 130),
    ],
)
def test_the_end_line_carries_status_and_exit_code(fault: Fault | None, failed: str, status: str, code: int) -> None:
    end = end_line(job_of(sweep_of()), fault, failed)

    assert (end["status"], end["exit_code"]) == (status, code)
    assert end["reason"] == ("why" if fault else failed)


# -- many ranks, without any -------------------------------------------------------------------------------------


def test_libraries_that_differ_between_ranks_are_noted() -> None:
    same = {"mpi": "MPICH 5", "numba": "0.60"}

    assert differences([same, dict(same)]) == []
    assert differences([same, same | {"mpi": "MPICH 4"}, {"mpi": "MPICH 5"}]) == [
        "mpi differs between ranks: MPICH 5 on rank 0, MPICH 4 on rank 1",
        "numba differs between ranks: 0.60 on rank 0, none on rank 2",
    ]


def slowest_of(last: list[int], samples: int, op: str = "allreduce") -> tuple[int, float] | None:
    """What rank 0 makes of how often each rank was last: a control that knows what the others say."""
    one = build(job_of(sweep_of(max_bytes=8)), [])
    one._come_by(0, 0.01)
    timed = one.timed[0]
    timed.last, timed.point = last[0], replace(timed.point, op=op)
    timed.trace.count = samples
    size = len(last)

    class Control:
        world = World(0, size, 0, size, "parent")

        def maximum(self, values: Any) -> Any:
            return np.maximum(values, max(count * size + rank for rank, count in enumerate(last)))

    one.control = Control()  # type: ignore[assignment]
    return one._slowest(0)


def test_the_slowest_rank_is_the_one_that_was_last_most_often() -> None:
    assert slowest_of([10, 70, 5], 100) == (1, 0.7)
    assert slowest_of([0, 0, 0], 100) == (2, 0.0)
    assert slowest_of([60], 100) is None
    assert slowest_of([60, 0], 100, op="p2p") is None


@pytest.mark.parametrize(("ranks", "share", "flagged"), [(4, 0.6, True), (4, 0.5, False), (2, 0.9, False)])
def test_one_rank_that_is_last_more_than_half_of_the_time_is_odd(ranks: int, share: float, flagged: bool) -> None:
    one = build(job_of(sweep_of(max_bytes=8)), [])
    one._come_by(0, 0.3)
    one.control.world = World(0, ranks, 0, ranks, "parent")

    record = one.record(one.timed[0], slowest=(1, share))
    assert ("one_rank_last" in record.flags) == flagged
    assert record.slowest == (1, share)


def test_cores_that_changed_their_state_between_visits_are_odd() -> None:
    one = build(job_of(sweep_of(max_bytes=8)), [])
    one._come_by(0, 0.3)
    one.timed[0].states = [{"seconds": 5e-8, "state": "near"}, {"seconds": 2e-7, "state": "far"}]

    record = one.record(one.timed[0])
    assert "state_changed" in record.flags
    assert [state["state"] for state in record.states] == ["near", "far"]
