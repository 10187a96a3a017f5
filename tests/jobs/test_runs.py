"""The desk where lines arrive, and the parent's judgement on launches that are only told about."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import pytest

from commbench.backends import about
from commbench.errors import CommbenchError, LaunchError, MeasurementError, ResultsError, StoppedError, UsageError
from commbench.job import Job
from commbench.jobs import runs
from commbench.jobs.resume import Progress
from commbench.jobs.runs import Desk, Parent, as_typed, this_command
from commbench.measure.lines import end_line
from commbench.measure.liveness import Fault
from commbench.records import Record
from commbench.results import Writer, load
from commbench.spec import Sweep

SWEEP = Sweep(ops=("allreduce",), backend="emulated", ranks=4, max_bytes=64, runs=2, total_budget=20.0)
POINTS = SWEEP.points(4, about("emulated").capabilities)[0]  # 8, 16, 32, 64


class View:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def run(self, header: Mapping[str, Any]) -> None:
        self.told.append(("run", header["run"]))

    def note(self, text: str) -> None:
        self.told.append(("note", text))

    def now(self, line: Mapping[str, Any]) -> None:
        self.told.append(("now", line["phase"]))

    def record(self, record: Record) -> None:
        self.told.append(("record", record.point.bytes))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    writer = Writer(tmp_path / "x.jsonl")
    yield Desk(writer, View())
    writer.close()


def opened(job_or_run: Any) -> dict[str, Any]:
    run, launch = (job_or_run.run, job_or_run.launch) if isinstance(job_or_run, Job) else (job_or_run, "l")
    return {"kind": "run", "schema": 1, "run": run, "launch": launch, "ranks": 4, "points": 4, "sweep": asdict(SWEEP)}


def done(k: int, run: int = 1, **changes: Any) -> dict[str, Any]:
    """The line of the k-th point."""
    line = Record(point=POINTS[k], run=run, **{"status": "ok", "check": "ok"} | changes).to_json()
    return line | {name: list(line[name]) for name in ("flags", "states")}  # as from JSON


def hung(k: int, run: int = 1) -> dict[str, Any]:
    return done(k, run, status="hung", check="skipped", reason="no progress for 60 s")


# -- the desk ----------------------------------------------------------------------------------------------------


def test_what_belongs_in_the_file_is_filed_and_the_rest_only_shown(desk: Desk) -> None:
    trace = {"kind": "trace", "run": 1}
    end = {"kind": "end", "run": 1}
    for line in (
        opened(1),
        {"kind": "note", "text": "hm"},
        {"kind": "now", "phase": "timing"},
        done(0),
        trace,
        {"kind": "telepathy"},
        end,
    ):
        desk.take(line)

    text = desk.writer.path.read_text()
    assert [text.count(f'"kind":"{kind}"') for kind in ("run", "record", "trace", "end")] == [1, 1, 1, 1]
    assert len(text.splitlines()) == 4
    assert isinstance(desk.view, View)
    assert desk.view.told == [("run", 1), ("note", "hm"), ("now", "timing"), ("record", 8)]
    assert desk.ranks == 4


def test_the_desk_counts_what_is_finished_and_what_went_wrong(desk: Desk) -> None:
    for line in (
        done(0),
        done(1, flags=("partial",)),
        done(2, status="failed", check="wrong", reason="rank 1: element 3 is 2, expected 1"),
        hung(3),
    ):
        desk.take(line)

    assert desk.finished == {(POINTS[0], 1), (POINTS[2], 1)}
    assert desk.hung == {POINTS[3]}
    assert desk.problems == [
        "allreduce at 32: rank 1: element 3 is 2, expected 1",
        "allreduce at 64: no progress for 60 s",
    ]


def test_a_sweep_with_problems_ends_with_the_first_and_their_number(desk: Desk) -> None:
    desk.raise_problems()

    desk.take(hung(3))
    with pytest.raises(MeasurementError, match=r"^allreduce at 64: no progress for 60 s$"):
        desk.raise_problems()
    desk.take(hung(2))
    with pytest.raises(MeasurementError, match=r"^allreduce at 64: no progress for 60 s \(and 1 more\)$"):
        desk.raise_problems()


# -- the parent --------------------------------------------------------------------------------------------------

# A launch as the tests tell it: lines on the way, and the fault it ends with.
Told = tuple[list[dict[str, Any]], Fault | None]


class Launches:
    """Takes the place of real launches: each next one happens as told; the jobs are written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Job] = []
        self.told: list[Told | BaseException] = []
        monkeypatch.setattr(Parent, "_launch", lambda _, job, desk: self._launch(job, desk))

    def _launch(self, job: Job, desk: Desk) -> Mapping[str, Any]:
        self.jobs.append(job)
        told = self.told.pop(0) if self.told else ([done(k, job.run) for k in range(4)], None)
        if isinstance(told, BaseException):
            raise told
        lines, fault = told
        for line in (opened(job), *lines, end := end_line(job, fault)):
            desk.take(line)
        return end


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def measure(desk: Desk, progress: Progress | None = None, first_run: int = 1, **changes: Any) -> None:
    Parent(replace(SWEEP, **changes), ("commbench", "sweep"), first_run=first_run).measure(desk, progress)


