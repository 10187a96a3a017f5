"""Curves and fits as tables for a terminal, a log, or a pipe.

`COLUMNS` and `row_cells` are the one definition of a row; the live table, the plain log of a rank and
Markdown all use them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import median

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commbench.analyze.datasets import Dataset
from commbench.analyze.diagnose import by_curve, diagnose
from commbench.analyze.finding import BROKEN, Finding, marked_sizes
from commbench.analyze.fit import CurveFit, Estimate, fit_curve
from commbench.analyze.pairs import curves_alone, findings_of_pairs
from commbench.analyze.summary import Curve, PointSummary
from commbench.errors import CannotTellError
from commbench.report.matrix import matrices_view
from commbench.report.text import SEPARATOR, clean, common_words, header_lines, labels
from commbench.spec import UNKNOWN, Point
from commbench.units import (
    format_gigabytes,
    format_microseconds,
    format_percent,
    format_rate,
    format_seconds,
    format_size,
    format_size_about,
)

COLUMNS = ("size", "count", "time(us)", "±%", "algbw", "busbw", "p95", "check")
FIT_COLUMNS = ("curve", "alpha(us)", "B(GB/s)", "bus B", "n_1/2", "switch", "fit")
_WIDTHS = (7, 11, 10, 6, 8, 8, 10, 8)
_NOTHING = "-"
_WIDEST = 9.99
_LABEL = 8
_MOST_FINDINGS = 5


def row_cells(row: PointSummary | Point, odd: Collection[int] = ()) -> tuple[str, ...]:
    """One row, a cell for each of `COLUMNS`; a bare point is one that has not been measured yet.

    "*" after the check marks a point with flags, and one whose size is among the `odd` ones.
    """
    if isinstance(row, Point):
        return (format_size(row.bytes), _count(row), *[""] * (len(COLUMNS) - 2))
    known, width = row.seconds, row.half_width
    return (
        format_size(row.point.bytes),
        _count(row.point),
        _NOTHING if known is None else format_microseconds(known.median),
        _NOTHING if width is None else _percent(width),
        _NOTHING if row.algbw is None else format_gigabytes(row.algbw),
        _NOTHING if row.busbw is None else format_gigabytes(row.busbw),
        _NOTHING if known is None or known.p95 is None else format_microseconds(known.p95),
        _verdict(row) + (" *" if _is_odd(row, odd) else ""),
    )


def plain_row(cells: Sequence[str] = COLUMNS) -> str:
    """Cells in columns of fixed width, for logs that grow line by line; without an argument the column names."""
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def curve_table(rows: Iterable[PointSummary | Point], odd: Collection[int] = ()) -> Table:
    """The rows of one curve; the sizes in `odd` are marked."""
    table = _table()
    for name in COLUMNS:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row_cells(row, odd)), style=_style(row, odd))
    return table


def curve_view(curve: Curve, findings: Sequence[Finding] = ()) -> Group:
    """All about one curve: header, table, what the columns are, the fit, what is odd (`findings`, worst first)."""
    what, *rest = header_lines(curve)
    parts: list[RenderableType] = [Text(what, style="bold"), *(Text(line, style="dim") for line in rest)]
    odd = marked_sizes(findings)
    parts += [curve_table(curve.points, odd), Text(units_line(curve.points, odd), style="dim")]
    try:
        parts.append(fit_view(fit_curve(curve)))
    except CannotTellError as refusal:
        parts.append(_labelled([f"{'fit':{_LABEL}}none: {refusal.message}"]))
    return Group(*parts, *([findings_view(findings)] if findings else []))


def fit_view(fitted: CurveFit) -> Table:
    """`fit_lines` with their texts wrapped under each other."""
    return _labelled(fit_lines(fitted))


def dataset_views(datasets: Iterable[Dataset]) -> list[Group]:
    """Every curve of some datasets, and what their launches have to say; of many pairs their matrices instead."""
    views = []
    for dataset in datasets:
        found = diagnose(dataset)
        if matrices := matrices_view(dataset):
            views.append(matrices)
        if of_pairs := findings_of_pairs(dataset, found):
            views.append(Group(findings_view(of_pairs)))
        own = by_curve(found)
        views += [curve_view(curve, own.get(curve.key, ())) for curve in curves_alone(dataset)]
        if dataset.connecting:
            views.append(Group(connecting_line(dataset.connecting)))
        if dataset.notices:
            views.append(Group(*(Text(clean(notice, 400), style="yellow") for notice in dataset.notices)))
    return views


def connecting_line(seconds: Sequence[float]) -> str:
    """What it took to connect the ranks, over launches."""
    over = f", median of {len(seconds)} launches" if len(seconds) > 1 else ""
    return f"connect {format_seconds(median(seconds))} for a communicator of all ranks, on the slowest{over}"


def interval_words(runs: Sequence[int]) -> str:
    """What an interval is over, for points or fits with these numbers of runs."""
    fewest, most = min(runs, default=1), max(runs, default=1)
    if most == 1:
        return "within one run"
    return f"over {most} runs" if fewest == most else f"over {fewest} to {most} runs"


def units_line(points: Sequence[PointSummary], odd: Collection[int] = ()) -> str:
    """What the columns of these points hold, and which interval it is."""
    over = interval_words([point.runs for point in points if point.runs])
    star = "; *: odd, see below" if any(_is_odd(point, odd) for point in points) else ""
    return f"time and p95 in us, algbw and busbw in GB/s = 1e9 bytes/s; ±%: 95 % interval {over}{star}"


def fit_lines(fitted: CurveFit) -> list[str]:
    """Alpha, B and n_1/2 with their intervals, lines, quality and notes: a label of 8 and a text each."""
    size, ratio = fitted.largest_residual
    cut = f"{len(fitted.segments)} segments, " if len(fitted.segments) > 1 else ""
    bus = f", bus {format_rate(fitted.bus_bandwidth.value)}" if fitted.bus_bandwidth.value is not None else ""
    return [
        f"{'alpha':{_LABEL}}{_interval(fitted.alpha, format_seconds)}",
        f"{'B':{_LABEL}}{_interval(fitted.bandwidth, format_rate)}{bus}",
        f"{'n_1/2':{_LABEL}}{_interval(fitted.n_half, format_size_about)}",
        *rate_lines(fitted),
        *segment_lines(fitted),
        f"{'fit':{_LABEL}}{fitted.quality}, {cut}{fitted.points} sizes, intervals 95 % {interval_words([fitted.runs])}",
        f"{'':{_LABEL}}largest residual {100 * (ratio - 1):+.1f} % at {format_size(size)}",
        *(f"{'note':{_LABEL}}{clean(note, 400)}" for note in fitted.notes),
    ]


def rate_lines(fitted: CurveFit) -> list[str]:
    """From which size on the fitted curve runs at half and at 90 % of B; nothing where B is not known."""
    reached = [(what, fitted.reaches(share)) for what, share in (("half", 0.5), ("90 %", 0.9))]
    end = fitted.segments[-1].to_bytes
    words = [
        f"{what} of B from {format_size_about(size)} on{' (beyond the sweep)' if size > end else ''}"
        for what, size in reached
        if size is not None
    ]
    return [f"{'rate':{_LABEL}}{', '.join(words)}"] if words else []


def segment_lines(fitted: CurveFit) -> list[str]:
    """Of several segments one line each, with half the width of the intervals."""
    if len(fitted.segments) == 1:
        return []
    return [
        f"{'' if number else 'lines':{_LABEL}}{format_size(line.from_bytes)} to {format_size(line.to_bytes)}: "
        f"alpha {_half_width(line.alpha, format_seconds)}, B {_half_width(line.bandwidth, format_rate)}"
        for number, line in enumerate(fitted.segments)
    ]


def fit_cells(label: str, fitted: CurveFit) -> tuple[str, ...]:
    """One curve's fit, a cell for each of `FIT_COLUMNS`."""
    bus = fitted.bus_bandwidth.value
    return (
        label,
        _half_width(fitted.alpha, format_microseconds),
        _half_width(fitted.bandwidth, format_gigabytes),
        _NOTHING if bus is None else format_gigabytes(bus),
        _NOTHING if fitted.n_half.value is None else format_size_about(fitted.n_half.value),
        ", ".join(map(format_size, fitted.switches)) or _NOTHING,
        fitted.quality,
    )


