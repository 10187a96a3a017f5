"""The results file: the only bridge between measuring and explaining.

JSON Lines, appended and flushed as measured, readable after a kill. One line is one of

    {"kind": "run", "schema": 1, ...}      opens a launch: who, where, with what
    {"kind": "record", ...}                one point in one run
    {"kind": "trace", ...}                 its time-ordered samples; readers skip it by its prefix
    {"kind": "end", "status": ...}         closes a launch; without it the launch was killed, its records count

A point that was visited but not finished is written with the flag "partial", and again when it is finished:
of several records of one point in one run the last counts. Unknown keys are kept. Base units throughout.

Schema history:
    1  2026-11  the first
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from commbench.errors import ResultsError
from commbench.ops import DTYPES, OPERATIONS
from commbench.spec import Point

SCHEMA = 1
_TRACE_PREFIX = '{"kind":"trace"'
_MAX_LINE = 8 << 20

Status = Literal["ok", "failed", "hung"]
Check = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Times of one point in one run; `low` and `high` bound the median (95 %), None where nothing is known."""

    median: float
    low: float | None = None
    high: float | None = None
    p5: float | None = None
    p25: float | None = None
    p75: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One point in one run.

    Attributes:
        run: replicate number: one launch of all processes (two when resumed).
        launch: id of the launch that measured it.
        status: "failed" and "hung" carry a `reason` and no seconds.
        statistic: what `seconds` is made of; ours is "median_of_max": per iteration the slowest rank, then the median.
        samples: iterations counted.
        seconds: None when nothing was measured.
        slowest: (rank, share of iterations in which it alone was last), None with one rank.
        states: the cores' hand-over probe at each visit: [{"seconds": ..., "state": "near"}].
        proven_path: the interconnect that evidence showed, None when nothing was proven.
        proof: what proved it.
        check: whether the answer was right, before and after timing.
        stop: why measuring stopped: "precision", "iterations", "budget", "interrupted".
        flags: keys of `stats.FLAGS`.
        how: loop, warm-up, chunk, depth, slices, visits: what the time loop did.
        histogram: `stats.LogHistogram.to_json`.
        extra: keys of the line that this version does not know.
    """

    point: Point
    run: int
    launch: str = ""
    status: Status = "ok"
    reason: str = ""
    statistic: str = "median_of_max"
    samples: int = 0
    seconds: Seconds | None = None
    slowest: tuple[int, float] | None = None
    states: tuple[Mapping[str, Any], ...] = ()
    proven_path: str | None = None
    proof: str | None = None
    check: Check = "skipped"
    stop: str = ""
    flags: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    histogram: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        return "partial" in self.flags

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"kind": "record", "run": self.run, "launch": self.launch, **self.point.key()}
        for name in _RECORD_FIELDS:
            value = getattr(self, name)
            plain[name] = asdict(value) if isinstance(value, Seconds) else value
        return plain | dict(self.extra)

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Record:
        """The record of one line.

        Raises:
            KeyError, TypeError: when the line is not a record of a schema we know.
        """
        _refuse_other_types(line)
        point = Point.from_key(line)
        seconds = line.get("seconds")
        known = {"kind", "run", "launch", "variant", *point.key(), *_RECORD_FIELDS}
        return cls(
            point=point,
            run=line["run"],
            launch=line.get("launch", ""),
            seconds=None if seconds is None else Seconds(**{k: seconds[k] for k in _SECONDS_FIELDS if k in seconds}),
            slowest=None if line.get("slowest") is None else (line["slowest"][0], line["slowest"][1]),
            states=tuple(line.get("states", ())),
            flags=tuple(line.get("flags", ())),
            extra={key: value for key, value in line.items() if key not in known},
            **{name: line[name] for name in _PLAIN_FIELDS if name in line},
        )


_SECONDS_FIELDS = tuple(f.name for f in fields(Seconds))
_RECORD_FIELDS = tuple(f.name for f in fields(Record) if f.name not in ("point", "run", "launch", "extra"))
_PLAIN_FIELDS = tuple(name for name in _RECORD_FIELDS if name not in ("seconds", "slowest", "states", "flags"))

_HIGHEST = 1 << 62


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _HIGHEST


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_slowest(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_count(value[0]) and _is_number(value[1])  # noqa: PLR2004


_RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("backend", "device", "path", "mode", "cache", "variant"), _is_text),
    **dict.fromkeys(("launch", "reason", "statistic", "stop"), _is_text),
    **dict.fromkeys(("redop", "proven_path", "proof"), lambda value: value is None or _is_text(value)),
    **dict.fromkeys(("bytes", "ranks", "run"), lambda value: _is_count(value) and value > 0),
    "samples": _is_count,
    "root": lambda value: value is None or _is_count(value),
    "in_place": lambda value: isinstance(value, bool),
    "flags": _is_list_of_texts,
    "op": lambda value: _is_text(value) and value in OPERATIONS,
    "dtype": lambda value: _is_text(value) and value in DTYPES,
    "status": lambda value: _is_text(value) and value in get_args(Status),
    "check": lambda value: _is_text(value) and value in get_args(Check),
    **dict.fromkeys(("seconds", "histogram"), lambda value: value is None or isinstance(value, dict)),
    "how": lambda value: isinstance(value, dict),
    "states": lambda value: isinstance(value, list) and all(isinstance(state, dict) for state in value),
    "slowest": lambda value: value is None or _is_slowest(value),
}


def _refuse_other_types(line: Mapping[str, Any]) -> None:
    """Files come from anywhere: a value that passes here needs no second look by those who compute with it."""
    for name, holds in _RULES.items():
        if name in line and not holds(line[name]):
            raise TypeError(f"{name} is {line[name]!r:.60}")
    for name, value in (line.get("seconds") or {}).items():
        if name in _SECONDS_FIELDS and not (_is_number(value) or (value is None and name != "median")):
            raise TypeError(f"seconds.{name} is {value!r:.60}")


@dataclass(frozen=True, slots=True)
class Results:
    """One results file, read.

    Attributes:
        path: where it was read from.
        runs: the "run" lines, as they are.
        records: one per point and run, in file order; partial ones only where no finished one exists.
        ends: the "end" lines.
        warnings: what was wrong with the file and did not stop the reading.
    """

    path: str
    runs: list[dict[str, Any]]
    records: list[Record]
    ends: list[dict[str, Any]]
    warnings: list[str]

    @property
    def header(self) -> dict[str, Any]:
        """The first launch's facts, {} for a file without."""
        return self.runs[0] if self.runs else {}


