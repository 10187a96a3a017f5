"""A finding: one thing about some sizes of a curve that a reader should know, wherever it comes from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from commbench.analyze.fit import Estimate
from commbench.spec import Point
from commbench.units import format_size

# Severities, the worst first.
BROKEN = 0  # no time, or a wrong answer
ODD = 1  # the curve is not what a healthy machine and library give
UNSURE = 2  # the number may not stand for the operation
RULE = 3  # another operation does the same work faster
USUAL = 4  # odd, but on this kind of machine to be expected
TO_KNOW = 5

NO_RATIO = Estimate(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know about some sizes of a curve.

    Attributes:
        kind: "wrong_answer", "hung", "failed", a `shape.ShapeKind`, "guideline", or a key of `stats.FLAGS`.
        key: the curve, as its point with no size.
        sizes: bytes, ascending.
        ratio: measured time / expected time, of the worst size; its value is None where nothing was expected.
        text: what it is, what it may mean and what to try, as one or two sentences.
        severity: one of the constants above.
        pointed: the sizes themselves are what is odd, so that a table marks their rows.
    """

    kind: str
    key: Point
    sizes: tuple[int, ...]
    ratio: Estimate = NO_RATIO
    text: str
    severity: int
    pointed: bool = False


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """By severity, then by how far the ratio is from 1 at least; equals stay in their order."""
    return sorted(findings, key=lambda finding: (finding.severity, -_weight(finding.ratio)))


def ratio_of(log_ratio: float, deviation: float) -> Estimate:
    """A ratio of times with its 95 % interval, from its logarithm and the standard deviation of that."""
    return Estimate(*(math.exp(log_ratio + sign * 1.96 * deviation) for sign in (0, -1, 1)))


def times_as_long(ratio: Estimate) -> str:
    """The line "4.97 times [4.61, 5.36] as long as"."""
    assert ratio.value is not None
    between = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{ratio.value:.2f} times{between} as long as"


def sizes_in_words(sizes: Sequence[int], measured: Sequence[int]) -> str:
    """The words "256K", "8 and 16", "64K to 1M" (neighbours among the measured ones), or "5 sizes of 8 to 1M"."""
    names = [format_size(size) for size in sizes]
    if len(names) <= 2:  # noqa: PLR2004 - two are named
        return " and ".join(names)
    between = [size for size in measured if sizes[0] <= size <= sizes[-1]]
    all_of_them = len(between) == len(sizes)
    return ("" if all_of_them else f"{len(names)} sizes of ") + f"{names[0]} to {names[-1]}"


def marked_sizes(findings: Iterable[Finding]) -> Collection[int]:
    """The sizes whose rows a table marks."""
    return {size for finding in findings if finding.pointed for size in finding.sizes}


def _weight(ratio: Estimate) -> float:
    """How far from 1 the ratio is, as a logarithm, at the end of its interval that is nearer to 1."""
    ends = [math.log(end) for end in (ratio.low, ratio.high) if end]
    if len(ends) < 2 or ends[0] * ends[1] <= 0:  # noqa: PLR2004 - an interval has two ends
        return 0.0
    return min(map(abs, ends))
