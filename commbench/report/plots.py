"""Curves as pictures: time and bus bandwidth over size, with intervals and the fitted line.

matplotlib is imported inside functions: tables start without it. What all pictures share is in `canvas`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from commbench.analyze.fit import CurveFit, fit_curve
from commbench.analyze.summary import Curve, PointSummary
from commbench.errors import CannotTellError
from commbench.report.canvas import COLOURS, FORMATS, GREY, MARKERS, our_style, printable, save, size_axis
from commbench.report.tables import interval_words
from commbench.report.text import SEPARATOR, clean, common_settings, common_words, labels
from commbench.spec import Point
from commbench.units import format_rate, format_seconds, format_size, format_size_about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_CURVES = 8  # more in one picture cannot be followed: one picture an operation then

_MOST_NAMES = 4
_LEGEND_WIDTH = 170  # characters across the figure


def draw(curves: Sequence[Curve], stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the curves into `stem`.png and .svg; one picture an operation where there are too many for one.

    Returns:
        The files written; what was there is replaced.

    Raises:
        CannotTellError: no curve has a point with a time.
        ResultsError: a file cannot be written.
    """
    timed = [curve for curve in curves if _drawable(curve)]
    if not timed:
        raise CannotTellError("nothing to draw: no size has a time", "`commbench show` says what went wrong")
    if len(timed) <= MAX_CURVES:
        return _draw_one(timed, stem, formats)
    operation = attrgetter("key.op")
    by_operation = groupby(sorted(timed, key=operation), key=operation)
    written = [_draw_one(list(some), stem.with_name(f"{stem.name}-{op}"), formats) for op, some in by_operation]
    return [path for paths in written for path in paths]


def _draw_one(curves: Sequence[Curve], stem: Path, formats: Sequence[str]) -> list[Path]:
    with our_style():
        return save(_figure(curves), stem, formats)


def _figure(curves: Sequence[Curve]) -> Figure:
    """Two panels over size: time, log-log, and bandwidth from 0: bus bandwidth where all curves have it."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 5), layout="constrained")
    times, rates = figure.subplots(1, 2)
    draw_panels(times, rates, curves, labels(curves))
    frame(figure, times, curves, [])
    return figure


def draw_panels(times: Axes, rates: Axes, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Draw time, log-log, and bus bandwidth from 0 into two axes; `names` lead the entries of the legend."""
    bus = all(curve.key.bus_factor is not None for curve in curves)
    for number, (curve, name) in enumerate(zip(curves, names, strict=True)):
        _draw_curve(times, rates, curve, number, name, alone=len(curves) == 1, bus=bus)
    timed = [point for curve in curves for point in _drawable(curve)]
    for axes in (times, rates):
        size_axis(axes, [point.point.bytes for point in timed])
    _time_axis(times, [_time(point)[0] for point in timed])
    _rate_axis(rates, [_rate(point, bus=bus)[0] for point in timed], bus=bus)