def fits_view(fits: Sequence[CurveFit]) -> Group:
    """One fit in full; of several a table with what they share above and their notes below."""
    if len(fits) == 1:
        what, *rest = header_lines(fits[0].curve)
        return Group(Text(what, style="bold"), *(Text(line, style="dim") for line in rest), fit_view(fits[0]))
    return Group(
        Text(SEPARATOR.join(common_words([fitted.curve for fitted in fits])), style="bold"),
        fits_table(fits),
        Text(fits_note(fits), style="dim"),
        *map(Text, labelled_lines(fits)),
        *map(Text, labelled_notes(fits)),
    )


def fit_rows(fits: Sequence[CurveFit]) -> list[tuple[str, ...]]:
    """`fit_cells` of several fits, each under what tells its curve from the others."""
    return [fit_cells(name, fitted) for name, fitted in _named(fits)]


def labelled_lines(fits: Sequence[CurveFit]) -> list[str]:
    """The segments of those fits that have several, each under what tells its curve from the others."""
    return [f"{name}: {line[_LABEL:]}" for name, fitted in _named(fits) for line in segment_lines(fitted)]


def labelled_notes(fits: Sequence[CurveFit]) -> list[str]:
    """All notes of several fits, each under what tells its curve from the others."""
    return [f"{name}: {clean(note, 400)}" for name, fitted in _named(fits) for note in fitted.notes]


