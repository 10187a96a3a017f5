"""Lines of a results file to records, in less time than their JSON takes.

A file of a million records is a gigabyte. Lines that our `Writer` wrote have their keys in a known order, and most of
a line repeats what others said: run, launch and point but for the size, status, flags. Such parts are read as JSON
once and remembered by their text; the ten times of a record are matched; and what few readers look at (`states`, `how`,
`histogram`, two thirds of a line) is kept as text until somebody does.

Lines of any other form are left to `Record.from_json`: this must never accept what that refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, overload

from commbench.records import Record, Seconds, refuse_other_types
from commbench.spec import Point

_POINT = tuple(field.name for field in fields(Point))
_CURVE = frozenset(_POINT) - {"bytes", "variant"}
_LAUNCH = ("kind", "run", "launch")
_BEFORE_SAMPLES = ("status", "reason", "statistic")
_AFTER_STATES = ("proven_path", "proof", "check", "stop", "flags")
_SECONDS = re.compile(",".join(rf'"{field.name}":(\d[\d.e+-]*)' for field in fields(Seconds)), re.ASCII)
_SLOWEST = re.compile(r"\[(\d{1,18}),(\d[\d.e+-]*)\]", re.ASCII)
_LONGEST = 1e18  # seconds; from_json says the rest
_DIGITS = 18
Kind = TypeVar("Kind", dict[str, Any], list[Any])
_Broken = (ValueError, TypeError, KeyError, RecursionError)


class RecordLines:
    """Reads the lines of one file. Equal points of its records are one object."""

    def __init__(self) -> None:
        self._launches: dict[str, tuple[Any, ...] | None] = {}
        self._curves: dict[str, _Curve | None] = {}
        self._points: dict[Point, Point] = {}
        self._parts: dict[str, tuple[Any, ...] | None] = {}

    def known(self, point: Point) -> Point:
        """The one object that stands for this point."""
        return self._points.setdefault(point, point)

    def read(self, line: str) -> Record | None:
        """The record of a line, None when it is no record or has another form than our own."""
        curve = line.find(',"op":')
        size = line.find(',"bytes":', curve)
        ranks = line.find(',"ranks":', size)
        status = line.find(',"status":', ranks)
        samples = line.find(',"samples":', status)
        seconds = line.find(',"seconds":{', samples)
        slowest = line.find('},"slowest":', seconds)
        states = line.find(',"states":[', slowest)
        proven = line.find('],"proven_path":', states)
        how = line.find(',"how":{', proven)
        histogram = line.find('},"histogram":', how)
        if not 0 < curve < size < ranks < status < samples < seconds < slowest < states < proven < how < histogram:
            return None
        launch = self._part(line[1:curve], _LAUNCH)
        sizes = self._curve(line[curve:size] + line[ranks:status])
        begin = self._part(line[status + 1 : samples], _BEFORE_SAMPLES)
        end = self._part(line[proven + 2 : how], _AFTER_STATES)
        times = _SECONDS.fullmatch(line, seconds + 12, slowest)
        last = line[histogram + 14 :]
        if launch is None or sizes is None or begin is None or end is None or times is None or not _ends(last):
            return None
        try:
            values = tuple(map(float, times.groups()))
            point = sizes.points.get(line[size + 9 : ranks]) or self._point(sizes, line[size + 9 : ranks])
            count = _count(line[samples + 11 : seconds])
            slow = _slowest(line[slowest + 12 : states])
        except _Broken:
            return None
        if max(values) > _LONGEST or launch[0] != "record":
            return None
        median, low, high, p5, p25, p75, p95, p99, smallest, largest = values
        return Record(
            point=point,
            run=launch[1],
            launch=launch[2],
            status=begin[0],
            reason=begin[1],
            statistic=begin[2],
            samples=count,
            seconds=Seconds(
                median=median, low=low, high=high, p5=p5, p25=p25, p75=p75, p95=p95, p99=p99, min=smallest, max=largest
            ),
            slowest=slow,
            states=LaterList(line[states + 10 : proven + 1]),
            proven_path=end[0],
            proof=end[1],
            check=end[2],
            stop=end[3],
            flags=end[4],
            how=LaterObject(line[how + 7 : histogram + 1]),
            histogram=None if last == "null}\n" else LaterObject(last[:-2]),
        )

    def _part(self, text: str, names: tuple[str, ...]) -> tuple[Any, ...] | None:
        """The values of a part of a line that has these names and no others; a list becomes a tuple."""
        if text not in self._parts:
            found = _object(f"{{{text}}}")
            values = () if found is None else (tuple(v) if isinstance(v, list) else v for v in found.values())
            self._parts[text] = None if found is None or tuple(found) != names else tuple(values)
        return self._parts[text]

    def _curve(self, text: str) -> _Curve | None:
        """The curve of a line whose size was cut out."""
        if text not in self._curves:
            found = _object(f"{{{text[1:]}}}")
            ours = found is not None and found.keys() - {"variant"} == _CURVE
            self._curves[text] = _Curve.of(found) if ours and found is not None else None
        return self._curves[text]

    def _point(self, curve: _Curve, size: str) -> Point:
        point = Point(bytes=_count(size), **curve.keys)
        if point.bytes < 1:
            raise ValueError
        curve.points[size] = self.known(point)
        return curve.points[size]


@dataclass(frozen=True, slots=True)
class _Curve:
    """The fields of a point without `bytes`, and the points by size so far."""

    keys: dict[str, Any]
    points: dict[str, Point]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> _Curve:
        point = Point.from_key({**line, "bytes": 0})
        return cls({name: getattr(point, name) for name in _POINT if name != "bytes"}, {})


def _object(text: str) -> dict[str, Any] | None:
    """The sound JSON object that a text is."""
    try:
        found = json.loads(text)
        refuse_other_types(found)
    except _Broken:
        return None
    return found if isinstance(found, dict) else None


def _ends(last: str) -> bool:
    """Whether a histogram, flat as ours are, is the last thing in the line."""
    return last == "null}\n" or (last.startswith("{") and last.endswith("}}\n") and last.find("}") == len(last) - 3)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise ValueError
    return int(text)


def _slowest(text: str) -> tuple[int, float] | None:
    if text == "null":
        return None
    found = _SLOWEST.fullmatch(text)
    if found is None or float(found[2]) > _LONGEST:
        raise ValueError
    return int(found[1]), float(found[2])


class LaterObject(Mapping[str, Any]):
    """A JSON object, read whenever somebody looks into it and not kept; a damaged one is empty."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __getitem__(self, key: str) -> Any:
        return _later(self._text, dict)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_later(self._text, dict))

    def __len__(self) -> int:
        return len(_later(self._text, dict))

    def items(self) -> ItemsView[str, Any]:
        return _later(self._text, dict).items()

    def __repr__(self) -> str:
        return repr(_later(self._text, dict))


class LaterList(Sequence[Mapping[str, Any]]):
    """A JSON list of objects, likewise."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def _now(self) -> list[Mapping[str, Any]]:
        return [one for one in _later(self._text, list) if isinstance(one, dict)]

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self._now()[at]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._now() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self._now()))


def _later(text: str, kind: type[Kind]) -> Kind:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return kind()
    return found if isinstance(found, kind) else kind()