def load(path: str | Path) -> Results:
    """Read a results file; a damaged last line is dropped with a warning.

    Raises:
        ResultsError: the file is missing, empty, not ours, damaged in the middle, or of a newer schema.
    """
    runs: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    warnings: list[str] = []
    records: dict[tuple[Point, int], Record] = {}
    for line in _lines(Path(path), warnings):
        kind = line.get("kind")
        try:
            if kind == "run":
                _refuse_newer(path, line)
                _refuse_other_types({"run": line["run"]})
                runs.append(line)
            elif kind == "record":
                record = Record.from_json(line)
                before = records.get((record.point, record.run))
                if before is None or before.partial or not record.partial:
                    records[record.point, record.run] = record
            elif kind == "end":
                ends.append(line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ResultsError(
                f"{path}: a {kind} line is not what schema {SCHEMA} says: {error}", "was the file edited?"
            ) from error
    if not runs and not records:
        raise ResultsError(f"{path}: no run in it", "is it a commbench results file?")
    return Results(str(path), runs, list(records.values()), ends, warnings)


def _refuse_newer(path: str | Path, line: Mapping[str, Any]) -> None:
    schema = line.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ResultsError(
            f"{path}: written in schema {schema} by commbench {line.get('commbench', '?')}; this one reads {SCHEMA}",
            "pip install --upgrade commbench",
        )


def _lines(path: Path, warnings: list[str]) -> Iterator[dict[str, Any]]:
    number = 0
    broken: tuple[int, str] | None = None
    try:
        with path.open(encoding="utf-8") as file:
            while text := file.readline(_MAX_LINE):
                number += 1
                if broken:
                    raise ResultsError(
                        f"{path}: line {broken[0]} is damaged: {broken[1]}", "is it a commbench results file?"
                    )
                if text.startswith(_TRACE_PREFIX) or not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as error:
                    broken = number, str(error)
                    continue
                if not isinstance(line, dict):
                    broken = number, "not a JSON object"
                    continue
                yield line
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path}: not text, so not a results file", "is it a commbench results file?") from error
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error
    if number == 0:
        raise ResultsError(f"{path}: the file is empty", "the sweep that should have written it did not start")
    if broken and number == 1:
        raise ResultsError(f"{path}: not a results file: {broken[1]}", "is it a commbench results file?")
    if broken:
        warnings.append(f"{path}: dropped the last line, it was cut off (a killed run)")


