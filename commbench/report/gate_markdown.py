"""A gate's verdict as a comment for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analyze.verdicts import CurveVerdict, GateReport
from commbench.report.gate import HEADLINES, curve_lines, curve_name, headline, hit_words, ratio_words, report_lines
from commbench.report.markdown import escape


def gate_markdown(report: GateReport) -> str:
    """Headline, a row a curve, and the details of each folded away."""
    return "\n\n".join(_blocks(report))


def _blocks(report: GateReport) -> Iterator[str]:
    yield f"### commbench gate: {escape(headline(report))}"
    if report.curves:
        yield "\n".join(
            [
                "| curve | verdict | level | what got worse |",
                "|:--|:--|--:|:--|",
                *(_row(curve) for curve in report.curves),
            ]
        )
    if lines := [f"* **{label}** {escape(text)}" for label, text in report_lines(report)]:
        yield "\n".join(lines)
    for curve in report.curves:
        lines = [f"* **{label}** {escape(text)}" for label, text in curve_lines(curve)]
        yield "\n".join([f"<details><summary>{escape(curve_name(curve))}</summary>", "", *lines, "", "</details>"])


def _row(curve: CurveVerdict) -> str:
    worse = "; ".join(hit_words(hit) for hit in curve.hits[:3]) + (" ..." if len(curve.hits) > 3 else "")  # noqa: PLR2004
    cells = (curve_name(curve), HEADLINES[curve.verdict], ratio_words(curve.level), worse or "-")
    return f"| {' | '.join(escape(cell) for cell in cells)} |"
