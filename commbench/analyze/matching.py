"""Which curves may stand side by side: like with like, and what differs becomes the axis.

A *side* is what one argument of `commbench compare` names: a file, or a folder of files that are further runs.
With several sides, curves of different sides are compared. With one, its curves are compared along the one key
in which they differ, or the key that was asked for.

* Keys that make it another question must be equal unless asked across: operation, reduction, root, variant,
  ranks, mode, cache, and what a time is made of (statistic).
* Others (data type, in place, back end, device, path, and the setting: library, hosts, hardware, environment) may
  differ and are then what is compared, except where a side has several of them: float32 and bfloat16 in both files
  are compared each with its own kind, as long as everyone finds somebody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from commbench.analyze.datasets import Dataset, datasets
from commbench.analyze.facts import Facts, facts_of
from commbench.analyze.setting import Setting
from commbench.analyze.summary import Curve
from commbench.errors import CannotTellError, UsageError
from commbench.records import Record
from commbench.results import Results
from commbench.spec import Point

_SAME_QUESTION = ("op", "redop", "root", "variant", "ranks", "mode", "cache", "statistic")
_MAY_DIFFER = ("dtype", "in_place", "backend", "device", "path")
_OF_THE_SETTING = tuple(field.name for field in fields(Setting))
_OF_THE_OPERATION = ("redop", "root", "variant", "in_place")
NOTHING_TRAVELS = "on 1 rank nothing travels, so there is nothing to compare"
KEYS = (*_SAME_QUESTION, *_MAY_DIFFER, *_OF_THE_SETTING)


@dataclass(frozen=True)
class Side:
    """What one argument names: `name` for people, and its files."""

    name: str
    files: tuple[Results, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A curve, and where it comes from.

    Attributes:
        side: number of its side.
        name: of its side.
        files: its files.
        facts: the circumstances it was measured in.
        launches: run and launch of its records.
        sessions: the sessions its launches belong to, as far as they are known.
        notices: launches of its setting that did not end as they should.
    """

    side: int
    name: str
    files: tuple[str, ...]
    curve: Curve
    facts: Facts
    launches: frozenset[tuple[int, str]]
    sessions: frozenset[str]
    notices: tuple[str, ...]

    @cached_property
    def statistic(self) -> str:
        """What its times are made of."""
        return ", ".join(sorted({point.statistic for point in self.curve.points}))

    def get(self, key: str) -> Any:
        """The value of one of `KEYS`."""
        if key == "statistic":
            return self.statistic
        return getattr(self.curve.setting if key in _OF_THE_SETTING else self.curve.key, key)

    def shares_launches_with(self, other: Candidate) -> bool:
        """Whether run numbers mean the same launches in both curves."""
        return self.side == other.side and self.launches == other.launches and all(name for _, name in self.launches)


@dataclass(frozen=True)
class LeftOut:
    """A curve that is compared with nothing, and why."""

    candidate: Candidate
    reason: str


Group = tuple[Candidate, ...]


def parse_keys(words: Iterable[str]) -> tuple[str, ...]:
    """Keys as typed after `--across`, also as a list with commas.

    Raises:
        UsageError: one is not among `KEYS`.
    """
    keys = [word.strip().lower().replace("-", "_") for text in words for word in text.split(",")]
    for key in keys:
        if key not in KEYS:
            raise UsageError(f"--across: unknown key {key!r}", f"one of: {', '.join(KEYS)}")
    return tuple(dict.fromkeys(keys))


def candidates(sides: Sequence[Side]) -> list[Candidate]:
    """Every curve of the sides.

    Raises:
        CannotTellError: a side has none.
    """
    found = []
    for number, side in enumerate(sides):
        mine = [one for dataset in datasets(side.files) for one in _of_dataset(number, side, dataset)]
        if not mine:
            raise CannotTellError(f"{side.name}: no record in it", "`commbench show` says what went wrong")
        found += mine
    return found


def _of_dataset(number: int, side: Side, dataset: Dataset) -> Iterator[Candidate]:
    runs = [run for file in side.files for run in file.runs if Setting.of(run) == dataset.setting]
    sessions = frozenset(str(run["session"]) for run in runs if run.get("session"))
    shared = facts_of(runs)
    records: dict[Point, list[Record]] = {}
    for record in dataset.records:
        records.setdefault(record.point.curve, []).append(record)
    for curve in dataset.curves:
        mine = records[curve.key]
        yield Candidate(
            side=number,
            name=side.name,
            files=dataset.files,
            curve=curve,
            facts=shared | facts_of((), mine),
            launches=frozenset((record.run, record.launch) for record in mine),
            sessions=sessions,
            notices=dataset.notices,
        )


def groups(found: Sequence[Candidate], across: Collection[str] = ()) -> tuple[list[Group], list[LeftOut]]:
    """The groups of curves to compare, the first of each being the one that the others are measured by.

    Raises:
        CannotTellError: there is one curve only, or a side has nothing like the others, or the curves of a single
            side differ in more than one key and none is named.
    """
    several = len({candidate.side for candidate in found}) > 1
    alone = [LeftOut(c, NOTHING_TRAVELS) for c in found if c.curve.key.ranks == 1]
    travelling = [candidate for candidate in found if candidate.curve.key.ranks > 1]
    sides = {candidate.side for candidate in travelling}
    for candidate in found:
        if candidate.side not in sides:
            raise CannotTellError(f"{candidate.name}: {NOTHING_TRAVELS}", "measure with --ranks 2 or more")
    found = travelling
    axis = tuple(across) if several or across else _axis(found)
    made = _matched(found, _Units(axis, several=several))
    _refuse_unlike(found, made, axis, several=several)
    left = [LeftOut(c, "nothing like it elsewhere") for group in made if len(group) == 1 for c in group]
    return [group for group in made if len(group) > 1], alone + left


