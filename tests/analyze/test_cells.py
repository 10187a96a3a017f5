"""Which numbers may be divided: the same state of the cores, the same pair, or a session."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commbench.analyze import cells
from commbench.analyze.cells import Measured, Visit
from commbench.records import Record
from commbench.results import Results, load

Files = Callable[..., Path]


def met(*visits: tuple[str, float] | tuple[str, str, float]) -> tuple[dict[str, Any], ...]:
    """States of visits: (state, median) or (before, after, median)."""
    return tuple({"seconds": 5e-8, "state": v[0], "after": v[-2], "median": v[-1], "samples": 9} for v in visits)


# -- one record ----------------------------------------------------------------------------------------------------


def test_a_launch_in_one_state_counts_with_its_median(record: Any) -> None:
    one = record(8, 2.0, states=met(("near", 1.9), ("near", 2.2)))

    assert cells.by_state(one) == {"near": (math.log(2.0), 2)}


def test_a_launch_in_two_states_counts_in_each_with_the_visits_of_it(record: Any) -> None:
    """The median over both, 2.0, is the speed of nothing."""
    one = record(8, 2.0, states=met(("near", 1.0), ("far", 3.0), ("near", 1.2), ("near", 1.1)))

    assert cells.by_state(one) == {"near": (math.log(1.1), 3), "far": (math.log(3.0), 1)}


def test_a_visit_during_which_the_state_changed_counts_in_none(record: Any) -> None:
    one = record(8, 2.0, states=met(("near", "far", 2.0), ("near", 1.0)))

    assert cells.by_state(one) == {"near": (0.0, 1)}


def test_where_states_cannot_be_read_there_are_none_to_tell_apart(record: Any) -> None:
    assert cells.by_state(record(8, 2.0)) == {"": (math.log(2.0), 1)}
    assert cells.by_state(record(8, 2.0, states=met(("unread", 2.0), ("unread", 4.0)))) == {"": (math.log(2.0), 2)}


def test_visits_without_medians_tell_only_whether_all_met_one_state(record: Any) -> None:
    """As in files of the first version."""
    near, far = {"seconds": 5e-8, "state": "near"}, {"seconds": 2e-7, "state": "far"}

    assert cells.visits(record(8, 2.0, states=(near, near))) == []
    assert cells.by_state(record(8, 2.0, states=(near, near))) == {"near": (math.log(2.0), 1)}
    assert cells.by_state(record(8, 2.0, states=(near, far))) == {}


@pytest.mark.parametrize("median", [None, "x", True, 0, -1.0, math.inf])
def test_a_median_that_is_none_is_no_visit(record: Any, median: Any) -> None:
    states = ({"state": "near", "after": "near", "median": median},)

    assert cells.visits(record(8, 2.0, states=states)) == []


def test_a_state_of_another_type_harms_nobody(record: Any) -> None:
    states = ({"state": ["near"], "after": {}, "median": 1.0}, {"median": 1.0})

    assert len(cells.visits(record(8, 2.0, states=states))) == 2


# -- one cell ------------------------------------------------------------------------------------------------------


def test_visits_of_launches_that_took_turns_are_partners(record: Any) -> None:
    """The machine drifted by half from one visit to the next, the ratio did not."""
    a = record(8, 9.0, states=met(("near", 1.0), ("near", 1.5), ("far", 3.0)))
    b = record(8, 9.0, states=met(("near", 1.1), ("near", 1.65), ("near", 1.0)))

    assert cells.ratio(a, b, turns=True) == pytest.approx(math.log(1.1))


def test_partners_in_different_states_are_not_divided(record: Any) -> None:
    a = record(8, 1.0, states=met(("near", 1.0), ("near", "far", 1.0)))
    b = record(8, 3.0, states=met(("far", 3.0), ("near", "far", 1.0)))

    assert math.isnan(cells.ratio(a, b, turns=True))


def test_without_turns_a_state_that_both_met_is_compared(record: Any) -> None:
    a = record(8, 2.0, states=met(("near", 1.0), ("far", 3.0)))
    b = record(8, 1.2, states=met(("near", 1.2)))

    assert cells.ratio(a, b, turns=False) == pytest.approx(math.log(1.2))
    assert math.isnan(cells.ratio(a, record(8, 3.0, states=met(("apart", 3.0))), turns=False))


def test_two_states_that_both_met_weigh_by_their_visits(record: Any) -> None:
    a = record(8, 2.0, states=met(("near", 1.0), ("near", 1.0), ("far", 3.0)))
    b = record(8, 2.0, states=met(("near", 1.2), ("near", 1.2), ("far", 3.0)))

    assert cells.ratio(a, b, turns=False) == pytest.approx(math.log(1.2) * 2 / 3)


# -- two files -----------------------------------------------------------------------------------------------------


def sided(records: Sequence[Record], runs: Sequence[dict[str, Any]]) -> Results:
    return Results("x", [{"kind": "run", "launch": f"launch{run['run']}"} | run for run in runs], list(records), [], [])


def runs_of(count: int, **facts: Any) -> list[dict[str, Any]]:
    """Run lines; a callable fact is called with the run's number."""
    return [
        {"run": run} | {name: value(run) if callable(value) else value for name, value in facts.items()}
        for run in range(1, count + 1)
    ]


