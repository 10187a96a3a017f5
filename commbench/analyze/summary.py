"""Records to plain data: one summary a point over its runs, points to curves.

Everything here is cheap enough to be called again after each record of a running sweep.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.analyze.setting import UNKNOWN, Setting
from commbench.records import Check, Record, Seconds, Status
from commbench.spec import Point
from commbench.stats import interval_over

LOOP = ("slices", "depth", "batch")  # what `PointSummary.loops` holds

Interval = Literal["runs", "within_run"]

_STATUS_ORDER: tuple[Status, ...] = ("ok", "failed", "hung")
_CHECK_ORDER: tuple[Check, ...] = ("ok", "skipped", "wrong")

# Worst first: what makes the number wrong, then what makes it vague, then what one should only know.
_FLAG_ORDER = (
    "throttled", "state_changed", "two_modes", "drift", "unstable", "partial", "one_rank_last", "outliers",
    "autocorrelated", "few_samples", "too_short", "resumed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """One point over all its runs.

    Attributes:
        by_run: (run, median in seconds) of every run that gave a time, in order of runs.
        interval: what `seconds.low` and `.high` are: a t interval over runs, or the one run's own.
        seconds: None when no run gave a time. With several runs the median is the geometric mean of the
            runs' medians, p5 and p95 likewise; min and max are over all runs.
        samples: iterations of all runs together.
        status, check: the worst of the runs.
        reason: why the worst run failed.
        statistic: what a run's median is made of, "mixed" when runs differ.
        proven_path: every path that was proven in some run, None when none was.
        flags: of any run, worst first.
        loops: (slices, depth, batch) of the time loop in the runs that gave a time; 1 where a record does not say.
    """

    point: Point
    by_run: tuple[tuple[int, float], ...]
    interval: Interval
    seconds: Seconds | None
    samples: int
    status: Status
    reason: str
    check: Check
    statistic: str
    proven_path: str | None
    flags: tuple[str, ...]
    loops: frozenset[tuple[int, int, int]] = frozenset()

    @property
    def runs(self) -> int:
        """How many runs gave a time."""
        return len(self.by_run)

    @property
    def is_sound(self) -> bool:
        """Whether the time may stand for the operation: measured in all runs, and the answers were right."""
        return self.status == "ok" and self.check != "wrong" and self.seconds is not None

    @property
    def half_width(self) -> float | None:
        """Half of the interval as a share of the median."""
        known = self.seconds
        if known is None or known.low is None or known.high is None or not known.median > 0:
            return None
        return (known.high - known.low) / (2 * known.median)

    @property
    def algbw(self) -> float | None:
        """D / t in bytes per second."""
        return None if self.seconds is None else algbw(self.point, self.seconds.median)

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth: algbw x bus factor, in bytes per second."""
        return None if self.seconds is None else busbw(self.point, self.seconds.median)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points that differ in bytes only, measured in one setting.

    Attributes:
        key: their point with no size.
        points: sizes ascending.
    """

    key: Point
    points: tuple[PointSummary, ...]
    setting: Setting = UNKNOWN

    @property
    def runs(self) -> int:
        """The most runs that any of its points has."""
        return max((point.runs for point in self.points), default=0)


def algbw(point: Point, seconds: float) -> float | None:
    """D / t in bytes per second, None for a time that is none."""
    return point.bytes / seconds if seconds > 0 else None


def busbw(point: Point, seconds: float) -> float | None:
    """Bus bandwidth, algbw x bus factor, in bytes per second; None for a time that is none, or no known factor."""
    rate, factor = algbw(point, seconds), point.bus_factor
    return None if rate is None or factor is None else rate * factor


def points(records: Iterable[Record]) -> list[PointSummary]:
    """One summary a point, in the order the points first appear.

    Of several records of a point in one run the last counts, as in `results.load`, so that a running sweep
    may pass all it has seen. Partial ones count only for points that no run has finished yet; the flag
    stays, since something is missing.
    """
    groups: dict[Point, dict[int, Record]] = {}
    for record in records:
        group = groups.setdefault(record.point, {})
        if not record.partial or record.run not in group or group[record.run].partial:
            group[record.run] = record
    return [_summary(point, list(group.values())) for point, group in groups.items()]


def curves(summaries: Iterable[PointSummary], setting: Setting = UNKNOWN) -> list[Curve]:
    """The curves the points are on, in the order they first appear, sizes ascending."""
    groups: dict[Point, list[PointSummary]] = {}
    for summary in summaries:
        groups.setdefault(summary.point.curve, []).append(summary)
    return [Curve(key, tuple(sorted(group, key=lambda s: s.point.bytes)), setting) for key, group in groups.items()]


def _summary(point: Point, group: list[Record]) -> PointSummary:
    finished = [record for record in group if not record.partial] or group
    timed = sorted((r for r in finished if r.seconds is not None), key=lambda r: r.run)
    worst = max(group, key=lambda record: _STATUS_ORDER.index(record.status))
    proven = sorted({record.proven_path for record in group if record.proven_path})
    statistics = {record.statistic for record in timed}
    return PointSummary(
        point=point,
        by_run=tuple((r.run, r.seconds.median) for r in timed if r.seconds),
        interval="runs" if len(timed) > 1 else "within_run",
        seconds=_seconds([r.seconds for r in timed if r.seconds]),
        samples=sum(record.samples for record in timed),
        status=worst.status,
        reason=worst.reason,
        check=max((record.check for record in finished), key=_CHECK_ORDER.index),
        statistic=statistics.pop() if len(statistics) == 1 else "mixed" if statistics else group[0].statistic,
        proven_path=", ".join(proven) or None,
        flags=tuple(sorted({flag for record in group for flag in record.flags}, key=flag_rank)),
        loops=frozenset(map(_loop, timed)),
    )


def _loop(record: Record) -> tuple[int, int, int]:
    """Slices, depth and batch: where they change between two sizes, so does what is measured."""
    how = dict(record.how.items())
    slices, depth, batch = (how[name] if isinstance(how.get(name), int) else 1 for name in LOOP)
    return slices, depth, batch


def _seconds(runs: list[Seconds]) -> Seconds | None:
    if len(runs) < 2:  # noqa: PLR2004 - one run has its own interval, or there is none
        return runs[0] if runs else None
    medians = [run.median for run in runs]
    if min(medians) > 0:
        median, low, high = interval_over(medians)
    else:  # a broken or rounded time: shown as it is, with nothing claimed about it
        median, low, high = sum(medians) / len(medians), None, None
    lowest, highest = [run.min for run in runs], [run.max for run in runs]
    return Seconds(
        median=median,
        low=low,
        high=high,
        p5=_centre([run.p5 for run in runs]),
        p95=_centre([run.p95 for run in runs]),
        min=min((value for value in lowest if value is not None), default=None),
        max=max((value for value in highest if value is not None), default=None),
    )


def _centre(values: Sequence[float | None]) -> float | None:
    """Geometric mean, None unless every run has a value above 0."""
    logs = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(math.fsum(logs) / len(logs)) if len(logs) == len(values) else None


def flag_rank(flag: str) -> tuple[int, str]:
    """Sorts flags worst first, those of other versions last."""
    return (_FLAG_ORDER.index(flag) if flag in _FLAG_ORDER else len(_FLAG_ORDER), flag)
