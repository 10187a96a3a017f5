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
import gc
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from commbench.errors import ResultsError
from commbench.record_lines import RecordLines
from commbench.records import Record, refuse_other_types
from commbench.spec import Point

SCHEMA = 1
_TRACE_PREFIX = '{"kind":"trace"'
_MAX_LINE = 8 << 20


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
    try:
        with Path(path).open(encoding="utf-8") as file:
            return read(file, path)
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path}: not text, so not a results file", "is it a commbench results file?") from error
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from error


def read(file: IO[str], path: str | Path) -> Results:
    """Read an open results file, as `load` does; `path` is what it is called.

    Raises:
        ResultsError: as for `load`, but for what opening and decoding raise.
    """
    with _no_garbage():
        runs, records, ends, warnings = _read(file, path)
    if not runs and not records:
        raise ResultsError(f"{path}: no run in it", "is it a commbench results file?")
    return Results(str(path), runs, records, ends, warnings)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Whatever is made here stays: looking through it for garbage again and again would take a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _read(
    file: IO[str], path: str | Path
) -> tuple[list[dict[str, Any]], list[Record], list[dict[str, Any]], list[str]]:
    runs: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    warnings: list[str] = []
    quick = RecordLines()
    records: dict[tuple[int, int], Record] = {}
    for line in _lines(file, path, warnings, quick):
        kind = "record" if isinstance(line, Record) else line.get("kind")
        try:
            if isinstance(line, Record) or kind == "record":
                record = line if isinstance(line, Record) else Record.from_json(line)
                point = record.point if record is line else quick.known(record.point)
                before = records.get((id(point), record.run))
                if before is None or before.partial or not record.partial:
                    records[id(point), record.run] = record
            elif kind == "run":
                _refuse_newer(path, line)
                refuse_other_types({"run": line["run"]})
                runs.append(line)
            elif kind == "end":
                ends.append(line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ResultsError(
                f"{path}: a {kind} line is not what schema {SCHEMA} says: {error}", "was the file edited?"
            ) from error
    return runs, list(records.values()), ends, warnings


def _refuse_newer(path: str | Path, line: Mapping[str, Any]) -> None:
    schema = line.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ResultsError(
            f"{path}: written in schema {schema} by commbench {line.get('commbench', '?')}; this one reads {SCHEMA}",
            "pip install --upgrade commbench",
        )


def _lines(
    file: IO[str], path: str | Path, warnings: list[str], quick: RecordLines
) -> Iterator[dict[str, Any] | Record]:
    number = 0
    broken: tuple[int, str] | None = None
    while text := file.readline(_MAX_LINE):
        number += 1
        if broken:
            raise ResultsError(f"{path}: line {broken[0]} is damaged: {broken[1]}", "is it a commbench results file?")
        if text.startswith(_TRACE_PREFIX) or not text.strip():
            continue
        if (record := quick.read(text)) is not None:
            yield record
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
        if self.path.exists() and not self.path.is_file():
            # What is written is read again, and an empty file is removed: neither must happen to a device.
            raise ResultsError(f"{path}: not a file but a folder, a pipe or a device", "choose another with --output")
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
