"""Matrices of pairs, as tables for a terminal: a row for each source, a column for each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commbench.analyze.datasets import Dataset
from commbench.analyze.pairs import PairMatrix, matrices
from commbench.analyze.summary import PointSummary
from commbench.report.text import SEPARATOR, clean, what_and_where, words
from commbench.spec import COPY_PATHS, READ, Point
from commbench.units import format_gigabytes, format_microseconds, format_size

CORNER = "from\\to"
_HOW = ("variant", "mode", "cache")
_NOTHING = "-"
_WIDEST = 9  # columns of one block: 80 characters


def matrices_view(dataset: Dataset) -> Group | None:
    """All matrices of a dataset under what they share; None without any."""
    found = matrices(dataset.points)
    if not found:
        return None
    parts: list[RenderableType] = [
        Text(line, style="dim" if number else "bold") for number, line in enumerate(heading(dataset, found))
    ]
    for matrix in found:
        parts += [Text(), Text(title(matrix, found), style="bold"), *_tables(matrix)]
    parts += [Text(), *(Text(line, style="dim") for line in legend(found))]
    return Group(*parts)


def heading(dataset: Dataset, found: Sequence[PairMatrix]) -> list[str]:
    """What all of them are about, with what they were measured, and how."""
    first = found[0].key
    shared = replace(first, variant="" if "variant" not in _shared(found) else first.variant)
    how = SEPARATOR.join(words(first, [name for name in _shared(found) if name != "variant"]))
    return [*what_and_where(shared, dataset.setting), *([how] if how else [])]


def title(matrix: PairMatrix, found: Sequence[PairMatrix]) -> str:
    """The line "peer (peer access on) · GB/s at 128M", or "us at 8", with what not all of `found` share."""
    unit = "us" if matrix.is_latency else "GB/s"
    path = clean(matrix.key.path) + (f" ({means})" if (means := COPY_PATHS.get(matrix.key.path)) else "")
    also = words(matrix.key, _own(matrix.key, found))
    return SEPARATOR.join((path, f"{unit} at {format_size(matrix.bytes)}", *also))


def _own(key: Point, found: Sequence[PairMatrix]) -> list[str]:
    """The keys of how that tell a matrix from others of its path."""
    return [name for name in _HOW if name not in _shared(found) and key.path != READ]


def _shared(found: Sequence[PairMatrix]) -> list[str]:
    """The keys of how that are the same in all; the latency of a load has one mode and no others."""
    keys = [matrix.key for matrix in found if matrix.key.path != READ] or [found[0].key]
    return [name for name in _HOW if len({getattr(key, name) for key in keys}) == 1]


def rows(matrix: PairMatrix) -> list[tuple[str, ...]]:
    """A row for each source, its name first."""
    return [
        (clean(source), *(_cell(matrix, matrix.cells.get((source, target))) for target in matrix.targets))
        for source in matrix.sources
    ]


def legend(found: Sequence[PairMatrix]) -> list[str]:
    """How to read the matrices, and where the rest is."""
    star = "; *: odd, see below" if any("*" in cell for matrix in found for row in rows(matrix) for cell in row) else ""
    return [
        f"from row to column, GB/s = 1e9 bytes/s in one direction{star}",
        "`commbench fit` has alpha and B of every pair, `commbench show --json` every size",
    ]


def _cell(matrix: PairMatrix, point: PointSummary | None) -> str:
    if point is None:
        return _NOTHING
    if point.check == "wrong":
        return "WRONG"
    if point.seconds is None or point.algbw is None:
        return point.status
    text = format_microseconds(point.seconds.median) if matrix.is_latency else format_gigabytes(point.algbw)
    return text + (" *" if point.flags else "")


def _tables(matrix: PairMatrix) -> Iterator[Table]:
    """One table, or several below each other where there are many columns."""
    every = rows(matrix)
    for first in range(0, len(matrix.targets), _WIDEST):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        for name in (CORNER, *matrix.targets[first : first + _WIDEST]):
            table.add_column(Text(clean(name)), justify="right", no_wrap=True)
        for source, *cells in every:
            table.add_row(*map(Text, (source, *cells[first : first + _WIDEST])))
        yield table
