"""What all pictures share: style, colours, the axis of sizes, and how they are written.

matplotlib is imported inside functions: tables start without it. Figures are made without pyplot, so no
global state, no display, and the same input gives the same bytes, whatever the user's matplotlibrc says.
Colours are Okabe and Ito's, told apart by marker shape too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.errors import ResultsError
from commbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY, FAINT = "#5A5A5A", "#DDDDDD"

_END_OF_LATIN = "\N{LATIN SMALL LETTER B WITH STROKE}"
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.wspace": 0.04,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.parse_math": False,  # a dollar in a host name is no formula
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "commbench",
}


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A logarithmic axis with these sizes (bytes) on it, marked at powers of two."""
    from matplotlib.ticker import NullLocator  # noqa: PLC0415

    first, last = math.ceil(math.log2(min(sizes))), math.floor(math.log2(max(sizes)))
    ticks = [2**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 9)))] or sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
    axes.set_xticks(ticks, [format_size(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size (bytes)")


def printable(text: str) -> str:
    """Text that the font has: others would be boxes, with a warning for each."""
    return "".join(c if c < _END_OF_LATIN or c == "…" else "?" for c in text)


@contextmanager
def our_style() -> Iterator[None]:
    """Figures made inside look like ours."""
    from matplotlib import rc_context, style  # noqa: PLC0415

    with style.context("default"), rc_context(_STYLE):
        yield


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem`.png, .svg, replacing what was there; the names written.

    Raises:
        ResultsError: a file cannot be written.
    """
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Software": "commbench"},
        "svg": {"Date": None, "Creator": "commbench"},
    }
    written = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, format=kind, dpi=200, metadata=metadata[kind])
        except OSError as error:
            raise ResultsError(f"{path}: cannot be written: {error.strerror}", "choose another name") from error
        written.append(path)
    return written
