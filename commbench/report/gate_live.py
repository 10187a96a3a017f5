"""A gate while it measures: one line that moves on a person's terminal, plain lines everywhere else. On stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from commbench.records import Record
from commbench.report.text import clean

_SILENCE = 15.0
_BAR = 20


class GateView:
    """Told of pairs by the gate, and of lines by the desks of both sides."""

    def __init__(self, to: Console) -> None:
        self._to = to
        self._what = "starting"
        self._doing = ""
        self._shares: dict[str, float] = {}
        self._spoken = time.monotonic()
        self._live = Live(console=to, transient=True, auto_refresh=False, get_renderable=self._picture)

    def __enter__(self) -> Self:
        if self._to.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._live.stop()

    def side(self, name: str) -> SideView:
        """What the desk of a side talks to."""
        return SideView(self, name)

    # -- from the gate -------------------------------------------------------------------------------------

    def pair(self, number: int, last: int, what: str) -> None:
        self._what = f"pair {number} of {last}" + (f", {what}" if what else "")
        self._shares, self._doing = {}, ""
        self._refresh()

    def done(self, number: int, seconds: float) -> None:  # noqa: ARG002 - `pair` said it
        self.say(f"{self._what}: {seconds:.0f} s")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._spoken = time.monotonic()
        self._to.print(clean(text, 400), style="dim", soft_wrap=True)

    # -- from the sides ------------------------------------------------------------------------------------

    def at(self, side: str, line: Mapping[str, Any]) -> None:
        """What a side is doing."""
        self._doing = clean(f"{side}: {line.get('phase', '')} {line.get('what', '')}".strip())
        if line.get("points"):
            self._shares[side] = float(line["finished"]) / float(line["points"])
        if not self._to.is_terminal and time.monotonic() - self._spoken >= _SILENCE:
            self.say(f"now: {self._what}, {self._doing}")
        self._refresh()

    def _refresh(self) -> None:
        if self._live.is_started:
            self._live.refresh()

    def _picture(self) -> Table:
        bar = Table.grid(padding=(0, 1))
        done = sum(self._shares.values()) / 2
        bar.add_row(
            ProgressBar(total=1.0, completed=done, width=_BAR), Text(f"{self._what}  {self._doing}", style="dim")
        )
        return bar


class SideView:
    """One side's view of its launches."""

    def __init__(self, gate: GateView, name: str) -> None:
        self._gate, self._name = gate, name
        self._said: set[str] = set()

    def run(self, header: Mapping[str, Any]) -> None:
        """Its launch has begun."""

    def note(self, text: str) -> None:
        if text not in self._said:  # every launch finds it again
            self._said.add(text)
            self._gate.say(f"note: {self._name}: {text}")

    def now(self, line: Mapping[str, Any]) -> None:
        self._gate.at(self._name, line)

    def record(self, record: Record) -> None:
        if record.status != "ok":
            self._gate.say(f"{self._name}: {record.status}: {record.reason}")
