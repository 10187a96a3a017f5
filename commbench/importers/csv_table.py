"""CSV with a header line: `bytes,seconds`, and whatever is known beside: any key of a point, `run`, `session`, `pair`.

Times are seconds and sizes are bytes, nothing else; a column in another unit is refused. A key that has no column, or
an empty cell, is unknown: nothing is claimed about it, so that without `op` and `ranks` there is no bus bandwidth.

One row a size and run is taken as it is (`statistic` "as_given"). Several rows of one size in one run are its
samples: their median counts, with an interval within the run ("median_of_given"). Empty lines and lines that begin
with # are skipped; a header that numpy.savetxt put behind a # is found.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import IO, Any

import numpy as np

from commbench.errors import ResultsError
from commbench.importers import cells
from commbench.importers.foreign import launch_of, results_of
from commbench.records import Record, Seconds
from commbench.results import Results
from commbench.spec import Point
from commbench.stats import Samples, precision_of

NAME = "CSV with columns bytes and seconds"

Launch = tuple[int | None, str, int | None]  # run, session, pair

_LAUNCH: Mapping[str, Callable[[str], Any]] = {"run": cells.number, "session": cells.text, "pair": cells.number}
_KNOWN = ("seconds", *cells.POINT, *_LAUNCH)
_LONGEST_LINE = 64 << 10
_PERCENTILES = 20  # samples from which on 5 and 95 % are more than the extremes

_MICRO = "u\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}"
_OTHER_UNIT = re.compile(
    rf"(?:^|[^a-z])([nm{_MICRO}])(?:s|sec|seconds?)(?:$|[^a-z])|(nano|micro|milli)sec", re.IGNORECASE
)
_PER_SECOND = {"n": "1e9", "m": "1e3", "nano": "1e9", "milli": "1e3"}  # the others are microseconds
_SIZE = re.compile(r"bytes|size|msg|length|[kmg]i?b", re.IGNORECASE)
_LIKE_OURS = re.compile(r"bytes|size|second|time|latency", re.IGNORECASE)
_ASK = "the first line names the columns: bytes,seconds and any of op, ranks, run, ..."


def recognises(head: str) -> bool:
    """Whether the first line that is no comment has separators, and numbers or names like ours between them."""
    line = next((line for line in head.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    row = _split(line, _delimiter(line))
    if len(row) < 2 or line.lstrip().startswith(("{", "[")):  # noqa: PLR2004 - a size and a time
        return False
    return all(map(cells.NUMBER.fullmatch, row)) or any(map(_LIKE_OURS.search, row))


def read(file: IO[str], path: str) -> Results:
    """The results in the table.

    Raises:
        ResultsError: naming line and column.
    """
    lines = _Lines(file, path)
    names, rows = _header(lines)
    columns = _columns(names, lines)
    measured: dict[tuple[Point, Launch], list[float]] = {}
    warnings = [*_ignored(names)]
    empty = 0
    for point, launch, seconds in _rows(rows, columns, len(names), lines):
        if point.bytes:
            measured.setdefault((point, launch), []).append(seconds)
        else:
            empty += 1
    if not measured:
        raise ResultsError(f"{path}: no row below the header", "a row is a size in bytes and a time in seconds")
    if empty:
        warnings.append(f"left out {empty} row{'s' * (empty > 1)} of 0 bytes: no curve has such a size")
    if any(len(times) > 1 for times in measured.values()):
        warnings.append("several rows of one size are taken as samples of one run; a column run tells launches apart")
    numbers = _run_numbers(dict.fromkeys(launch for _, launch in measured))
    records = [_record(point, numbers[launch], times) for (point, launch), times in measured.items()]
    facts = {run: {"session": session or None, "pair": pair} for (_, session, pair), run in numbers.items()}
    return results_of(path, "csv", records, [f"{path}: {warning}" for warning in warnings], facts)


class _Lines:
    """The lines that hold something. `number` is that of the last one, `comment` the last that began with #."""

    def __init__(self, file: IO[str], path: str) -> None:
        self._file, self._path = file, path
        self.number = 0
        self.comment = ""

    def __iter__(self) -> Iterator[str]:
        while line := self._file.readline(_LONGEST_LINE):
            self.number += 1
            if len(line) == _LONGEST_LINE:
                raise self.error(f"longer than {_LONGEST_LINE} characters: not a table")
            text = line.lstrip()
            if text.startswith("#"):
                self.comment = text.lstrip("# ")
            elif text:
                yield line

    def error(self, message: str, hint: str = "", column: str = "") -> ResultsError:
        """What is wrong in the line that was read last."""
        where = f"line {self.number}, column {column}" if column else f"line {self.number}"
        return ResultsError(f"{self._path}: {where}: {message}", hint)


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _header(lines: _Lines) -> tuple[list[str], Iterator[list[str]]]:
    """The names of the columns, and the rows below."""
    below = iter(lines)
    first = next(below, "")
    delimiter = _delimiter(first)
    names = _split(first, delimiter)
    if names and all(map(cells.NUMBER.fullmatch, names)):
        names = _split(lines.comment, delimiter)
        if not {"bytes", "seconds"} <= set(map(str.lower, names)):
            raise lines.error("a row of numbers, and no line above it names the columns", "begin with bytes,seconds")
        below = chain([first], below)
    return [name.lower() for name in names], csv.reader(below, delimiter=delimiter, strict=True)


