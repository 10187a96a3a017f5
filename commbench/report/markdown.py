"""Curves and fits as GitHub-flavoured Markdown, for issues, pull requests and reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from commbench.analyze.datasets import Dataset
from commbench.analyze.fit import CurveFit, fit_curve
from commbench.analyze.summary import Curve, problems
from commbench.errors import CannotTellError
from commbench.report.tables import (
    COLUMNS,
    FIT_COLUMNS,
    fit_lines,
    fit_rows,
    fits_note,
    labelled_lines,
    labelled_notes,
    problem_lines,
    row_cells,
    units_line,
)
from commbench.report.text import SEPARATOR, clean, common_words, header_lines

# An underscore inside a word and a bracket that makes no link are left readable.
_SPECIAL = re.compile(r"([\\`*<>|~&#$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|!(?=\[))")


def datasets_markdown(datasets: Iterable[Dataset]) -> str:
    """Every curve of some datasets, and what their launches have to say."""
    blocks = []
    for dataset in datasets:
        blocks += ["\n\n".join(_curve(curve)) for curve in dataset.curves]
        blocks += [_list(map(clean, dataset.notices))] if dataset.notices else []
    return "\n\n".join(blocks)


def fits_markdown(fits: Sequence[CurveFit]) -> str:
    """The fits of some curves; what the intervals are, and all notes, below."""
    shared = escape(SEPARATOR.join(common_words([fitted.curve for fitted in fits])))
    table = _table(FIT_COLUMNS, fit_rows(fits), left=1)
    return f"### {shared}\n\n{table}\n\n{_list([fits_note(fits), *labelled_lines(fits), *labelled_notes(fits)])}"


def escape(text: str) -> str:
    """Cleaned text that Markdown shows as it is: no markup, no HTML, no mention, no cell border."""
    return _SPECIAL.sub(r"\\\1", clean(text, 400))


def _curve(curve: Curve) -> Iterator[str]:
    what, *rest = header_lines(curve)
    yield f"### {escape(what)}"
    yield "\\\n".join(map(escape, rest))
    yield _table(COLUMNS, [row_cells(point) for point in curve.points], left=0)
    try:
        lines = fit_lines(fit_curve(curve))
    except CannotTellError as refusal:
        lines = [f"no fit: {refusal.message}"]
    yield _list([units_line(curve.points), *lines, *problem_lines(problems(curve.points))])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> str:
    """A table whose first `left` columns are aligned left, the others right."""
    rules = [":--" if number < left else "--:" for number in range(len(columns))]
    lines = [[escape(cell) for cell in cells] for cells in (columns, *rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], rules, *lines[1:]))


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"* {escape(line)}" for line in lines)
