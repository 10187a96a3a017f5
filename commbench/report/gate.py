"""A gate's verdict in words: the lines that terminal, Markdown, JUnit and annotations are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from commbench.analyze.verdicts import CurveVerdict, GateReport, Hit, Ratio, Verdict
from commbench.report.text import SEPARATOR, clean, words
from commbench.units import format_percent

HEADLINES: dict[Verdict, str] = {
    "pass": "no regression",
    "regression": "REGRESSION",
    "inconclusive": "cannot tell",
    "refused": "refused",
}
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "regression": 3, "inconclusive": 4, "refused": 4}
_STYLES: dict[Verdict, str] = {
    "pass": "bold green",
    "regression": "bold red",
    "inconclusive": "bold yellow",
    "refused": "bold yellow",
}
_LABEL = 8
_MOST_HITS = 12
_SMALLEST_P = 1e-6

_SESSIONS = (
    "the sides were measured in different sessions: a spread of {} between sessions (--session-sd) is allowed for, "
    "and hides that much; pairs in one job do not need it"
)
_SEEN = "one size alone that is {} slower would have been seen anywhere, {} at half of the sizes"

Line = tuple[str, str]
"""A label and a text."""


def gate_view(report: GateReport) -> Group:
    """The whole verdict."""
    above = report_lines(report)
    views: list[Text | Table] = []
    if len(report.curves) != 1 or report.curves[0].verdict != report.verdict:
        views.append(Text(headline(report), style=_STYLES[report.verdict]))
    for curve in report.curves:
        views += [Text("")] if views else []
        views.append(Text(f"{HEADLINES[curve.verdict]}: {curve_name(curve)}", style=_STYLES[curve.verdict]))
        views.append(_grid(curve_lines(curve)))
    views += [_grid(above)] if above else []
    return Group(*views)


def headline(report: GateReport) -> str:
    """The verdict, and over how many curves: "REGRESSION in 1 of 3 curves"."""
    count = len(report.curves)
    concerned = sum(curve.verdict == report.verdict for curve in report.curves)
    if not concerned:
        return HEADLINES[report.verdict]
    of = f"{count} curve{'s' * (count > 1)}"
    return f"{HEADLINES[report.verdict]} in {of if concerned == count else f'{concerned} of {of}'}"


def curve_name(curve: CurveVerdict) -> str:
    """A curve in one line."""
    what = " ".join(words(curve.key, ("op", "redop", "root", "variant")))
    return SEPARATOR.join((what, *words(curve.key, ("dtype", "ranks", "backend", "mode", "cache", "in_place", "path"))))


def report_lines(report: GateReport) -> list[Line]:
    """What concerns all curves: why nothing was compared, what differs, what sessions cost."""
    label = "note" if report.curves else "why"
    lines = [(label, clean(reason, 400)) for reason in report.reasons]
    if report.session_spread:
        lines.append(("note", _SESSIONS.format(format_percent(report.session_spread))))
    for change in report.changed:
        before, after = (clean("none" if value is None else value) for value in change.values)
        lines.append(("differs", f"{clean(change.fact)}: {before} -> {after}"))
    return lines


def curve_lines(curve: CurveVerdict) -> list[Line]:
    """Everything about one curve."""
    return list(_curve_lines(curve))


def _curve_lines(curve: CurveVerdict) -> Iterator[Line]:
    if curve.pairs:
        look = ", decided at the first look" if curve.stage == 1 and curve.replicates == "pairs" else ""
        form = curve.replicates if curve.pairs > 1 else curve.replicates.removesuffix("s")
        yield "data", f"{curve.pairs} {form}, {curve.sizes} sizes{look}"
    yield from _hit_lines("worse", curve.hits)
    yield from _hit_lines("better", curve.improvements)
    for text in curve.met:
        yield "met", clean(text, 400)
    if curve.level.value is not None:
        yield "level", f"all sizes together {ratio_words(curve.level)}"
        yield "bands", "; ".join(f"{band.where} {ratio_words(band.ratio)}" for band in curve.bands)
    if curve.smallest_detectable is not None and curve.typical is not None:
        yield "seen", _SEEN.format(_percent(curve.smallest_detectable), _percent(curve.typical))
    for reason in curve.reasons:
        yield "why", clean(reason, 400)
    if curve.pairs_needed is not None:
        half = -(-curve.pairs_needed // 2)
        yield "more", f"about {curve.pairs_needed} pairs would decide, {curve.pairs} were measured: --pairs {half}"
    elif curve.verdict == "inconclusive" and curve.level.value is not None and curve.replicates == "pairs":
        yield "more", "not even 100 pairs would decide: quieten the machine, or allow a larger --margin"


def _hit_lines(label: str, hits: Sequence[Hit]) -> Iterator[Line]:
    for hit in hits[:_MOST_HITS]:
        yield label, hit_words(hit)
    if len(hits) > _MOST_HITS:
        yield label, f"and {len(hits) - _MOST_HITS} more"


def hit_words(hit: Hit) -> str:
    """One hit: "64K +12.1 % [+9.8 %, +14.4 %], p = 0.00002"."""
    parts = [clean(hit.where, 200)]
    if hit.text:
        parts.append(clean(hit.text, 400))
    if hit.ratio.value is not None and not hit.text:
        parts.append(ratio_words(hit.ratio))
    chance = ""
    if hit.p is not None:
        chance = f", p < {_SMALLEST_P:.0e}" if hit.p < _SMALLEST_P else f", p = {hit.p:.1g}"
    return (": " if hit.text else " ").join(parts) + chance


def ratio_words(ratio: Ratio) -> str:
    """A ratio as a change with its 95 % interval: "+1.2 % [-0.3 %, +2.8 %]"."""
    if ratio.value is None:
        return "unknown"
    if ratio.low is None or ratio.high is None:
        return _change(ratio.value)
    return f"{_change(ratio.value)} [{_change(ratio.low)}, {_change(ratio.high)}]"


def _change(ratio: float) -> str:
    percent = 100 * (ratio - 1)
    return f"{percent:+.1f} %" if abs(percent) < 99.95 else f"x{ratio:.3g}"  # noqa: PLR2004 - beyond, factors read better


def _percent(ratio: float) -> str:
    return _change(ratio).removeprefix("+")


def _grid(lines: Sequence[Line]) -> Table:
    grid = Table.grid()
    grid.add_column(width=_LABEL, style="bold")
    grid.add_column()
    for label, text in lines:
        grid.add_row(Text(label), Text(text))
    return grid