def _columns(names: Sequence[str], lines: _Lines) -> dict[str, int]:
    """Where the columns are that we know."""
    twice = [name for name in _KNOWN if names.count(name) > 1]
    if twice:
        raise lines.error("there are two columns of this name", "name each once", twice[0])
    found = {name: names.index(name) for name in _KNOWN if name in names}
    for wanted, like in (("seconds", _OTHER_UNIT), ("bytes", _SIZE)):
        if wanted not in found:
            there = ", ".join(name or "(empty)" for name in names)
            other = next(((name, unit) for name in names if (unit := like.search(name))), None)
            raise lines.error(f"no column {wanted} among {there:.200}", _convert(wanted, *other) if other else _ASK)
    return found


def _convert(wanted: str, name: str, unit: re.Match[str]) -> str:
    if wanted == "bytes":
        return f"write {name} in bytes and name the column bytes"
    factor = _PER_SECOND.get((unit[1] or unit[2]).lower(), "1e6")
    return f"times are in seconds: divide {name} by {factor} and name the column seconds"


def _ignored(names: Sequence[str]) -> Iterator[str]:
    """A warning of the columns that mean nothing to us: they may be what tells rows apart."""
    strange = [name for name in names if name not in _KNOWN and name]
    if strange:
        near = [difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.75) for name in strange]
        meant = ", ".join(f"{name} for {close[0]}" for name, close in zip(strange, near, strict=True) if close)
        yield f"ignored columns: {', '.join(strange):.200}" + (f"; perhaps meant: {meant:.200}" if meant else "")


def _rows(
    rows: Iterator[list[str]], columns: Mapping[str, int], width: int, lines: _Lines
) -> Iterator[tuple[Point, Launch, float]]:
    """Point, launch and seconds of every row."""
    curves: dict[Any, tuple[dict[str, Any], dict[str, Point]]] = {}  # rows repeat each other: what was read is kept
    launches: dict[Any, Launch] = {}
    size, at = columns["bytes"], columns["seconds"]
    of_curve = _getter([columns[name] for name in cells.POINT if name in columns and name != "bytes"])
    of_launch = _getter([columns[name] for name in _LAUNCH if name in columns])
    try:
        for row in rows:
            if len(row) != width and (len(row) < width or any(map(str.strip, row[width:]))):
                raise lines.error(f"{len(row)} cell{'s' * (len(row) > 1)}, the header has {width}")
            which, where = of_curve(row), of_launch(row)
            if (curve := curves.get(which)) is None:
                keys = {name: _cell(read, row, name, columns, lines) for name, read in cells.POINT.items()}
                curve = curves[which] = keys, {}
            if (point := curve[1].get(row[size])) is None:
                keys = curve[0] | {"bytes": _cell(cells.size, row, "bytes", columns, lines)}
                point = curve[1][row[size]] = Point(**keys)
            if (launch := launches.get(where)) is None:
                run, session, pair = (_cell(read, row, name, columns, lines) for name, read in _LAUNCH.items())
                launch = launches[where] = run, session, pair
            try:
                yield point, launch, cells.seconds(row[at])
            except ResultsError as error:
                raise lines.error(error.message, error.hint, "seconds") from error
    except csv.Error as error:
        raise lines.error(f"not CSV: {error}", "is a quotation mark missing?") from error


def _cell(read: Callable[[str], Any], row: list[str], name: str, columns: Mapping[str, int], lines: _Lines) -> Any:
    """What a cell of a row says; a key without a column is empty."""
    try:
        return read(row[columns[name]] if name in columns else "")
    except ResultsError as error:
        raise lines.error(error.message, error.hint, name) from error


def _getter(at: Sequence[int]) -> Callable[[Sequence[str]], Any]:
    """The cells at these places: something to look up what is known of them."""
    return itemgetter(*at) if at else lambda _: None


def _run_numbers(launches: Iterable[Launch]) -> dict[Launch, int]:
    """A number from 1 on for each launch: its own where that tells all of them apart, else in order."""
    all_of_them = list(launches)
    own = [run for run, _, _ in all_of_them if run]
    if len(own) == len(set(own)) == len(all_of_them):
        return dict(zip(all_of_them, own, strict=True))
    return {launch: number for number, launch in enumerate(all_of_them, 1)}


def _record(point: Point, run: int, times: list[float]) -> Record:
    if len(times) == 1:
        seconds, statistic = Seconds(median=times[0]), "as_given"
    else:
        seconds, statistic = _samples(np.array(times)), "median_of_given"
    return Record(point=point, run=run, launch=launch_of(run), statistic=statistic, samples=len(times), seconds=seconds)


def _samples(times: Samples) -> Seconds:
    known = precision_of(times)
    low, high = known.interval()
    many = len(times) >= _PERCENTILES
    p5, p95 = map(float, np.quantile(times, (0.05, 0.95))) if many else (None, None)
    return Seconds(
        median=known.median, low=low, high=high, p5=p5, p95=p95, min=float(times.min()), max=float(times.max())
    )
