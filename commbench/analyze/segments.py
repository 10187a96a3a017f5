"""Where a curve changes its line: one to three segments, chosen by a strengthened BIC.

Libraries switch protocols at some sizes, and the time jumps there; so segments are not forced to meet. Each
has alpha and 1/B of its own, the scale of the noise is common. The choice is the smallest of

    -2 log L + log n x (2 a segment + 1 a break + 2 more a break) x n / (n - 4)

Plain BIC (1 a break) splits a fifth of the curves that have no switch. Two more a break split 2 % at 31 sizes
but 10 to 16 % at 8 to 14; the last factor makes that 1 to 4 % at any number (results/statistics-fit.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from commbench.analyze.likelihood import Rows, Vector, climb
from commbench.analyze.piecewise import Cuts, starts

MIN_SIZES = 4  # of a segment
MOST = 3
_DIFFERENCE = 0.005  # a scale of the noise below which no difference is worth a segment
_EXHAUSTIVE = 36  # sizes up to which every cut is tried; longer curves are thinned first, then refined

_ROUGHLY = 0.01  # log-likelihoods to be compared need no more digits
_HOPELESS = 10.0  # a few more steps do not gain that much

Breaks = tuple[int, ...]


def choose(sizes: Vector, seconds: Vector, counts: Sequence[int], forbidden: Collection[int] = ()) -> Breaks | None:
    """The positions at which new segments begin, () for one line; None when no cut has that many segments.

    Args:
        sizes: bytes, ascending.
        seconds: times, above 0.
        counts: numbers of segments to choose among.
        forbidden: positions where no segment may begin.
    """
    curve = np.log(sizes), np.log(seconds)
    stride = -(-len(sizes) // _EXHAUSTIVE)
    thinned = curve[0][::stride], curve[1][::stride]
    cuts = every_cut(len(thinned[0]), tuple(counts))
    if forbidden:
        cuts = Cuts.of(len(thinned[0]), [cut for cut in cuts.breaks if not {stride * b for b in cut} & set(forbidden)])
    if not cuts.breaks:
        return None
    found = best_of_each_count(*thinned, cuts)
    if stride > 1:
        found = [_refined(*curve, tuple(stride * b for b in cut), stride, forbidden) for cut, _ in found]
    return min(found, key=lambda one: -2 * one[1] + len(one[0]) * price_of_a_break(len(sizes)))[0]


def price_of_a_break(sizes: int) -> float:
    """What a break must gain in twice the log-likelihood: it brings a line and a place."""
    return 5 * math.log(sizes) * sizes / max(sizes - 4, 1)


@lru_cache(maxsize=64)
def every_cut(points: int, counts: tuple[int, ...]) -> Cuts:
    """Every way to cut so many points into so many segments that are long enough."""
    # Choosing from a shorter row and spreading the choice out gives exactly the cuts with the gaps wanted.
    chosen = [
        tuple(b + (MIN_SIZES - 1) * (i + 1) + 1 for i, b in enumerate(breaks))
        for count in counts
        if points >= count * MIN_SIZES
        for breaks in combinations(range(points - count * MIN_SIZES + count - 1), count - 1)
    ]
    return Cuts.of(points, chosen)


def best_of_each_count(log_sizes: Vector, log_seconds: Vector, cuts: Cuts) -> list[tuple[Breaks, float]]:
    best: dict[int, tuple[Breaks, float]] = {}
    for cut, loglik in zip(cuts.breaks, _logliks(log_sizes, log_seconds, cuts), strict=True):
        if len(cut) not in best or loglik > best[len(cut)][1]:
            best[len(cut)] = cut, float(loglik)
    return list(best.values())


def _logliks(log_sizes: Vector, log_seconds: Vector, cuts: Cuts) -> Vector:
    """The log-likelihood of every cut, exact for the best of each number of segments."""
    count = len(cuts.breaks)
    rows = Rows(np.tile(log_sizes, count), np.tile(log_seconds, count), cuts.ends - cuts.begins, cuts.in_cut)
    theta = starts(log_sizes, log_seconds, cuts)
    _, residual = rows.seen_from(theta)
    scale = np.median(np.abs(residual).reshape(count, -1), axis=1)
    peaks = climb(rows, theta, scale, floor=_DIFFERENCE, tolerance=_ROUGHLY, looks=1)
    best = np.full(MOST + 1, -np.inf)
    np.maximum.at(best, cuts.in_cut, peaks.loglik)
    hopeful = peaks.loglik > best[cuts.in_cut] - _HOPELESS
    some, segments = rows.of_rows(hopeful)
    logliks = peaks.loglik
    logliks[hopeful] = climb(
        some, peaks.theta[segments], peaks.scale[hopeful], floor=_DIFFERENCE, tolerance=_ROUGHLY
    ).loglik
    return logliks


def _refined(
    log_sizes: Vector, log_seconds: Vector, cut: Breaks, stride: int, forbidden: Collection[int]
) -> tuple[Breaks, float]:
    """The best cut near this one, looked for in ever smaller steps."""
    best, loglik = cut, float(_logliks(log_sizes, log_seconds, Cuts.of(len(log_sizes), [cut]))[0])
    while stride > 0:
        moves = product((-stride, 0, stride), repeat=len(cut))
        moved = [tuple(b + move for b, move in zip(best, by, strict=True)) for by in moves]
        near = [one for one in moved if one != best and _allowed(one, len(log_sizes), forbidden)]
        logliks = _logliks(log_sizes, log_seconds, Cuts.of(len(log_sizes), near)) if near else np.empty(0)
        if len(logliks) and logliks.max() > loglik + _ROUGHLY:
            best, loglik = near[int(logliks.argmax())], float(logliks.max())
        else:
            stride //= 2
    return best, loglik


def _allowed(cut: Breaks, points: int, forbidden: Collection[int]) -> bool:
    lengths = np.diff((0, *cut, points))
    return not set(cut) & set(forbidden) and bool((lengths >= MIN_SIZES).all())
