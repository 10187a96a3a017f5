"""Whether what a fit leaves over is noise: by the order of its signs, and by the noise that runs show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from commbench.analyze.likelihood import Vector

_EXACT = 20
_ROUNDING = 1e-9
_ODD_ONES = 2  # single sizes that are off are named on their own, and do not make a fit poor


def signs_probability(residuals: Sequence[float]) -> float:
    """Probability of this few runs of equal signs, or fewer, by chance (Wald and Wolfowitz 1940).

    1 where all signs are equal or there are none; residuals of nothing but rounding have no sign. Exact up
    to 20 of a sign, the normal approximation beyond.
    """
    signs = [residual > 0 for residual in residuals if abs(residual) > _ROUNDING]
    plus, minus = signs.count(True), signs.count(False)
    if not plus or not minus:
        return 1.0
    runs = 1 + sum(left != right for left, right in pairwise(signs))
    if max(plus, minus) > _EXACT:
        count = plus + minus
        mean = 1 + 2 * plus * minus / count
        variance = (mean - 1) * (mean - 2) / (count - 1)
        return NormalDist(mean, math.sqrt(variance)).cdf(runs + 0.5)
    ways = sum(_arrangements(plus, minus, fewer) for fewer in range(2, runs + 1))
    return ways / math.comb(plus + minus, plus)


def _arrangements(plus: int, minus: int, runs: int) -> int:
    """Orders of `plus` and `minus` signs that have exactly `runs` runs."""
    half, odd = divmod(runs, 2)
    if not odd:
        return 2 * math.comb(plus - 1, half - 1) * math.comb(minus - 1, half - 1)
    return sum(math.comb(a - 1, half) * math.comb(b - 1, half - 1) for a, b in ((plus, minus), (minus, plus)))


def has_bump(residuals: Vector, scale: float) -> bool:
    """Whether three neighbours stand off to the same side by three scales of the noise each.

    The order of signs alone hardly notices a bump in a long curve. With this nine in ten of NCCL's dips are
    noticed, and one good curve in a thousand (results/statistics-fit.md).
    """
    return any(
        bool((side * residuals[i : i + 3] > 3 * scale).all()) for side in (1, -1) for i in range(len(residuals) - 2)
    )


def pure_error_probability(residuals: Vector, log_times: Vector, parameters: int) -> float:
    """Probability of residuals this large if the runs' own disagreement about the sizes were all there is.

    The F test of the residuals of the mean curve against pure error. A factor common to all sizes of a run
    moves alpha and B, not the shape, and is taken out. The sizes farthest off, up to two, are left out.

    Args:
        residuals: log(mean over runs / fit) of each size: float64[sizes].
        log_times: float64[runs, sizes].
        parameters: how many were fitted.
    """
    runs, sizes = log_times.shape
    kept = np.argsort(np.abs(residuals))[: sizes - _ODD_ONES]
    if runs < 2 or len(kept) <= parameters:  # noqa: PLR2004 - two runs make a disagreement
        return 1.0
    times = log_times[:, kept]
    error = times - times.mean(axis=0) - times.mean(axis=1, keepdims=True) + times.mean()
    lack, noise = runs * float(residuals[kept] @ residuals[kept]), float((error**2).sum())
    freedom = len(kept) - parameters, (runs - 1) * (len(kept) - 1)
    if noise <= _ROUNDING**2 * error.size:
        return 1.0 if lack <= _ROUNDING**2 * len(kept) else 0.0
    return f_tail(lack / freedom[0] / (noise / freedom[1]), *freedom)


def f_tail(value: float, above: int, below: int) -> float:
    """Probability that Fisher's F with so many degrees of freedom exceeds `value` (Paulson 1942).

    The cube root of F is nearly normal. At 1 % it is right within 2 % of that for 20 degrees below or more, and
    says 1.1 % for 7 and 1.5 % for 3: with little to go by it errs towards no evidence.
    """
    if value <= 0:
        return 1.0
    root, a, b = value ** (1 / 3), 2 / (9 * above), 2 / (9 * below)
    return 1 - NormalDist().cdf(((1 - b) * root - (1 - a)) / math.sqrt(b * root**2 + a))
