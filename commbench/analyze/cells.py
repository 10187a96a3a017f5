"""Records to cells: how long a size took in a replicate, comparing only what the cores met in the same state.

Virtual machines move cores about; a call then takes three times as long, for seconds or minutes. A point's median over
visits in both states is no speed. So a cell is never made of such a median:

* Two launches that took turns came by each point right after each other: each visit has its partner. Partners in
  the same state, before and after, are divided; the cell is the median of those ratios.
* Else a launch counts per state: its median where it met one state, the median of that state's visits where it
  met several. A cell compares a state that both sides met.

A replicate is a pair of launches, a run, or a session of runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from commbench.analyze.gate_scores import Array
from commbench.records import UNREAD, Record
from commbench.results import Results
from commbench.spec import Point

Form = Literal["pairs", "runs", "sessions"]
Replicate = tuple[str, int]
FEWEST_SESSIONS = 4


@dataclass(frozen=True, slots=True)
class Visit:
    """One stay at a point: log seconds, and the cores' state.

    "" where there is none to read, UNREAD where it could not be read or did not last: such visits compare with none.
    """

    state: str
    time: float


@dataclass(frozen=True)
class Measured:
    """One side's records of one curve, by size and replicate."""

    records: Mapping[int, Mapping[Replicate, Record]]

    def sound(self, size: int) -> dict[Replicate, Record]:
        """Records that may stand for the operation."""
        return {at: record for at, record in self.records.get(size, {}).items() if is_sound(record)}

    def bad(self) -> list[Record]:
        """Records that failed, hung, or gave a wrong answer."""
        return [r for group in self.records.values() for r in group.values() if r.status != "ok" or r.check == "wrong"]


def is_sound(record: Record) -> bool:
    """Measured, with an answer that is not wrong, and a time that is one."""
    seconds = record.seconds
    return record.status == "ok" and record.check != "wrong" and seconds is not None and 0 < seconds.median < math.inf


def form_of(baseline: Results, candidate: Results) -> Form:
    """How two files are to be compared: pair by pair, run by run, or session by session.

    Sessions where the baseline has four: then their spread is known from the data.
    """
    if _pairs(baseline) & _pairs(candidate):
        return "pairs"
    ours, theirs = _sessions(baseline), _sessions(candidate)
    return "sessions" if ours != theirs and len(ours) >= FEWEST_SESSIONS else "runs"


def in_one_session(baseline: Results, candidate: Results) -> bool:
    """Whether all launches of both sides had the same hosts, boot and parent."""
    ours, theirs = _sessions(baseline), _sessions(candidate)
    return len(ours) == 1 and ours == theirs and ours != {""}


def measured(results: Results, form: Form) -> dict[Point, Measured]:
    """A side's curves with their records."""
    found: dict[Point, dict[int, dict[Replicate, Record]]] = {}
    lines = _Lines(results)
    for record in results.records:
        line = lines.of(record)
        number = line.get("pair") if form == "pairs" else record.run
        if isinstance(number, int):
            at = str(line.get("session") or ""), number
            found.setdefault(record.point.curve, {}).setdefault(record.point.bytes, {})[at] = record
    return {curve: Measured(records) for curve, records in found.items()}


def took_turns(results: Results) -> bool:
    """Whether its launches alternated with another's, visit by visit."""
    return bool(results.runs) and all(isinstance(run.get("visits"), int) for run in results.runs)


def ratios(
    baseline: Measured, candidate: Measured, sizes: Sequence[int], *, turns: bool
) -> tuple[Array, list[Replicate]]:
    """log(candidate / baseline)[pair, size], NaN where no state was met by both, and the pairs.

    `sizes` are the columns; with `turns`, visits have partners.
    """
    pairs = sorted({at for size in sizes for at in baseline.sound(size).keys() & candidate.sound(size).keys()})
    cells = np.full((len(pairs), len(sizes)), np.nan)
    for column, size in enumerate(sizes):
        ours, theirs = baseline.sound(size), candidate.sound(size)
        for row, at in enumerate(pairs):
            if at in ours and at in theirs:
                cells[row, column] = ratio(ours[at], theirs[at], turns=turns)
    return cells, pairs


def ratio(baseline: Record, candidate: Record, *, turns: bool) -> float:
    """log(candidate / baseline) of one cell, NaN where no state was met by both."""
    ours, theirs = visits(baseline), visits(candidate)
    if turns and ours and theirs:
        partners = [b.time - a.time for a, b in zip(ours, theirs, strict=False) if a.state == b.state != UNREAD]
        return float(np.median(partners)) if partners else math.nan
    a, b = by_state(baseline), by_state(candidate)
    shared = a.keys() & b.keys()
    weights = [min(a[state][1], b[state][1]) for state in shared]
    return float(np.average([b[s][0] - a[s][0] for s in shared], weights=weights)) if shared else math.nan