def test_every_run_is_a_launch_with_its_share_of_the_budget(desk: Desk, launches: Launches) -> None:
    measure(desk)

    assert [(job.run, job.seconds, job.only, job.launches) for job in launches.jobs] == [
        (1, 10.0, None, 1),
        (2, 10.0, None, 1),
    ]
    assert len({job.launch for job in launches.jobs}) == 2
    assert len({job.session for job in launches.jobs}) == 1
    assert {job.command for job in launches.jobs} == {("commbench", "sweep")}
    assert len(desk.finished) == 8


def test_runs_are_numbered_on_in_a_file_that_has_some(desk: Desk, launches: Launches) -> None:
    measure(desk, first_run=4)

    assert [job.run for job in launches.jobs] == [4, 5]


def test_wrong_answers_do_not_end_the_sweep_but_fail_it(desk: Desk, launches: Launches) -> None:
    wrong = done(1, status="failed", check="wrong", reason="rank 0: element 3 is 2, expected 1")
    launches.told = [([done(0), wrong, done(2), done(3)], None)]

    with pytest.raises(MeasurementError, match=r"^allreduce at 16: rank 0: element 3 is 2"):
        measure(desk)
    assert [job.run for job in launches.jobs] == [1, 2]


def test_a_dead_rank_ends_the_sweep(desk: Desk, launches: Launches) -> None:
    launches.told = [([done(0)], Fault("died", "rank 1 on a died"))]

    with pytest.raises(MeasurementError, match=r"^rank 1 on a died$") as caught:
        measure(desk)
    assert "--resume" in caught.value.hint
    assert "--on-hang" not in caught.value.hint
    assert len(launches.jobs) == 1


def test_a_hang_ends_the_sweep_and_says_how_it_could_go_on(desk: Desk, launches: Launches) -> None:
    launches.told = [([hung(1)], Fault("hung", "no progress for 60 s"))]

    with pytest.raises(MeasurementError, match="no progress for 60 s") as caught:
        measure(desk)
    assert "--on-hang skip goes on without that point" in caught.value.hint


def test_a_skipped_point_is_left_out_by_fresh_processes_that_do_the_rest(desk: Desk, launches: Launches) -> None:
    launches.told = [([done(0), hung(1)], Fault("hung", "why")), ([done(2), done(3)], None)]

    with pytest.raises(MeasurementError, match=r"^allreduce at 16: no progress"):
        measure(desk, on_hang="skip", runs=1)
    first, second = launches.jobs
    assert first.only is None
    assert second.only == (POINTS[2], POINTS[3])
    assert (second.run, second.launches) == (1, 2)
    assert 1.0 <= second.seconds <= first.seconds
    assert second.launch != first.launch


def test_a_launch_that_hangs_on_nothing_new_is_not_repeated_for_ever(desk: Desk, launches: Launches) -> None:
    """It hung before it had a point, as when ranks do not meet."""
    launches.told = [([done(0), hung(1)], Fault("hung", "at 16")), ([], Fault("hung", "meeting the other ranks"))]

    with pytest.raises(MeasurementError, match="meeting the other ranks"):
        measure(desk, on_hang="skip")
    assert len(launches.jobs) == 2


