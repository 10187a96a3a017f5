"""The table of a comparison: a row a size, and for each other curve its time, ratio and interval."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.analyze.compare import Pair, SizeRatio
from commbench.analyze.summary import PointSummary
from commbench.report.compare_words import Words
from commbench.units import format_gigabytes, format_microseconds, format_ratio, format_size

_NOTHING = "-"


def columns(words: Words, pairs: Sequence[Pair]) -> list[str]:
    """The heads of `rows`."""
    heads = ["size"]
    for mark in [words.letters[0]] + [words.letters[pair.other] for pair in pairs]:
        heads += [f"{mark}(us)"] + ([f"{mark} bus"] if words.shows_bus else [])
        heads += [] if mark == words.letters[0] else [f"{mark}/{words.letters[0]}", "low", "high"]
    return heads


def rows(words: Words, pairs: Sequence[Pair]) -> list[list[str]]:
    """One row a size that any of the pairs has."""
    by_size = [{size.bytes: size for size in pair.sizes} for pair in pairs]
    found = []
    for at in sorted({size for sizes in by_size for size in sizes}):
        cells = [sizes.get(at) for sizes in by_size]
        first = next(cell.first for cell in cells if cell is not None)
        found.append([format_size(at), *_time(words, first), *(c for cell in cells for c in _ratio(words, cell))])
    return found


def _time(words: Words, point: PointSummary | None) -> list[str]:
    if point is None or point.seconds is None:
        return [_NOTHING] * (2 if words.shows_bus else 1)
    bus = [format_gigabytes(point.busbw or 0.0)] if words.shows_bus else []
    return [format_microseconds(point.seconds.median), *bus]


def _ratio(words: Words, size: SizeRatio | None) -> list[str]:
    if size is None:
        return [*_time(words, None), *[_NOTHING] * 3]
    bounds = [_NOTHING if bound is None else format_ratio(bound) for bound in (size.ratio.low, size.ratio.high)]
    return [
        *_time(words, size.other),
        ("~" if size.ratio.holds_one else "") + format_ratio(size.ratio.value),
        *bounds,
    ]


def units(words: Words, pairs: Sequence[Pair]) -> str:
    """What the columns hold, and which interval it is."""
    first = words.letters[0]
    shown = [f"{words.letters[pair.other]}/{first}" for pair in pairs]
    what = f"time of {words.letters[pairs[0].other]} / time of {first}" if len(pairs) == 1 else "ratios of times"
    over = interval(words, pairs)
    bounds = f"; low, high: {over}" if over else "; no interval is known"
    holds = "; ~: it holds 1" if any(size.ratio.holds_one for pair in pairs for size in pair.sizes) else ""
    bus = "; bus: bus bandwidth in GB/s" if words.shows_bus else ""
    return f"{', '.join(shown)}: {what}{bounds}{holds}{bus}"


def interval(words: Words, pairs: Sequence[Pair]) -> str:
    """What the intervals of the ratios are over, "" where there are none."""
    found = {size.ratio.basis for pair in pairs for size in pair.sizes} - {"none"}
    over = "; ".join(_basis(words, basis, pairs) for basis in ("runs", "same_runs", "within_run") if basis in found)
    return f"95 % interval {over}" if over else ""


def _basis(words: Words, basis: str, pairs: Sequence[Pair]) -> str:
    if basis == "within_run":
        return "within one run, so how launches differ is not in it (--runs 3)"
    numbers = [words.comparison.curves[at].curve.runs for at in (0, *(pair.other for pair in pairs))]
    if basis == "same_runs":
        return f"over the ratios of {min(numbers)} runs"
    return f"over {numbers[0]} runs each" if len(set(numbers)) == 1 else f"over {', '.join(map(str, numbers))} runs"
