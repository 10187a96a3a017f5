"""What a file still lacks, from files written by hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from commbench.backends import about
from commbench.errors import ResultsError, UsageError
from commbench.jobs.resume import is_finished, progress_of
from commbench.records import Record
from commbench.results import Writer, load
from commbench.spec import Point, Sweep

SWEEP = Sweep(ops=("allreduce",), backend="emulated", ranks=4, max_bytes=64, runs=2)
POINTS = SWEEP.points(4, about("emulated").capabilities)[0]  # 8, 16, 32, 64


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """A function: writes lines, records as JSON, and reads the file back."""

    def write(*lines: Any) -> Any:
        writer = Writer(tmp_path / "x.jsonl", force=True)
        for line in lines:
            writer.write(line.to_json() if isinstance(line, Record) else line)
        writer.close()
        return load(writer.path)

    return write


def opened(run: int, sweep: Sweep = SWEEP, **more: Any) -> dict[str, Any]:
    key = {"backend": "emulated", "ranks": 4, "cpu_model": "Xeon"}
    return {"kind": "run", "schema": 1, "run": run, "launch": f"l{run}", "sweep": asdict(sweep), "key": key} | more


def done(point: Point, run: int = 1, **changes: Any) -> Record:
    return Record(point=point, run=run, **{"status": "ok", "check": "ok"} | changes)


@pytest.mark.parametrize(
    ("changes", "finished"),
    [
        ({}, True),
        ({"check": "skipped"}, True),
        ({"status": "failed", "check": "wrong"}, True),  # would be wrong again
        ({"status": "failed", "check": "skipped"}, False),  # its launch died
        ({"status": "hung", "check": "skipped"}, False),
        ({"flags": ("partial",)}, False),
        ({"flags": ("partial", "drift")}, False),
    ],
)
def test_a_point_is_finished_when_measuring_it_again_would_tell_nothing_new(
    changes: dict[str, Any], finished: bool
) -> None:
    assert is_finished(done(POINTS[0], **changes)) == finished


def test_what_is_missing_is_counted_per_run(file: Any) -> None:
    progress = progress_of(
        file(
            opened(1),
            *(done(point) for point in POINTS),
            opened(2),
            done(POINTS[0], 2),
            done(POINTS[1], 2, flags=("partial",)),
        ),
        SWEEP,
    )

    assert progress.missing(POINTS, 1) == []
    assert progress.missing(POINTS, 2) == POINTS[1:]
    assert progress.missing(POINTS, 3) == POINTS


def test_launches_of_a_run_are_counted_and_the_key_is_the_first_ones(file: Any) -> None:
    progress = progress_of(file(opened(1), opened(1, launches=2), opened(2)))

    assert progress.launches == {1: 2, 2: 1}
    assert progress.key == {"backend": "emulated", "ranks": 4, "cpu_model": "Xeon"}
    assert progress.sweep == SWEEP


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": 5},
        {"budget": 1.0},
        {"total_budget": 600.0},
        {"timeout": 5.0},
        {"init_timeout": 9.0},
        {"on_hang": "skip"},
    ],
)
def test_budgets_time_outs_and_the_number_of_runs_may_change(file: Any, changes: dict[str, Any]) -> None:
    asked = Sweep(**asdict(SWEEP) | changes)

    assert progress_of(file(opened(1)), asked).sweep == asked


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_bytes": 128}, "max_bytes = 64, now it is 128"),
        ({"dtype": "float64"}, "dtype = 'float32', now it is 'float64'"),
        ({"ops": ("allgather",)}, r"ops = \('allreduce',\), now it is \('allgather',\)"),
        ({"ranks": 2}, "ranks = 4, now it is 2"),
        ({"precision": 0.5}, "precision = 0.02, now it is 0.5"),
        ({"seed": 2}, "seed = 1, now it is 2"),
    ],
)
def test_another_question_is_not_added_to_the_file(file: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=f"was measured with {words}") as caught:
        progress_of(file(opened(1)), Sweep(**asdict(SWEEP) | changes))
    assert "--output" in caught.value.hint


def test_a_launcher_may_decide_on_the_ranks_again(file: Any) -> None:
    asked = Sweep(**asdict(SWEEP) | {"ranks": None})

    assert progress_of(file(opened(1)), asked).key["ranks"] == 4


@pytest.mark.parametrize(
    "header", [{"sweep": {}}, {"sweep": None}, {"key": {}}, {"key": None}, {"key": {"ranks": "x"}}]
)
def test_a_file_that_does_not_say_what_was_asked_cannot_be_completed(file: Any, header: dict[str, Any]) -> None:
    with pytest.raises(ResultsError, match="does not say what was asked for"):
        progress_of(file(opened(1) | header))


def test_records_of_an_importer_cannot_be_completed(file: Any) -> None:
    with pytest.raises(ResultsError, match="does not say what was asked for"):
        progress_of(file(done(POINTS[0])))
