"""A sweep while it runs: a table that fills on a person's terminal, plain lines everywhere else. On stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from commbench.analyze.summary import PointSummary, points
from commbench.records import Record
from commbench.report.tables import curve_table, plain_row, row_cells
from commbench.report.text import clean, words
from commbench.spec import Point
from commbench.units import format_seconds

_SILENCE = 5.0
_ROWS_ABOVE_AND_BELOW = 8
_BAR = 30


class Counted:
    """What both views know: the records so far, and how far the sweep is.

    Attributes:
        runs: how many runs the sweep has.
        records: finished and partial ones of all runs, the last of each point and run.
    """

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.header: Mapping[str, Any] = {}
        self.records: dict[tuple[Point, int], Record] = {}
        self.doing: Mapping[str, Any] = {}

    def take_run(self, header: Mapping[str, Any]) -> None:
        self.header = header

    def take_record(self, record: Record) -> None:
        self.records[record.point, record.run] = record

    def row(self, point: Point) -> PointSummary | Point:
        """The point over all runs so far, or itself when nothing is known yet."""
        known = [record for (at, _), record in self.records.items() if at == point]
        return points(known)[0] if known else point

    def share_done(self) -> float:
        """0 to 1, by time: of this run what its budget says, of the others all or nothing."""
        run = int(self.header.get("run", 1))
        budget = float(self.doing.get("seconds") or 0)
        elapsed = float(self.doing.get("elapsed") or 0)
        here = min(elapsed / budget, 1.0) if budget else 0.0
        return min((run - 1 + here) / self.runs, 1.0)

    def words(self) -> str:
        """The line "run 2 of 3 · timing allreduce 4M · 12 of 24 points · 312 us · 34 s left"."""
        doing, run = self.doing, int(self.header.get("run", 1))
        parts = [f"run {run} of {self.runs}"] if self.runs > 1 and self.header else []
        parts.append(f"{doing.get('phase', 'starting')} {doing.get('what', '')}".strip())
        if doing.get("points"):
            parts.append(f"{doing['finished']} of {doing['points']} points")
            if doing.get("median"):
                parts.append(format_seconds(float(doing["median"])))
            rest = float(doing["seconds"]) - float(doing["elapsed"]) + (self.runs - run) * float(doing["seconds"])
            parts.append(f"{max(rest, 0):.0f} s left")
        elif self.header:
            # Rank 0 speaks of its walk once a second; short sweeps are over before.
            finished = sum(not record.partial for (_, of), record in self.records.items() if of == run)
            parts.append(f"{finished} of {self.header.get('points', 0)} points")
        return " · ".join(clean(part) for part in parts)


class LogView(Counted):
    """Each finished row once, and every few seconds what is being measured: for logs and ranks of a launcher."""

    def __init__(self, runs: int, to: Console) -> None:
        super().__init__(runs)
        self._to = to
        self._curve: Point | None = None
        self._spoken = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def run(self, header: Mapping[str, Any]) -> None:
        self.take_run(header)
        self._curve = None
        self._say(f"run {header['run']} of {self.runs}: {header['points']} points, {header['ranks']} ranks")

    def note(self, text: str) -> None:
        self._say(f"note: {clean(text, 400)}")

    def now(self, line: Mapping[str, Any]) -> None:
        self.doing = line
        if time.monotonic() - self._spoken >= _SILENCE:
            self._say(f"now: {self.words()}")

    def record(self, record: Record) -> None:
        self.take_record(record)
        if record.partial:
            return
        if record.point.curve != self._curve:
            self._curve = record.point.curve
            self._say(", ".join(words(self._curve)))
            self._say(plain_row())
        self._say(plain_row(row_cells(points([record])[0])))

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        self._to.print(text, soft_wrap=True)


class TerminalView(Counted):
    """One row a size, filled as measured, and a bar. Gone when the sweep is over: the table is printed then."""

    def __init__(self, runs: int, to: Console) -> None:
        super().__init__(runs)
        self._to = to
        self._order: list[Point] = []
        self._at: Point | None = None
        self._live = Live(console=to, transient=True, auto_refresh=False, get_renderable=self._picture)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._live.stop()

    def run(self, header: Mapping[str, Any]) -> None:
        self.take_run(header)
        self._live.refresh()

    def note(self, text: str) -> None:
        self._to.print(f"note: {clean(text, 400)}", style="dim", soft_wrap=True)

    def now(self, line: Mapping[str, Any]) -> None:
        self.doing = line
        if line.get("point"):
            self._at = Point.from_key(line["point"])
        self._live.refresh()

    def record(self, record: Record) -> None:
        self.take_record(record)
        if record.point not in self._order:
            self._order.append(record.point)
        self._live.refresh()

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._at is not None:
            curve = self._at.curve
            on_curve = sorted({p for p in self._order if p.curve == curve} | {self._at}, key=lambda p: p.bytes)
            here = on_curve.index(self._at)
            room = max(self._to.height - 6, _ROWS_ABOVE_AND_BELOW)
            first = max(min(here - room // 2, len(on_curve) - room), 0)
            parts = [
                Text(", ".join(words(curve)), style="bold"),
                curve_table(self.row(point) for point in on_curve[first : first + room]),
            ]
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=self.share_done(), width=_BAR), Text(self.words(), style="dim"))
        return Group(*parts, bar)