def frame(figure: Figure, times: Axes, curves: Sequence[Curve], more: Sequence[str]) -> None:
    """Title and legend above, small print below, which ends in the lines `more`."""
    handles, texts = times.get_legend_handles_labels()
    columns = max(1, min(4, _LEGEND_WIDTH // (max(map(len, texts), default=1) + 6)))
    figure.legend(
        handles,
        texts,
        loc="outside upper left",
        ncols=columns,
        handlelength=1.5,
        title=printable(_headline(curves)),
        title_fontproperties={"size": 11.5, "weight": "bold"},
        alignment="left",
    )
    figure.supxlabel(printable("\n".join((_small_print(curves), *more))), x=0.01, ha="left", fontsize=7.5, color=GREY)


def _draw_curve(times: Axes, rates: Axes, curve: Curve, number: int, label: str, *, alone: bool, bus: bool) -> None:
    again, position = divmod(number, len(COLOURS))
    colour, marker = COLOURS[position], MARKERS[(position + again) % len(MARKERS)]
    try:
        fitted: CurveFit | None = fit_curve(curve)
    except CannotTellError:
        fitted = None
    timed = _drawable(curve)
    for axes, quantity in ((times, _time), (rates, partial(_rate, bus=bus))):
        for sound in (True, False):
            some = [point for point in timed if point.is_sound is sound]
            values, below, above = np.array([quantity(point) for point in some]).reshape(-1, 3).T
            axes.errorbar(
                [point.point.bytes for point in some],
                values,
                (values - below, above - values),
                fmt=marker,
                color=colour,
                markersize=4.5,
                markerfacecolor=colour if sound else "white",
                markeredgewidth=0.9,
                elinewidth=1,
                capsize=2,
                label=printable(_legend(label, fitted)) if sound or not any(p.is_sound for p in timed) else None,
                zorder=3,
            )
    if fitted is not None:
        _draw_fit(times, rates, fitted, colour, alone=alone, bus=bus)


def _draw_fit(times: Axes, rates: Axes, fitted: CurveFit, colour: str, *, alone: bool, bus: bool) -> None:
    """The lines, with a gap where one gives way to the next, and n½ or the switches named."""
    factor = _factor(fitted.curve.key, bus=bus)
    for segment in fitted.segments:
        sizes = np.geomspace(segment.from_bytes, segment.to_bytes, 128)
        seconds = np.array([segment.seconds(size) for size in sizes.tolist()])
        for axes, values in ((times, 1e6 * seconds), (rates, factor * sizes / seconds / 1e9)):
            axes.plot(sizes, values, color=colour, linewidth=1.2, alpha=0.75, zorder=2)
    half = fitted.n_half.value if len(fitted.segments) == 1 else None
    if not alone:  # a line through each panel for every curve would be a fence
        if half is not None:
            at_half = fitted.seconds(half)
            for axes, value in ((times, 1e6 * at_half), (rates, factor * half / at_half / 1e9)):
                axes.plot(half, value, marker="|", markersize=13, markeredgewidth=1.6, color=colour, zorder=4)
        return
    marks = [] if half is None else [(half, f"n½ = {format_size_about(half)}")]
    for below, above in pairwise(fitted.segments):
        marks.append((math.sqrt(below.to_bytes * above.from_bytes), f"switch at {format_size(above.from_bytes)}"))
    for axes in (times, rates):
        for size, text in marks:
            axes.axvline(size, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(
                text,
                (size, 0),  # right of n½ both curves are high up
                xycoords=("data", "axes fraction"),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=8.5,
                color=GREY,
            )


def _factor(key: Point, *, bus: bool) -> float:
    return (key.bus_factor or 1.0) if bus else 1.0


def _drawable(curve: Curve) -> list[PointSummary]:
    return [point for point in curve.points if point.seconds and point.seconds.median > 0]


def _time(point: PointSummary) -> tuple[float, float, float]:
    """Median and interval in microseconds; an unknown interval has no width."""
    known = point.seconds
    assert known is not None
    low, high = (known.median if bound is None else bound for bound in (known.low, known.high))
    return 1e6 * known.median, 1e6 * max(low, 1e-3 * known.median), 1e6 * high


def _rate(point: PointSummary, *, bus: bool) -> tuple[float, float, float]:
    """Bus (else algorithm) bandwidth in GB/s with its interval: the slow end of the time is the low end here."""
    moved = _factor(point.point, bus=bus) * point.point.bytes
    median, high, low = (moved / (1e3 * time) for time in _time(point))
    return median, low, high


def _time_axis(axes: Axes, medians: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    low, high = min(medians) / 2, max(medians) * 2  # two runs make intervals that would dwarf the curve
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}".replace(",", "\N{THIN SPACE}")))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title("time (us)", loc="left")


def _rate_axis(axes: Axes, medians: Sequence[float], *, bus: bool) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axes.set_ylim(0, 1.2 * max(medians))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    axes.set_title(f"{'bus' if bus else 'algorithm'} bandwidth (GB/s)", loc="left")


def _legend(label: str, fitted: CurveFit | None) -> str:
    label = clean(label)
    if fitted is None:
        return label or "no fit"
    alpha, bandwidth = fitted.alpha.value, fitted.bandwidth.value
    model = ("alpha" if alpha is None else format_seconds(alpha), "B" if bandwidth is None else format_rate(bandwidth))
    lines = f", {len(fitted.segments)} segments" if len(fitted.segments) > 1 else ""
    return f"{label or 'T'}{':' if label else ' ='} {' + D / '.join(model)}{lines}"


def _headline(curves: Sequence[Curve]) -> str:
    operations = list(dict.fromkeys(curve.key.op for curve in curves))
    what = ", ".join(map(clean, operations)) if len(operations) <= _MOST_NAMES else f"{len(operations)} operations"
    if len(operations) == 1:
        what = " ".join(common_words(curves, ("op", "redop", "root", "variant")))
    return SEPARATOR.join((what, *common_words(curves, ("backend", "ranks"))))


def _small_print(curves: Sequence[Curve]) -> str:
    how = common_words(curves, ("dtype", "device", "mode", "cache", "in_place", "path"))
    drawn = [point for curve in curves for point in _drawable(curve)]
    bars = f"points: median, slowest rank; bars: 95 % interval {interval_words([point.runs for point in drawn])}; "
    bars += "lines: alpha + D/B, marked at n½ = alpha B, with a gap at a switch"
    if not all(point.is_sound for point in drawn):
        bars += "; hollow: failed or wrong, not fitted"
    return "\n".join(SEPARATOR.join(part) for part in (common_settings(curves), how, [bars]) if part)
