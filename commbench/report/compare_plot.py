"""Comparisons as pictures: the curves above, and below them how many times longer each size takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commbench.analyze.compare import Comparison, Pair
from commbench.errors import UsageError
from commbench.report.canvas import COLOURS, FORMATS, GREY, MARKERS, our_style, save, size_axis
from commbench.report.compare_rows import interval
from commbench.report.compare_words import Words
from commbench.report.plots import draw_panels, frame
from commbench.report.text import words
from commbench.units import format_size_about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINEAR = 3.0  # ratios within this range are read more easily on a linear axis
_ROOM = 1.15


def draw_comparisons(comparisons: Sequence[Comparison], path: Path) -> list[Path]:
    """Draw a picture a comparison; the ending .png or .svg of `path` chooses the format, without one both are made.

    Returns:
        The files written, what was there is replaced. Of several comparisons each has what tells it apart in its
        name.

    Raises:
        ResultsError: a file cannot be written.
    """
    stem, formats = target(path)
    names = [stem] if len(comparisons) == 1 else _stems(stem, comparisons)
    written = []
    for comparison, name in zip(comparisons, names, strict=True):
        with our_style():
            written += save(figure_of(comparison), name, formats)
    return written


def target(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The name without its ending, and the formats to write.

    Raises:
        UsageError: an ending that is another picture's.
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending in FORMATS:
        return path.with_suffix(""), (ending,)
    if ending in ("pdf", "jpg", "jpeg", "gif", "eps", "ps", "webp"):
        raise UsageError(f"--plot: {path.name}: no .{ending} is written", "end it in .png or .svg")
    return path, FORMATS


def figure_of(comparison: Comparison) -> Figure:
    """Three panels over size: time, bus bandwidth, and below them the ratios with their intervals and the line 1."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    said = Words(comparison)
    drawn = [0, *(pair.other for pair in comparison.pairs)]
    curves = [comparison.curves[at].curve for at in drawn]
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplot_mosaic([["times", "rates"], ["ratios", "ratios"]], height_ratios=(3, 2))
    draw_panels(panels["times"], panels["rates"], curves, [_name(said, at) for at in drawn])
    _draw_ratios(panels["ratios"], comparison.pairs, said)
    frame(figure, panels["times"], curves, _small_print(comparison, said))
    return figure


def _small_print(comparison: Comparison, said: Words) -> list[str]:
    band = f"; band: {interval(said, comparison.pairs)}" if interval(said, comparison.pairs) else ""
    marked = any(pair.crossings for pair in comparison.pairs) and len(comparison.pairs) == 1
    return [f"below: ratio of times{band}{'; grey: where the two change places' if marked else ''}"]


def _draw_ratios(axes: Axes, pairs: Sequence[Pair], said: Words) -> None:
    axes.axhline(1, color=GREY, linewidth=1.1, zorder=1)
    for number, pair in enumerate(pairs, 1):
        again, position = divmod(number, len(COLOURS))
        colour, marker = COLOURS[position], MARKERS[(position + again) % len(MARKERS)]
        sizes = [size.bytes for size in pair.sizes]
        values = [size.ratio.value for size in pair.sizes]
        low, high = (
            [math.nan if bound is None else bound for bound in bounds]
            for bounds in ([s.ratio.low for s in pair.sizes], [s.ratio.high for s in pair.sizes])
        )
        axes.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
        axes.errorbar(
            sizes,
            values,
            (np.subtract(values, low), np.subtract(high, values)),
            fmt=marker,
            linestyle="-",
            color=colour,
            markersize=4.5,
            linewidth=1,
            elinewidth=1,
            capsize=2,
            zorder=3,
        )
    if len(pairs) == 1:
        _mark_crossings(axes, pairs[0])
    size_axis(axes, [size.bytes for pair in pairs for size in pair.sizes])
    _ratio_axis(axes, [size.ratio.value for pair in pairs for size in pair.sizes])
    other = said.letters[pairs[0].other] if len(pairs) == 1 else "each"
    axes.set_title(f"time of {other} / time of {said.letters[0]}: above 1 slower, below 1 faster", loc="left")


def _mark_crossings(axes: Axes, pair: Pair) -> None:
    for crossing in pair.crossings:
        if crossing.low is not None and crossing.high is not None:
            axes.axvspan(crossing.low, crossing.high, color=GREY, alpha=0.15, linewidth=0, zorder=0)
        if crossing.value is not None:
            axes.axvline(crossing.value, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                f"equal at {format_size_about(crossing.value)}",
                (crossing.value, 0),
                xycoords=("data", "axes fraction"),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8.5,
                color=GREY,
            )


def _ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    """From the values, not from their intervals: two runs make intervals that would dwarf them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter  # noqa: PLC0415

    low, high = min(1.0, *values), max(1.0, *values)
    room = max(_ROOM, (high / low) ** 0.15)
    low, high = low / room, high * room
    if high < _LINEAR * low:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.set_ylim(low, high)


def _name(said: Words, number: int) -> str:
    """Letter and label; the name stands for a label that is empty."""
    mark, label, name = said.letters[number], said.labels[number], said.names[number]
    return " ".join(dict.fromkeys((mark, label or name)))


def _stems(stem: Path, comparisons: Sequence[Comparison]) -> list[Path]:
    """A name for each comparison, from the keys in which they differ."""
    keys = [comparison.curves[0].curve.key for comparison in comparisons]
    every = [words(key) for key in keys]
    shared = set(every[0]).intersection(*every)
    slugs = ["-".join(_slug(word) for word in mine if word not in shared) for mine in every]
    if len(set(slugs)) < len(slugs) or not all(slugs):
        slugs = [str(number) for number in range(1, len(keys) + 1)]
    return [stem.with_name(f"{stem.name}-{slug}") for slug in slugs]


def _slug(word: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "-" for c in word)
