"""The results file: written as measured, readable after a kill, hostile to nobody who reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import ResultsError
from commbench.records import Record, Seconds
from commbench.results import Writer, dump_line, load, trace_line, traces
from commbench.spec import Point
from commbench.stats import FLAGS

RUN = {"kind": "run", "schema": 1, "run": 1, "launch": "a"}
END = {"kind": "end", "run": 1, "launch": "a", "status": "complete"}


def as_read(line: Any) -> dict[str, Any]:
    """A line as it comes back from a file."""
    read: dict[str, Any] = json.loads(dump_line(line))
    return read


def write(path: Path, *lines: Any, tail: str = "") -> Path:
    path.write_text("".join(dump_line(line) + "\n" for line in lines) + tail)
    return path


# -- one record --------------------------------------------------------------------------------------------------

TIMES = st.floats(0, 1e6, allow_subnormal=False)
TEXT = st.text(max_size=10)


@given(
    status=st.sampled_from(["ok", "failed", "hung"]),
    check=st.sampled_from(["ok", "wrong", "skipped"]),
    seconds=st.none() | st.builds(Seconds, median=TIMES, low=st.none() | TIMES, p99=st.none() | TIMES, max=TIMES),
    slowest=st.none() | st.tuples(st.integers(0, 9), st.floats(0, 1)),
    flags=st.lists(st.sampled_from(list(FLAGS)), unique=True).map(tuple),
    states=st.lists(st.fixed_dictionaries({"seconds": TIMES, "state": TEXT}), max_size=2).map(tuple),
    proven_path=st.none() | TEXT,
    samples=st.integers(0, 1 << 40),
    how=st.dictionaries(TEXT, st.integers() | TEXT, max_size=2),
    variant=st.sampled_from(["", "pair=0,3;bidirectional"]),
    extra=st.dictionaries(st.text("xyz", min_size=3, max_size=9), st.integers() | TEXT, max_size=2),
)
def test_a_record_comes_back_from_its_line_as_it_was(variant: str, **fields: Any) -> None:
    point = Point("p2p", False, "int8", None, None, 64, 4, "mpi", "cpu", "auto", "pipe", "rotated", variant)
    record = Record(point=point, run=3, launch="l", reason="why", stop="budget", **fields)

    assert Record.from_json(as_read(record.to_json())) == record


def test_a_line_holds_the_point_flat_and_whatever_a_newer_version_added(record: Any) -> None:
    line = record(4096, 1e-5, extra={"moon": "full"}).to_json()

    assert {"kind", "run", "op", "bytes", "seconds", "status"} <= set(line)
    assert line["moon"] == "full"
    assert Record.from_json(as_read(line)).extra == {"moon": "full"}


def test_what_an_importer_leaves_out_has_a_default(point: Any) -> None:
    record = Record.from_json({"kind": "record", "run": 1, **point(8).key(), "seconds": {"median": 1e-5}})

    assert (record.status, record.check, record.samples, record.flags) == ("ok", "skipped", 0, ())
    assert record.seconds == Seconds(median=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": "8"},
        {"bytes": 0},
        {"bytes": True},
        {"bytes": 1 << 80},
        {"ranks": 2.5},
        {"run": 0},
        {"root": -1},
        {"op": "all"},
        {"op": ["allreduce"]},
        {"dtype": "float8"},
        {"in_place": 1},
        {"status": "fine"},
        {"check": None},
        {"flags": "drift"},
        {"flags": [1]},
        {"samples": -1},
        {"proven_path": 7},
        {"reason": None},
        {"seconds": 1e-5},
        {"seconds": {}},
        {"seconds": {"median": None}},
        {"seconds": {"median": "1e-5"}},
        {"seconds": {"median": -1e-5}},
        {"seconds": {"median": 1e-5, "p95": True}},
        {"seconds": {"median": 1e-5, "p95": float("nan")}},
        {"seconds": {"median": 1e-5, "max": float("inf")}},
        {"slowest": [1]},
        {"slowest": 3},
        {"slowest": ["x", "y"]},
        {"states": ["near"]},
        {"states": 7},
        {"how": []},
    ],
)
def test_a_line_of_another_type_is_refused_by_whoever_reads_it(
    tmp_path: Path, record: Any, change: dict[str, Any]
) -> None:
    line = as_read(record().to_json()) | change
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, (RUN, line, END))) + "\n")

    with pytest.raises(ResultsError, match="a record line is not what schema 1 says"):
        load(path)


@pytest.mark.parametrize("missing", ["op", "bytes", "ranks", "cache", "run"])
def test_a_line_without_a_key_of_the_point_is_refused(tmp_path: Path, record: Any, missing: str) -> None:
    line = as_read(record().to_json())
    del line[missing]

    with pytest.raises(ResultsError, match=missing):
        load(write(tmp_path / "x.jsonl", RUN, line))


def test_nan_is_not_written() -> None:
    """No two readers agree on NaN in JSON."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_line({"median": float("nan")})


# -- reading a file ----------------------------------------------------------------------------------------------


def test_a_file_is_its_runs_records_and_ends(tmp_path: Path, record: Any) -> None:
    results = load(write(tmp_path / "x.jsonl", RUN, record(8).to_json(), record(16).to_json(), END))

    assert (results.header, results.ends, results.warnings) == (RUN, [END], [])
    assert results.records == [record(8), record(16)]
    assert results.path == str(tmp_path / "x.jsonl")