def _named(fits: Sequence[CurveFit]) -> list[tuple[str, CurveFit]]:
    names = labels([fitted.curve for fitted in fits])
    return [(name or clean(fitted.curve.key.op), fitted) for name, fitted in zip(names, fits, strict=True)]


def fits_table(fits: Sequence[CurveFit]) -> Table:
    """The fits of several curves, a row each."""
    table = _table()
    for name in FIT_COLUMNS:
        table.add_column(Text(name), justify="left" if name == FIT_COLUMNS[0] else "right", overflow="fold")
    for cells in fit_rows(fits):
        table.add_row(*map(Text, cells))
    return table


def fits_note(fits: Iterable[CurveFit]) -> str:
    """What the columns of `fits_table` hold, and which interval it is."""
    over = interval_words([fitted.runs for fitted in fits])
    return (
        "alpha is the first segment's, B the last one's; B is algorithm bandwidth, bus B = B x bus factor; "
        f"switch: where another line begins; ±: 95 % interval {over}"
    )


def findings_view(found: Sequence[Finding]) -> Table:
    """`finding_lines` with their texts wrapped under each other, what is broken in red."""
    grid = _labelled(finding_lines(found))
    for row, finding in zip(grid.rows, found, strict=False):
        row.style = "bold red" if finding.severity == BROKEN else "yellow"
    return grid


def finding_lines(found: Sequence[Finding]) -> list[str]:
    """The first few findings, a label of 8 and a text each, and how many more there are."""
    more = len(found) - _MOST_FINDINGS
    lines = [
        f"{'bad' if finding.severity == BROKEN else 'odd':{_LABEL}}{clean(finding.text, 400)}"
        for finding in found[:_MOST_FINDINGS]
    ]
    return [*lines, *([f"{'':{_LABEL}}and {more} more in --json"] if more > 0 else [])]


def _interval(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.value is not None:
        if estimate.low is None or estimate.high is None:
            return show(estimate.value)
        return f"{show(estimate.value)} [{show(estimate.low)}, {show(estimate.high)}]"
    return ", ".join(("not identified", *_bounds(estimate, show)))


def _half_width(estimate: Estimate, show: Callable[[float], str]) -> str:
    if estimate.value is None:
        return ", ".join(_bounds(estimate, show)) or _NOTHING
    if estimate.low is None or estimate.high is None:
        return show(estimate.value)
    return f"{show(estimate.value)} ±{format_percent((estimate.high - estimate.low) / (2 * estimate.value))}"


def _bounds(estimate: Estimate, show: Callable[[float], str]) -> list[str]:
    bounds = ((">=", estimate.lower), ("<=", estimate.upper))
    return [f"{sign} {show(bound)}" for sign, bound in bounds if bound is not None]


def _count(point: Point) -> str:
    """Elements of the message, unknown where the data type is."""
    return _NOTHING if point.dtype == UNKNOWN else str(point.bytes // point.itemsize)


def _percent(width: float) -> str:
    return format_percent(width).removesuffix("%") if width < _WIDEST else f">{100 * _WIDEST:.0f}"


def _verdict(row: PointSummary) -> str:
    verdict = row.status if row.status != "ok" else {"ok": "ok", "skipped": _NOTHING}.get(row.check, "")
    return "WRONG" if row.check == "wrong" else verdict


def _is_odd(row: PointSummary, odd: Collection[int]) -> bool:
    return bool(row.flags) or row.point.bytes in odd


def _style(row: PointSummary | Point, odd: Collection[int]) -> str:
    if isinstance(row, Point):
        return "dim"
    if row.status != "ok" or row.check == "wrong":
        return "bold red"
    return "yellow" if _is_odd(row, odd) else ""


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")


def _labelled(lines: Iterable[str]) -> Table:
    grid = Table.grid()
    grid.add_column(width=_LABEL, style="bold")
    grid.add_column()
    for line in lines:
        grid.add_row(Text(line[:_LABEL]), Text(line[_LABEL:]))
    return grid
