"""Comparisons as GitHub-flavoured Markdown, for issues, pull requests and reports."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analyze.compare import Compared, Comparison
from commbench.report.compare_rows import columns, rows, units
from commbench.report.compare_words import NO_VERDICT, Words, left_out_lines
from commbench.report.markdown import escape, table


def compared_markdown(compared: Compared) -> str:
    """All comparisons, and what was left out."""
    blocks = ["\n\n".join(_blocks(comparison)) for comparison in compared.comparisons]
    return "\n\n".join([*blocks, *map(escape, left_out_lines(compared)), NO_VERDICT])


def _blocks(comparison: Comparison) -> Iterator[str]:
    words = Words(comparison)
    what, *rest = words.header
    yield f"### {escape(what)}"
    yield "\\\n".join(map(escape, [*rest, *words.legend]))
    yield table(columns(words, comparison.pairs), rows(words, comparison.pairs), left=0)
    lines = [units(words, comparison.pairs)]
    for pair in comparison.pairs:
        heading = f"{words.heading(pair)}, " if len(comparison.pairs) > 1 else ""
        lines += [f"{heading}{label}: {text}" for label, text in words.pair_lines(pair)]
    lines += [f"changed: {line}" for line in words.changes()] + words.notes()
    yield "\n".join(f"* {escape(line)}" for line in lines)
    yield "\\\n".join(f"**{escape(words.in_short(pair))}**" for pair in comparison.pairs)
