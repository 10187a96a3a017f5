"""Curves and fits as GitHub-flavoured Markdown, for issues, pull requests and reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from commbench.analyze.datasets import Dataset
from commbench.analyze.diagnose import by_curve, diagnose
from commbench.analyze.finding import Finding, marked_sizes
from commbench.analyze.fit import CurveFit, fit_curve
from commbench.analyze.pairs import PairMatrix, curves_alone, findings_of_pairs, matrices
from commbench.analyze.summary import Curve
from commbench.errors import CannotTellError
from commbench.report.matrix import CORNER, heading, legend, rows, title
from commbench.report.tables import (
    COLUMNS,
    FIT_COLUMNS,
    connecting_line,
    finding_lines,
    fit_lines,
    fit_rows,
    fits_note,
    labelled_lines,
    labelled_notes,
    row_cells,
    units_line,
)
from commbench.report.text import SEPARATOR, clean, common_words, header_lines

# An underscore inside a word and a bracket that makes no link are left readable.
_SPECIAL = re.compile(r"([\\`*<>|~&#$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|!(?=\[))")


def datasets_markdown(datasets: Iterable[Dataset]) -> str:
    """Every curve of some datasets, and what their launches have to say; of many pairs their matrices instead."""
    blocks = []
    for dataset in datasets:
        findings, found = diagnose(dataset), matrices(dataset.points)
        blocks += ["\n\n".join(_matrices(dataset, found, findings_of_pairs(dataset, findings)))] if found else []
        own = by_curve(findings)
        blocks += ["\n\n".join(_curve(curve, own.get(curve.key, ()))) for curve in curves_alone(dataset)]
        told = [connecting_line(dataset.connecting)] if dataset.connecting else []
        told += map(clean, dataset.notices)
        blocks += [_list(told)] if told else []
    return "\n\n".join(blocks)


def fits_markdown(fits: Sequence[CurveFit]) -> str:
    """The fits of some curves; what the intervals are, and all notes, below."""
    shared = escape(SEPARATOR.join(common_words([fitted.curve for fitted in fits])))
    found = table(FIT_COLUMNS, fit_rows(fits), left=1)
    return f"### {shared}\n\n{found}\n\n{_list([fits_note(fits), *labelled_lines(fits), *labelled_notes(fits)])}"


def escape(text: str) -> str:
    """Cleaned text that Markdown shows as it is: no markup, no HTML, no mention, no cell border."""
    return _SPECIAL.sub(r"\\\1", clean(text, 400))


def _matrices(dataset: Dataset, found: Sequence[PairMatrix], findings: Sequence[Finding]) -> Iterator[str]:
    what, *rest = heading(dataset, found)
    yield f"### {escape(what)}"
    yield "\\\n".join(map(escape, rest))
    for matrix in found:
        yield f"**{escape(title(matrix, found))}**"
        yield table((CORNER, *matrix.targets), rows(matrix), left=0)
    yield _list([*legend(found), *finding_lines(findings)])


def _curve(curve: Curve, findings: Sequence[Finding]) -> Iterator[str]:
    what, *rest = header_lines(curve)
    yield f"### {escape(what)}"
    yield "\\\n".join(map(escape, rest))
    odd = marked_sizes(findings)
    yield table(COLUMNS, [row_cells(point, odd) for point in curve.points], left=0)
    try:
        lines = fit_lines(fit_curve(curve))
    except CannotTellError as refusal:
        lines = [f"no fit: {refusal.message}"]
    yield _list([units_line(curve.points, odd), *lines, *finding_lines(findings)])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """A table whose first `left` columns are aligned left, the others right."""
    rules = [":--" if number < left else "--:" for number in range(len(columns))]
    lines = [[escape(cell) for cell in cells] for cells in (columns, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rules, *lines[1:]))


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"* {escape(line)}" for line in lines)