def test_launches_with_a_pair_in_common_are_compared_pair_by_pair(record: Any) -> None:
    runs = runs_of(5, session="s", pair=lambda run: run)
    side = sided([record(8, 1.0, run) for run in range(1, 6)], runs)

    assert cells.form_of(side, side) == "pairs"
    assert cells.form_of(side, sided([], runs_of(5, session="t", pair=lambda run: run))) == "runs"


def test_four_sessions_of_a_baseline_are_enough_to_know_their_spread() -> None:
    of = [sided([], runs_of(count, session=str)) for count in (1, 3, 4)]

    assert [cells.form_of(side, sided([], runs_of(1, session="other"))) for side in of] == ["runs", "runs", "sessions"]


def test_one_session_is_one_parent() -> None:
    one, other = sided([], runs_of(5, session="s")), sided([], runs_of(5, session="t"))

    assert cells.in_one_session(one, one)
    assert not cells.in_one_session(one, other)
    assert not cells.in_one_session(sided([], runs_of(5)), sided([], runs_of(5)))  # nobody knows


def test_pairs_that_only_one_side_finished_are_left_out(record: Any) -> None:
    runs = runs_of(3, session="s", pair=lambda run: run)
    baseline = sided([record(8, 1.0, run) for run in (1, 2, 3)], runs)
    candidate = sided([record(8, 2.0, run) for run in (1, 3)], runs)
    (ours,), (theirs,) = (cells.measured(side, "pairs").values() for side in (baseline, candidate))

    ratios, pairs = cells.ratios(ours, theirs, [8], turns=False)
    assert pairs == [("s", 1), ("s", 3)]
    assert ratios == pytest.approx(np.full((2, 1), math.log(2)))


def test_runs_of_a_size_are_compared_in_the_state_that_most_of_both_met(record: Any) -> None:
    near, far = met(("near", 1.0)), met(("far", 3.0))
    ours = [record(8, 1.0, run, states=near) for run in (1, 2, 3, 4)] + [record(8, 3.0, 5, states=far)]
    theirs = [record(8, 1.1, run, states=met(("near", 1.1))) for run in (1, 2, 3, 4, 5)]
    sides = [cells.measured(sided(records, runs_of(5, session="s")), "runs") for records in (ours, theirs)]
    (a,), (b,) = (side.values() for side in sides)

    baseline, candidate = cells.times(a, b, [8], "runs")
    assert baseline == pytest.approx(np.zeros((4, 1)))
    assert candidate == pytest.approx(np.full((5, 1), math.log(1.1)))


def test_a_session_counts_once_whatever_its_runs(record: Any) -> None:
    runs = runs_of(4, session=lambda run: "long" if run < 4 else "short")
    side = sided([record(8, math.exp(run), run) for run in (1, 2, 3, 4)], runs)
    (one,) = cells.measured(side, "sessions").values()

    baseline, _ = cells.times(one, one, [8], "sessions")
    assert sorted(baseline[:, 0]) == pytest.approx([2.0, 4.0])


def test_what_failed_stands_for_nothing(record: Any) -> None:
    side = Measured({8: {("s", 1): record(8, 1.0, check="wrong"), ("s", 2): record(8, None, status="hung")}})

    assert side.sound(8) == {}
    assert len(side.bad()) == 2


def test_a_file_says_whether_its_launches_took_turns(records_of: Files) -> None:
    assert cells.took_turns(load(records_of(name="a.jsonl", header={"visits": 8})))
    assert not cells.took_turns(load(records_of(name="b.jsonl", header={"visits": None})))
    assert not cells.took_turns(load(records_of(name="c.jsonl")))


def test_a_visit_is_a_state_and_a_log_time(record: Any) -> None:
    assert cells.visits(record(8, 2.0, states=met(("near", 1.0)))) == [Visit("near", 0.0)]