def test_a_partial_record_counts_until_the_point_is_finished(tmp_path: Path, record: Any) -> None:
    early, late = record(8, 1e-5, flags=("partial",)), record(8, 2e-5, flags=("partial",))
    finished, other_run = record(8, 3e-5), record(8, 4e-5, run=2)

    assert load(write(tmp_path / "a", RUN, early.to_json(), late.to_json())).records == [late]
    assert load(write(tmp_path / "b", RUN, early.to_json(), finished.to_json())).records == [finished]
    assert load(write(tmp_path / "c", RUN, finished.to_json(), late.to_json())).records == [finished]
    assert load(write(tmp_path / "d", RUN, finished.to_json(), other_run.to_json())).records == [finished, other_run]


def test_of_two_finished_records_of_a_point_in_a_run_the_last_counts(tmp_path: Path, record: Any) -> None:
    hung, again = record(8, None, status="hung", check="skipped"), record(8, 3e-5)

    assert load(write(tmp_path / "x", RUN, hung.to_json(), again.to_json())).records == [again]


def test_a_killed_run_loses_the_line_it_was_writing_and_nothing_else(tmp_path: Path, record: Any) -> None:
    results = load(write(tmp_path / "x", RUN, record(8).to_json(), tail='{"kind":"record","run":1,"by'))

    assert results.records == [record(8)]
    assert results.ends == []
    assert results.warnings == [f"{tmp_path / 'x'}: dropped the last line, it was cut off (a killed run)"]


def test_lines_of_unknown_kinds_and_empty_lines_are_passed_over(tmp_path: Path, record: Any) -> None:
    path = write(tmp_path / "x", RUN, {"kind": "note", "text": "hm"}, record(8).to_json(), tail="\n\n")

    assert load(path).records == [record(8)]
    assert load(path).warnings == []


def test_a_trace_is_not_even_parsed_by_who_does_not_ask_for_it(tmp_path: Path, record: Any) -> None:
    results = load(write(tmp_path / "x", RUN, tail='{"kind":"trace" this is no JSON\n' + dump_line(record().to_json())))

    assert len(results.records) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"hello\n", "not a results file"),
        (b"[1, 2]\n", "not a JSON object"),
        (b'{"a": 1}\n', "no run in it"),
        (b'\xff\xfe{"kind"\n', "not text"),
        (b'{"kind":"run","schema":1,"run":1}\nnoise\n{"kind":"end"}\n', "line 2 is damaged"),
        (b"[" * 100_000 + b"\n", "not a results file"),
        (b'{"kind":"run","schema":2,"commbench":"9.9"}\n', "written in schema 2 by commbench 9.9; this one reads 1"),
        (b'{"kind":"run","schema":1}\n', "a run line is not what schema 1 says: 'run'"),
        (b'{"kind":"run","schema":1,"run":"first"}\n', "a run line is not what schema 1 says: run is 'first'"),
        (b'{"kind":"run"}\n', "written in schema None"),
        (b'{"kind":"run","schema":"1"}\n', "written in schema 1 by"),
    ],
)
def test_what_is_no_results_file_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)

    with pytest.raises(ResultsError, match=message) as caught:
        load(path)
    assert caught.value.hint
    assert caught.value.message.startswith(str(path))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="No such file"):
        load(tmp_path / "nothing")
    with pytest.raises(ResultsError, match="Is a directory"):
        load(tmp_path)


# -- traces ------------------------------------------------------------------------------------------------------


def test_a_trace_comes_back_as_float32_with_its_stride(tmp_path: Path, point: Any) -> None:
    values = np.array([1e-6, 2.5e-6, 3.25e-3])
    path = write(tmp_path / "x", RUN, trace_line(point(64), 2, 4, values), END)

    [(at, run, stride, read)] = traces(path)
    assert (at, run, stride) == (point(64), 2, 4)
    assert read.tolist() == values.astype(np.float32).tolist()


# -- writing -----------------------------------------------------------------------------------------------------


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path, record: Any) -> None:
    writer = Writer(tmp_path / "new/folder/x.jsonl")
    writer.write(RUN)
    writer.write(record().to_json())

    assert len(load(writer.path).records) == 1
    writer.close()


def test_an_existing_file_is_kept_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path / "x", RUN)

    with pytest.raises(ResultsError, match="exists already") as caught:
        Writer(path)
    assert "--force" in caught.value.hint
    assert load(path).header == RUN

    added = Writer(path, append=True)
    added.write(RUN | {"run": 2})
    added.close()
    assert [run["run"] for run in load(path).runs] == [1, 2]

    forced = Writer(path, force=True)
    forced.write(RUN | {"run": 3})
    forced.close()
    assert [run["run"] for run in load(path).runs] == [3]


def test_what_follows_a_cut_line_is_not_glued_to_it(tmp_path: Path, record: Any) -> None:
    path = write(tmp_path / "x", RUN, record(8).to_json(), tail='{"kind":"record","run":1,"by')

    writer = Writer(path, append=True)
    writer.write(RUN | {"run": 2})
    writer.close()

    results = load(path)
    assert (len(results.runs), results.records, results.warnings) == (2, [record(8)], [])


def test_a_whole_last_line_is_kept_though_its_end_is_missing(tmp_path: Path, record: Any) -> None:
    """`load` counts such a record as finished: appending must not take it away."""
    path = write(tmp_path / "x", RUN, tail=dump_line(record(8).to_json()))
    assert load(path).records == [record(8)]

    writer = Writer(path, append=True)
    writer.write(END)
    writer.close()

    assert (load(path).records, load(path).ends) == ([record(8)], [END])


def test_a_file_that_nothing_was_written_to_leaves_no_trace(tmp_path: Path) -> None:
    Writer(tmp_path / "x").close()
    Writer(tmp_path / "y", append=True).close()

    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ResultsError, match="cannot be written") as caught:
        Writer(tmp_path / "file/x.jsonl")
    assert "--output" in caught.value.hint