def traces(path: str | Path) -> Iterator[tuple[Point, int, int, np.ndarray[Any, np.dtype[np.float32]]]]:
    """(point, run, stride, seconds) of every stored trace: each value stands for `stride` iterations."""
    with Path(path).open(encoding="utf-8") as file:
        for text in file:
            if text.startswith(_TRACE_PREFIX):
                line = json.loads(text)
                data = zlib.decompress(base64.b64decode(line["data"]))
                yield Point.from_key(line), line["run"], line["stride"], np.frombuffer(data, dtype="<f4")


def trace_line(point: Point, run: int, stride: int, seconds: Iterable[float]) -> dict[str, Any]:
    """The line that `traces` reads back."""
    data = base64.b64encode(zlib.compress(np.asarray(seconds, dtype="<f4").tobytes())).decode()
    return {"kind": "trace", "run": run, **point.key(), "stride": stride, "data": data}


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def dump_line(line: Mapping[str, Any]) -> str:
    """One line of the file, without its end. NaN and infinity are refused: no reader agrees on them."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


class Writer:
    """Appends lines to a results file and flushes each; opened before anything is measured.

    Raises:
        ResultsError: the file exists and neither `force` nor `append` is given, or it cannot be written.
    """

    def __init__(self, path: str | Path, *, append: bool = False, force: bool = False) -> None:
        self.path = Path(path)
        mode = "a" if append else "w" if force else "x"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = self.path.open(mode, encoding="utf-8")
        except OSError as error:
            if isinstance(error, FileExistsError) and self.path.exists():  # else it is a folder on the way to it
                raise ResultsError(
                    f"{path}: exists already", "--force overwrites it, --append adds to it, --resume completes it"
                ) from error
            raise ResultsError(
                f"{path}: cannot be written: {error.strerror}", "choose another file with --output"
            ) from error
        self.kept = append and self.path.stat().st_size > 0
        if self.kept:
            self._end_a_cut_line()

    def _end_a_cut_line(self) -> None:
        # A killed run leaves half a line; what follows must not be glued to it. A whole one stays: `load` counts it.
        with self.path.open("rb+") as file:
            file.seek(0, 2)
            size = file.tell()
            tail = min(size, _MAX_LINE)
            file.seek(size - tail)
            text = file.read(tail)
            start = text.rfind(b"\n") + 1
            if start < len(text) and _is_json(text[start:]):
                file.write(b"\n")
            else:
                file.truncate(size - tail + start)

    def write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(dump_line(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise ResultsError(
                f"{self.path}: cannot be written: {error.strerror}", "what was written before is kept"
            ) from error

    def close(self) -> None:
        """Close; a file that nothing was written to is removed."""
        with suppress(OSError):  # a full disk: `write` has said so
            self._file.close()
        if self.path.exists() and self.path.stat().st_size == 0:
            self.path.unlink()
