"""What one cell of a table means: text to a value. Shared by the importers of tools that write tables.

Each function raises ResultsError with what is wrong and a hint; where it is wrong the caller knows. An empty cell
of a key says that it is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from commbench.errors import ResultsError, UsageError
from commbench.ops import parse_dtype, parse_operations, parse_reduction
from commbench.spec import UNKNOWN

NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_LARGEST_SIZE = 1 << 60
_SHORTEST, _LONGEST = 1e-12, 1e9  # seconds: what is beyond is in another unit, or no time at all
_MOST = 1 << 31  # ranks, runs, pairs
_LONGEST_TEXT = 200
_BOOLEANS = {**dict.fromkeys(("true", "yes", "1"), True), **dict.fromkeys(("false", "no", "0", ""), False)}


def seconds(cell: str) -> float:
    """A time in seconds, above 0."""
    value = float(cell) if NUMBER.fullmatch(cell) else math.nan
    if not _SHORTEST <= value <= _LONGEST:
        raise ResultsError(f"{cell!r:.60} is no time", "times are in seconds and above 0, as 1.25e-5")
    return value


def size(cell: str) -> int:
    """A size in bytes, 0 too; 1024.0 and 1e3 are whole numbers."""
    if _WHOLE.fullmatch(cell.strip()):
        return int(cell)
    value = float(cell) if NUMBER.fullmatch(cell) else math.nan
    if not 0 <= value <= _LARGEST_SIZE or value != int(value):
        raise ResultsError(f"{cell!r:.60} is no size", "sizes are whole numbers of bytes, as 65536")
    return int(value)


def number(cell: str) -> int | None:
    """A number from 0 on, None for an empty cell."""
    text = cell.strip()
    if not text:
        return None
    if not _WHOLE.fullmatch(text) or int(text) > _MOST:
        raise ResultsError(f"{cell!r:.60} is no number from 0 on", "leave the cell empty where it is not known")
    return int(text)


def ranks(cell: str) -> int:
    """A number of ranks, 0 where it is not known."""
    return number(cell) or 0


def root(cell: str) -> int | None:
    """A rank; nccl-tests writes -1 for none."""
    return None if cell.strip() == "-1" else number(cell)


def text(cell: str) -> str:
    """A text, "" where there is none."""
    if len(cell) > _LONGEST_TEXT:
        raise ResultsError(f"longer than {_LONGEST_TEXT} characters")
    return cell.strip()


def name(cell: str) -> str:
    """A back end, device, path, mode or cache."""
    return text(cell) or UNKNOWN


def in_place(cell: str) -> bool:
    """True or false; false where it is not said."""
    word = cell.strip().lower()
    if word not in _BOOLEANS:
        raise ResultsError(f"{cell!r:.60} is neither true nor false", "write true or false")
    return _BOOLEANS[word]


def operation(cell: str) -> str:
    """An operation in any spelling that --op takes."""
    return _parsed(cell, _one_operation) or UNKNOWN


def dtype(cell: str) -> str:
    """A data type in any spelling that --dtype takes."""
    return _parsed(cell, parse_dtype) or UNKNOWN


def redop(cell: str) -> str | None:
    """A reduction; nccl-tests writes none."""
    return None if cell.strip().lower() == "none" else _parsed(cell, parse_reduction)


def _one_operation(word: str) -> str:
    found = parse_operations(word)
    if len(found) > 1:
        raise UsageError("", "one operation a row")
    return found[0]


def _parsed(cell: str, parse: Callable[[str], str]) -> str | None:
    word = cell.strip()
    if word.lower() in ("", UNKNOWN):
        return None
    try:
        return parse(word)
    except UsageError as error:
        raise ResultsError(f"{cell!r:.60} is not known", error.hint) from error


POINT: Mapping[str, Callable[[str], Any]] = {
    "op": operation,
    "in_place": in_place,
    "dtype": dtype,
    "redop": redop,
    "root": root,
    "bytes": size,
    "ranks": ranks,
    **dict.fromkeys(("backend", "device", "path", "mode", "cache"), name),
    "variant": text,
}
"""How the cells of a point's keys are read."""
