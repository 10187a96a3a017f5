"""Two launches alive at once that take turns: each visits a point while the other lies still.

Machines drift, and a neighbour comes and goes within seconds: what is measured minutes apart differs by that. Here the
same point is measured on both sides within a fraction of a second, so the ratio of the two sees little of it.

Rank 0 asks for its turn before each visit and before it ends ("turn" lines); the parent gives it by a line on its
standard input, which every launcher passes to rank 0. The other ranks sleep in a barrier meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commbench.errors import CommbenchError
from commbench.jobs.launch import Launch

Take = Callable[[Mapping[str, Any]], None]
Outcome = Mapping[str, Any] | CommbenchError
"""How a launch ended: its "end" line, or why it has none."""


class Turns:
    """Whose turn it is: they alternate, and one that is over is left out."""

    def __init__(self, first: int) -> None:
        self._last = 1 - first
        self._holder: int | None = None
        self._waiting: set[int] = set()
        self._over: set[int] = set()
        self._begun = False

    def wants(self, side: int) -> int | None:
        """`side` is done with its turn, if it had it, and asks for the next; returns who may go on now."""
        self._waiting.add(side)
        return self._next(side)

    def is_over(self, side: int) -> int | None:
        """`side` has ended; returns who may go on now."""
        self._waiting.discard(side)
        self._over.add(side)
        return self._next(side)

    @property
    def begun(self) -> bool:
        """Whether both have been ready at one time."""
        return self._begun

    def _next(self, side: int) -> int | None:
        if self._holder == side:
            self._holder = None
        # Whoever still starts would disturb the other: the first turn is given when both are ready.
        self._begun = self._begun or len(self._waiting) == 2  # noqa: PLR2004 - both
        other = 1 - self._last
        following = self._last if other in self._over else other
        if self._holder is not None or not self._begun or following not in self._waiting:
            return None
        self._waiting.discard(following)
        self._holder = self._last = following
        return following


def run_together(launches: Sequence[Launch], takes: Sequence[Take], first: int) -> dict[int, Outcome]:
    """Let two started launches take turns until both have ended; returns how, in the order of their ends.

    Where one ends before both were ready there is no pair, and the other one is not waited for.

    Args:
        launches: the two.
        takes: what receives the lines of each.
        first: which one has the first turn.
    """
    lines: queue.SimpleQueue[tuple[int, Outcome, bool]] = queue.SimpleQueue()

    def listen(side: int) -> None:
        try:
            end: Outcome = launches[side].run(lambda line: lines.put((side, line, False)))
        except CommbenchError as error:
            end = error
        lines.put((side, end, True))

    for side in (0, 1):
        threading.Thread(target=listen, args=(side,), daemon=True).start()
    turns, ends = Turns(first), dict[int, Outcome]()
    while len(ends) < len(launches):
        side, line, over = lines.get()
        following = None
        if over:
            ends[side] = line
            if not turns.begun:
                return ends
            following = turns.is_over(side)
        elif isinstance(line, Mapping) and line.get("kind") == "turn":
            following = turns.wants(side)
        elif isinstance(line, Mapping):
            takes[side](line)
        if following is not None:
            launches[following].give_turn()
    return ends
