"""The quick way must say what `Record.from_json` says, or nothing."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from commbench import results
from commbench.errors import ResultsError
from commbench.record_lines import LaterList, LaterObject, RecordLines
from commbench.records import Record, Seconds
from commbench.results import dump_line

ALL_TIMES = Seconds(
    median=1e-5, low=9e-6, high=1.1e-5, p5=9e-6, p25=9.5e-6, p75=1.05e-5, p95=1.2e-5, p99=1.5e-5, min=8e-6, max=3.0
)
FULL: dict[str, Any] = {
    "seconds": ALL_TIMES,
    "slowest": (3, 0.4),
    "states": ({"seconds": 7e-8, "state": "near"}, {"seconds": 2e-7, "state": "far"}),
    "flags": ("drift", "unstable"),
    "proven_path": "shm",
    "how": {"loop": "compiled", "slices": 8, "depth": 1, "seconds": 0.3},
    "histogram": {"base": 1e-9, "step": 0.01, "bins": [900, 901], "counts": [5, 7]},
}


def line_of(record: Record) -> str:
    return dump_line(record.to_json()) + "\n"


def test_a_line_of_ours_is_read_as_json_would_have_it(record: Any) -> None:
    line = line_of(record(64, **FULL))

    assert RecordLines().read(line) == Record.from_json(json.loads(line))


@pytest.mark.parametrize(
    "changes",
    [{"histogram": None}, {"slowest": None}, {"states": ()}, {"flags": ()}, {"op": "p2p", "variant": "pair=0,1"}],
)
def test_what_may_be_missing_may_be_missing(record: Any, changes: dict[str, Any]) -> None:
    line = line_of(record(64, **FULL | changes))

    assert RecordLines().read(line) == Record.from_json(json.loads(line))


def test_a_record_that_was_read_is_written_again_as_it_was(record: Any) -> None:
    line = line_of(record(64, **FULL))
    found = RecordLines().read(line)

    assert found is not None
    assert line_of(found) == line


def test_equal_points_are_one_object(record: Any) -> None:
    reader = RecordLines()
    first, second = (reader.read(line_of(record(64, run=run, **FULL))) for run in (1, 2))

    assert first is not None
    assert second is not None
    assert first.point is second.point


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"bytes":64', '"bytes":0'),
        ('"bytes":64', '"bytes":-64'),
        ('"bytes":64', '"bytes":6.4e1'),
        ('"bytes":64', '"bytes":' + "9" * 30),
        ('"ranks":4', '"ranks":"4"'),
        ('"op":"allreduce"', '"op":"allreduse"'),
        ('"in_place":true', '"in_place":1'),
        ('"status":"ok"', '"status":"fine"'),
        ('"check":"ok"', '"check":["ok"]'),
        ('"samples":100', '"samples":-1'),
        ('"samples":100', '"samples":1.5'),
        ('"median":1e-05', '"median":-1e-05'),
        ('"median":1e-05', '"median":NaN'),
        ('"median":1e-05', '"median":1e999'),
        ('"median":1e-05', '"median":"x"'),
        ('"median":1e-05', '"median":null'),
        ('"flags":["drift","unstable"]', '"flags":"drift"'),
        ('"slowest":[3,0.4]', '"slowest":[3]'),
        ('"run":1', '"run":0'),
        ('"kind":"record"', '"kind":"trace"'),
    ],
)
def test_what_json_would_refuse_is_left_to_json(record: Any, old: str, new: str) -> None:
    line = line_of(record(64, **FULL))
    assert old in line

    assert RecordLines().read(line.replace(old, new)) is None


def test_lines_of_another_form_are_left_to_json(record: Any) -> None:
    plain = record(64, **FULL).to_json()
    shuffled = dict(sorted(plain.items()))

    for line in (
        json.dumps(plain) + "\n",  # blanks after separators
        dump_line(shuffled) + "\n",
        dump_line(plain | {"new": 1}) + "\n",
        dump_line(plain | {"seconds": None}) + "\n",
        dump_line(plain),  # the last line of a file that was cut
        dump_line(plain)[:-5] + "\n",
        "{}\n",
        "\n",
    ):
        assert RecordLines().read(line) is None


def test_both_ways_agree_on_every_mutation_of_a_line(record: Any) -> None:
    """2000 lines with a few characters changed: read alike, or left to JSON, or damaged where nobody looked yet."""
    line, draw = line_of(record(64, **FULL)), random.Random(7)
    later = ("states", "how", "histogram")
    for _ in range(2000):
        text = list(line)
        for _ in range(draw.randint(1, 3)):
            text[draw.randrange(len(text) - 1)] = draw.choice('0123456789{}[],:".-eE ax')
        mutated = "".join(text)
        quick = RecordLines().read(mutated)
        if quick is None:
            continue
        try:
            slow = Record.from_json(json.loads(mutated))
        except (ValueError, TypeError, KeyError):
            for name in later:  # damaged there: empty or sound, never a traceback
                _ = list(getattr(quick, name) or ())
            continue
        plain = {name: None if name == "histogram" else () for name in later}
        assert replace(quick, **plain) == replace(slow, **plain, extra={})


def test_later_objects_behave_as_what_they_stand_for() -> None:
    thing, things = LaterObject('{"a": 1}'), LaterList('[{"a": 1}, 7, {"b": 2}]')

    assert (thing["a"], dict(thing), len(thing), thing.get("b")) == (1, {"a": 1}, 1, None)
    assert thing == {"a": 1}
    assert things == ({"a": 1}, {"b": 2})
    assert (things[-1], len(things), list(things)) == ({"b": 2}, 2, [{"a": 1}, {"b": 2}])


@pytest.mark.parametrize("text", ["", "{", "7", "null", "[" * 100_000])
def test_damaged_later_objects_are_empty(text: str) -> None:
    assert dict(LaterObject(text)) == {}
    assert list(LaterList(text)) == []


def test_the_last_record_of_a_point_and_run_counts_whichever_way_it_was_read(record: Any) -> None:
    partial = record(64, **FULL | {"flags": ("partial",)})
    whole = record(64, **FULL | {"seconds": replace(ALL_TIMES, median=2e-5)})
    lines = [line_of(partial), json.dumps(whole.to_json()) + "\n", line_of(partial)]

    found = results.read(io.StringIO("".join(lines)), "x")

    assert [r.seconds.median for r in found.records if r.seconds] == [2e-5]


def test_a_damaged_line_in_the_middle_is_still_refused(record: Any) -> None:
    line = line_of(record(64, **FULL))

    with pytest.raises(ResultsError, match="line 2 is damaged"):
        results.read(io.StringIO(line + line[:300] + "\n" + line), "x")