@dataclass(frozen=True)
class _Units:
    """What is compared with each other: sides, or the values of the axis within one side."""

    axis: tuple[str, ...]
    several: bool

    def of(self, candidate: Candidate) -> Any:
        return candidate.side if self.several else tuple(candidate.get(key) for key in self.axis)

    def meet(self, part: Iterable[Candidate]) -> bool:
        """Whether there are two of them."""
        return len({self.of(candidate) for candidate in part}) > 1

    def met(self, parts: Iterable[Sequence[Candidate]]) -> set[Any]:
        """The units that find another one in some part."""
        return {self.of(candidate) for part in parts if self.meet(part) for candidate in part}


def _matched(found: Sequence[Candidate], units: _Units) -> list[Group]:
    """All candidates in groups of like ones; a group in which only one unit is found falls apart."""
    # Root and reduction follow from the operation: across operations they cannot be asked to be equal.
    loose = (*units.axis, *(_OF_THE_OPERATION if "op" in units.axis else ()))
    strict = [key for key in _SAME_QUESTION if key not in loose]
    parts: list[Sequence[Candidate]] = [*_split(found, strict)]
    for key in KEYS:
        if key not in (*units.axis, *strict):
            parts = [
                finer for part in parts for finer in _split_where_it_helps(part, key, units, spare=key not in loose)
            ]
    made: list[Group] = []
    for part in parts:
        made += [tuple(part)] if units.meet(part) else [(candidate,) for candidate in part]
    return made


def _split_where_it_helps(
    part: Sequence[Candidate], key: str, units: _Units, *, spare: bool
) -> Sequence[Sequence[Candidate]]:
    """Like with like in `key` too, if some unit has several values of it and all units still find each other.

    `spare`: a curve of a unit that has others may be left alone by it.
    """
    values: dict[Any, set[Any]] = {}
    for candidate in part:
        values.setdefault(units.of(candidate), set()).add(candidate.get(key))
    finer = _split(part, [key])
    is_fair = units.met(finer) == units.met([part]) and (spare or all(map(units.meet, finer)))
    return finer if max(map(len, values.values())) > 1 and is_fair else [part]


def _split(found: Iterable[Candidate], keys: Sequence[str]) -> list[list[Candidate]]:
    parts: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in found:
        parts.setdefault(tuple(candidate.get(key) for key in keys), []).append(candidate)
    return list(parts.values())


def _axis(found: Sequence[Candidate]) -> tuple[str, ...]:
    """The one key besides the operation in which a side's curves differ; else the operation; else the setting."""
    if len(found) == 1:
        raise CannotTellError(
            f"{found[0].name}: one curve, and nothing to compare it with",
            "name a second file, or measure two: --mode sync,pipe",
        )
    differing = [key for key in (*_SAME_QUESTION, *_MAY_DIFFER) if _differs(key, found)]
    besides = [key for key in differing if key != "op"]
    if len(besides) > 1:
        raise CannotTellError(
            f"{found[0].name}: its curves differ in {' and '.join(besides)}",
            f"say what to compare: --across {besides[0]}",
        )
    return tuple(besides or differing or [key for key in _OF_THE_SETTING if _differs(key, found)])


def _differs(key: str, found: Sequence[Candidate]) -> bool:
    """Whether curves differ in the key; in what follows from the operation, within one operation."""
    parts = _split(found, ["op"]) if key in _OF_THE_OPERATION else [list(found)]
    return any(len({candidate.get(key) for candidate in part}) > 1 for part in parts)


def _refuse_unlike(found: Sequence[Candidate], made: Sequence[Group], axis: Sequence[str], *, several: bool) -> None:
    grouped = {candidate.side for group in made if len(group) > 1 for candidate in group}
    lonely = [candidate for candidate in found if candidate.side not in grouped]
    if not lonely:
        return
    if not several:
        raise CannotTellError(
            f"{found[0].name}: no two of its curves differ in {' and '.join(axis)} alone",
            "`commbench show` lists its curves",
        )
    pairs = [(a, b) for a in _one_a_question(lonely) for b in _one_a_question(found) if a.side != b.side]
    nearest = min(pairs, key=lambda pair: len(_unlike(pair[0], pair[1], axis)))
    ours, theirs = sorted(nearest, key=lambda candidate: candidate.side)
    keys = _unlike(ours, theirs, axis)
    differences = ", ".join(f"{key} is {_word(ours.get(key))} and {_word(theirs.get(key))}" for key in keys)
    raise CannotTellError(
        f"{ours.name} and {theirs.name} hold nothing alike: {differences}",
        f"compare them all the same with {' '.join(f'--across {key}' for key in keys if not _follows(key, keys))}",
    )


def _one_a_question(found: Iterable[Candidate]) -> list[Candidate]:
    asked = {(c.side, *(c.get(key) for key in _SAME_QUESTION)): c for c in found}
    return list(asked.values())


def _unlike(ours: Candidate, theirs: Candidate, axis: Sequence[str]) -> list[str]:
    return [key for key in _SAME_QUESTION if key not in axis and ours.get(key) != theirs.get(key)]


def _follows(key: str, keys: Sequence[str]) -> bool:
    return "op" in keys and key in _OF_THE_OPERATION


def _word(value: Any) -> str:
    return "none" if value in (None, "") else str(value)
