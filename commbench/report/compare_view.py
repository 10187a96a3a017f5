"""Comparisons as tables for a terminal, a log, or a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from commbench.analyze.compare import Compared, Comparison, Pair
from commbench.report.compare_rows import columns, rows, units
from commbench.report.compare_words import LABEL, NO_VERDICT, Words, left_out_lines


def compared_view(compared: Compared) -> Group:
    """All comparisons, an empty line between them, then what was left out."""
    parts: list[RenderableType] = []
    for comparison in compared.comparisons:
        parts += [*([""] if parts else []), Group(*_parts(comparison))]
    left = [Text(line, style="yellow") for line in left_out_lines(compared)]
    return Group(*parts, *left, Text(NO_VERDICT, style="dim"))


class RatioTable:
    """The rows of some pairs: as many pairs beside each other as the width allows, the rest in tables below."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left = list(self._words.comparison.pairs)
        while left:
            beside = len(left)
            while beside > 1 and not self._fits(left[:beside], console, options):
                beside -= 1
            yield self._table(left[:beside])
            yield Text(units(self._words, left[:beside]), style="dim")
            left = left[beside:]

    def _fits(self, pairs: Sequence[Pair], console: Console, options: ConsoleOptions) -> bool:
        unbounded = options.update(max_width=1000)
        return Measurement.get(console, unbounded, self._table(pairs)).maximum <= options.max_width

    def _table(self, pairs: Sequence[Pair]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        for name in columns(self._words, pairs):
            table.add_column(Text(name), justify="right", no_wrap=True)
        for cells in rows(self._words, pairs):
            table.add_row(*map(Text, cells))
        return table


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    words = Words(comparison)
    what, *rest = words.header
    yield Text(what, style="bold")
    yield from (Text(line, style="dim") for line in rest)
    yield from map(Text, words.legend)
    yield RatioTable(words)
    for pair in comparison.pairs:
        if len(comparison.pairs) > 1:
            yield Text(words.heading(pair), style="bold")
        yield _labelled(words.pair_lines(pair))
    yield _labelled([("changed", line) for line in words.changes()] + [("note", line) for line in words.notes()])
    for pair in comparison.pairs:
        yield Text(words.in_short(pair), style="bold")


def _labelled(lines: Iterable[tuple[str, str]]) -> Table:
    """Texts wrapped beside their labels; a label that repeats is written once."""
    grid = Table.grid()
    grid.add_column(width=LABEL, style="bold")
    grid.add_column()
    before = ""
    for label, text in lines:
        grid.add_row(Text("" if label == before else label), Text(text))
        before = label
    return grid
