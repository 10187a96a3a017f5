"""What is known about one point in one run, and the line of the results file that holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from commbench.ops import DTYPES, OPERATIONS
from commbench.spec import UNKNOWN, Point

Status = Literal["ok", "failed", "hung"]
Check = Literal["ok", "wrong", "skipped"]

UNREAD = "unread"
"""The state of cores where a probe failed."""


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
        states: each visit: the cores' hand-over probe before it ("" where there is none, "unread" when it failed), the
            state after it, and what the visit alone came to:
            [{"seconds": 5e-8, "state": "near", "after": "near", "median": 1.2e-6, "samples": 800}].
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
    states: Sequence[Mapping[str, Any]] = ()
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
            plain[name] = asdict(value) if isinstance(value, Seconds) else _plain(value)
        return plain | dict(self.extra)

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Record:
        """The record of one line.

        Raises:
            KeyError, TypeError: when the line is not a record of a schema we know.
        """
        refuse_other_types(line)
        point = Point.from_key(line)
        seconds = line.get("seconds")
        return cls(
            point=point,
            run=line["run"],
            launch=line.get("launch", ""),
            seconds=None if seconds is None else Seconds(**{k: seconds[k] for k in _SECONDS_FIELDS if k in seconds}),
            slowest=None if line.get("slowest") is None else (line["slowest"][0], line["slowest"][1]),
            states=tuple(line.get("states", ())),
            flags=tuple(line.get("flags", ())),
            extra={key: line[key] for key in line.keys() - _KNOWN_KEYS},
            **{name: line[name] for name in _PLAIN_FIELDS if name in line},
        )


_SECONDS_FIELDS = tuple(f.name for f in fields(Seconds))


def _plain(value: Any) -> Any:
    """What JSON can write of a mapping or a sequence that was left unread."""
    if isinstance(value, Mapping):
        return dict(value.items())
    return value if isinstance(value, str) or not isinstance(value, Sequence) else list(value)


_POINT_FIELDS = tuple(f.name for f in fields(Point))
_RECORD_FIELDS = tuple(f.name for f in fields(Record) if f.name not in ("point", "run", "launch", "extra"))
_PLAIN_FIELDS = tuple(name for name in _RECORD_FIELDS if name not in ("seconds", "slowest", "states", "flags"))

_KNOWN_KEYS = frozenset(("kind", "run", "launch", *_POINT_FIELDS, *_RECORD_FIELDS))

_STATUSES, _CHECKS = frozenset(get_args(Status)), frozenset(get_args(Check))

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
    **dict.fromkeys(("bytes", "run"), lambda value: _is_count(value) and value > 0),
    **dict.fromkeys(("ranks", "samples"), _is_count),
    "root": lambda value: value is None or _is_count(value),
    "in_place": lambda value: isinstance(value, bool),
    "flags": _is_list_of_texts,
    "op": lambda value: _is_text(value) and value in (*OPERATIONS, UNKNOWN),
    "dtype": lambda value: _is_text(value) and value in (*DTYPES, UNKNOWN),
    "status": lambda value: _is_text(value) and value in _STATUSES,
    "check": lambda value: _is_text(value) and value in _CHECKS,
    **dict.fromkeys(("seconds", "histogram"), lambda value: value is None or isinstance(value, dict)),
    "how": lambda value: isinstance(value, dict),
    "states": lambda value: isinstance(value, list) and all(isinstance(state, dict) for state in value),
    "slowest": lambda value: value is None or _is_slowest(value),
}


def refuse_other_types(line: Mapping[str, Any]) -> None:
    """Files come from anywhere: a value that passes here needs no second look by those who compute with it."""
    for name, holds in _RULES.items():
        if name in line and not holds(line[name]):
            raise TypeError(f"{name} is {line[name]!r:.60}")
    for name, value in (line.get("seconds") or {}).items():
        if type(value) is float and 0 <= value <= _HIGHEST:  # nearly all of them
            continue
        if name in _SECONDS_FIELDS and not (_is_number(value) or (value is None and name != "median")):
            raise TypeError(f"seconds.{name} is {value!r:.60}")