def times(baseline: Measured, candidate: Measured, sizes: Sequence[int], form: Form) -> tuple[Array, Array]:
    """Log times [replicate, size] of both sides, each size in the state that most of both met; NaN elsewhere."""
    sides = [_by_state_of(side, sizes) for side in (baseline, candidate)]
    columns: list[list[dict[Replicate, float]]] = [[], []]
    for size in sizes:
        met = [_by_name(side[size]) for side in sides]
        shared = sorted(met[0].keys() & met[1].keys())
        best = max(shared, key=lambda state: min(len(met[0][state]), len(met[1][state])), default=None)
        for number in (0, 1):
            chosen = met[number][best] if best is not None else {}
            columns[number].append(_over_sessions(chosen) if form == "sessions" else chosen)
    return _matrix(columns[0]), _matrix(columns[1])


def runs_of_a_session(side: Measured, size: int) -> int:
    """The fewest runs that any of a side's sessions has."""
    count: dict[str, int] = {}
    for session, _ in side.sound(size):
        count[session] = count.get(session, 0) + 1
    return min(count.values(), default=0)


def visits(record: Record) -> list[Visit]:
    """What each visit came to; [] where the record does not tell.

    A state that changed during a visit was none: whose time the median is, nobody knows. Where no visit could read
    any, as on cores with several ranks each, there are no states to tell apart.
    """
    names = [str(state.get("state", "")) for state in record.states]
    blind = all(name == UNREAD for name in names)
    found = []
    for name, state in zip(names, record.states, strict=True):
        median = state.get("median")
        if not isinstance(median, int | float) or isinstance(median, bool) or not 0 < median < math.inf:
            return []
        steady = state.get("after", name) == name
        found.append(Visit("" if blind else name if steady else UNREAD, math.log(median)))
    return found


def by_state(record: Record) -> dict[str, tuple[float, int]]:
    """State to (log seconds in it, visits)."""
    assert record.seconds is not None
    found = visits(record)
    met = {visit.state for visit in found} or {str(state.get("state", "")) for state in record.states} or {""}
    if len(met) == 1 and UNREAD not in met:
        return {met.pop(): (math.log(record.seconds.median), max(len(found), 1))}
    return {
        state: _middle([visit.time for visit in found if visit.state == state]) for state in met - {UNREAD} if found
    }


def _middle(logs: list[float]) -> tuple[float, int]:
    return float(np.median(logs)), len(logs)


def _by_state_of(side: Measured, sizes: Iterable[int]) -> dict[int, dict[Replicate, dict[str, tuple[float, int]]]]:
    return {size: {at: by_state(record) for at, record in side.sound(size).items()} for size in sizes}


def _by_name(met: Mapping[Replicate, Mapping[str, tuple[float, int]]]) -> dict[str, dict[Replicate, float]]:
    found: dict[str, dict[Replicate, float]] = {}
    for at, states in met.items():
        for state, (time, _) in states.items():
            found.setdefault(state, {})[at] = time
    return found


def _over_sessions(runs: Mapping[Replicate, float]) -> dict[Replicate, float]:
    found: dict[str, list[float]] = {}
    for (session, _), time in runs.items():
        found.setdefault(session, []).append(time)
    return {(session, 0): float(np.mean(group)) for session, group in found.items()}


def _matrix(columns: Sequence[Mapping[Replicate, float]]) -> Array:
    rows = sorted({at for column in columns for at in column})
    return np.array([[column.get(at, np.nan) for column in columns] for at in rows]).reshape(len(rows), len(columns))


class _Lines:
    """The "run" line that a record belongs to."""

    def __init__(self, results: Results) -> None:
        self._by_launch = {str(run["launch"]): run for run in results.runs if run.get("launch")}
        self._by_run = {run.get("run"): run for run in results.runs}

    def of(self, record: Record) -> Mapping[str, Any]:
        return self._by_launch.get(record.launch) or self._by_run.get(record.run) or {}


def _pairs(results: Results) -> set[tuple[str, int]]:
    return {(str(r.get("session") or ""), r["pair"]) for r in results.runs if isinstance(r.get("pair"), int)}


def _sessions(results: Results) -> set[str]:
    return {str(run.get("session") or "") for run in results.runs}