def test_nothing_left_to_measure_after_a_hang_starts_nothing(desk: Desk, launches: Launches) -> None:
    launches.told = [([done(0), done(1), done(2), hung(3)], Fault("hung", "at 64"))]

    with pytest.raises(MeasurementError, match=r"^allreduce at 64"):
        measure(desk, on_hang="skip", runs=1)
    assert len(launches.jobs) == 1


@pytest.mark.parametrize("code", [130, 1])
def test_a_stopped_launch_stops_the_sweep_with_its_exit_code(desk: Desk, launches: Launches, code: int) -> None:
    launches.told = [([done(0)], Fault("stopped", "stopped by a signal", code))]

    with pytest.raises(StoppedError) as caught:
        measure(desk)
    assert caught.value.stop_code == code
    assert len(launches.jobs) == 1


def test_what_ranks_call_a_wrong_question_is_one(desk: Desk, launches: Launches) -> None:
    launches.told = [([], Fault("failed", "--resume: the file was measured with ...", 2))]

    with pytest.raises(UsageError, match="--resume"):
        measure(desk)


# -- going on ----------------------------------------------------------------------------------------------------


def progress_of(launched: dict[int, int], *finished: tuple[int, int]) -> Progress:
    """Launches by run, and (index, run) of finished points."""
    return Progress(SWEEP, launched, {(POINTS[k], run) for k, run in finished}, {"ranks": 4, "cpu_model": "Xeon"})


def test_a_resumed_sweep_measures_what_is_missing_and_new_runs_whole(desk: Desk, launches: Launches) -> None:
    finished = [(k, 1) for k in range(4)] + [(0, 2), (2, 2)]
    launches.told = [([done(1, 2), done(3, 2)], None)]
    measure(desk, progress_of({1: 1, 2: 1}, *finished), runs=3)

    assert [(job.run, job.launches) for job in launches.jobs] == [(2, 2), (3, 1)]
    assert [job.only for job in launches.jobs] == [(POINTS[1], POINTS[3]), None]
    assert {tuple(job.expect.items()) for job in launches.jobs} == {(("ranks", 4), ("cpu_model", "Xeon"))}


def test_a_complete_file_needs_no_launch(desk: Desk, launches: Launches) -> None:
    measure(desk, progress_of({1: 1, 2: 3}, *((k, run) for k in range(4) for run in (1, 2))))

    assert launches.jobs == []


# -- ended from here ---------------------------------------------------------------------------------------------


class Launch:
    """A launch whose `run` raises."""

    error: BaseException = RuntimeError()

    def __init__(self, job: Job, commands: Any) -> None:
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True

    def run(self, on_line: Callable[[Any], None]) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (KeyboardInterrupt(), ("interrupted", "stopped", "stopped by Ctrl-C", 130)),
        (StoppedError("stopped by SIGTERM", exit_code=1), ("interrupted", "stopped", "stopped by SIGTERM", 1)),
        (LaunchError("the ranks ended"), ("failed", "failed", "the ranks ended", 1)),
        (ResultsError("disk full"), None),  # there is no file to write it to
    ],
)
def test_a_launch_that_is_broken_off_is_closed_in_the_file(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: BaseException, end: Any
) -> None:
    monkeypatch.setattr(Launch, "error", error)
    monkeypatch.setattr(runs, "Launch", Launch)
    desk.take(opened(1))

    with pytest.raises((CommbenchError, KeyboardInterrupt)):
        measure(desk)
    ends = load(desk.writer.path).ends
    assert [(e["status"], e["fault"], e["reason"], e["exit_code"]) for e in ends] == ([end] if end else [])


def test_sigterm_ends_a_sweep_in_words_and_then_means_again_what_it_meant(desk: Desk, monkeypatch: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Parent, "_launch", lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(StoppedError, match="stopped by SIGTERM") as caught:
        measure(desk)
    assert caught.value.stop_code == 1
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/env/bin/commbench", "sweep", "--launcher", "srun -n 2"])

    assert as_typed(this_command()) == "commbench sweep --launcher 'srun -n 2'"
