"""What a gate tests: scores of a curve's level, bands and sizes, with their variances over runs.

Input are log ratios of pairs, `ratios[..., pair, size]`, or log times of runs of both sides; NaN where a cell was not
measured. Every run gives three families of scores: its *level* (mean over sizes), its *bands* (mean of a third of the
sizes minus mean of the others) and its *sizes* (each minus the median of all). What moves a launch as a whole cancels
in bands and sizes, so that a slowdown of few sizes is seen through it. Pure numpy, any number of curves at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

BANDS = 3
FEWEST_CELLS = 4
# The variance of a size is that of its neighbours too, nine in all; they are related through the common median, so
# half of their degrees of freedom count. The noise of a curve changes with size: an average over all of them gave
# 14 % false alarms. A size whose own spread stands out of its neighbourhood's (F test) is judged by its own alone.
_NEIGHBOURS, _NEIGHBOURS_COUNT, _STANDS_OUT = 4, 4.5, 1e-3
# The bands' variances are drawn to their mean, which weighs as much as this many runs.
_SHRINKAGE = 4.0
# No clock and no machine knows a ratio better than to 0.01 %, whatever repeats exactly.
_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True, slots=True)
class Estimates:
    """Quantities in log time with their variances and degrees of freedom, along the last axis; NaN: none."""

    value: Array
    variance: Array
    freedom: Array

    @property
    def count(self) -> Array:
        """How many there are, with the last axis kept."""
        return np.asarray(np.isfinite(self.value).sum(axis=-1, keepdims=True), dtype=float)

    def chance_above(self) -> Array:
        """p: how likely a value this large is where the truth is 0."""
        from scipy.special import stdtr  # noqa: PLC0415 - `show` starts without scipy

        return np.asarray(stdtr(self.freedom, -self.value / np.sqrt(self.variance)))

    def bound(self, probability: float) -> Array:
        """One-sided bound: the truth lies below it with this probability."""
        from scipy.special import stdtrit  # noqa: PLC0415 - `show` starts without scipy

        return np.asarray(self.value + stdtrit(self.freedom, probability) * np.sqrt(self.variance))

    def reversed(self) -> Estimates:
        return Estimates(-self.value, self.variance, self.freedom)


@dataclass(frozen=True, slots=True)
class Scores:
    """All that is tested, per curve.

    Attributes:
        level: one value.
        bands, sizes: against the rest of the curve.
        plain_bands, plain_sizes: as they are, which is what a user would call their slowdown.
        band: of each size, -1 where it is not counted.
    """

    level: Estimates
    bands: Estimates
    sizes: Estimates
    plain_bands: Estimates
    plain_sizes: Estimates
    band: npt.NDArray[np.int64]

    def reversed(self) -> Scores:
        """The same with the sign turned, for improvements."""
        return Scores(
            level=self.level.reversed(),
            bands=self.bands.reversed(),
            sizes=self.sizes.reversed(),
            plain_bands=self.plain_bands.reversed(),
            plain_sizes=self.plain_sizes.reversed(),
            band=self.band,
        )

    @property
    def families(self) -> tuple[tuple[Estimates, Estimates], ...]:
        """(what is tested, what is plainly seen) of level, bands and sizes."""
        return (self.level, self.level), (self.bands, self.plain_bands), (self.sizes, self.plain_sizes)


def scores_of_pairs(ratios: Array) -> Scores:
    """Scores of pairs: `ratios[..., pair, size]` is log(candidate / baseline)."""
    ratios = _countable(ratios, FEWEST_CELLS)
    return _scores([(1.0, ratios)], 0.0)


def scores_of_sides(baseline: Array, candidate: Array, spread: float = 0.0, *, fewest: int = FEWEST_CELLS) -> Scores:
    """Scores of two sides: log times `[..., run, size]`, run by run or session by session.

    Args:
        baseline: its runs.
        candidate: its runs.
        spread: standard deviation of log time between sessions, where each side is one session; 0 within one.
        fewest: runs of the candidate that a size must have (the baseline always needs four).
    """
    baseline, candidate = _countable(baseline, FEWEST_CELLS), _countable(candidate, fewest)
    reference = _mean(baseline)[..., None, :]
    sides = [(1.0, candidate - reference), (-1.0, baseline - reference)]
    return _scores(sides, 2 * spread**2)


def _scores(sides: list[tuple[float, Array]], extra: float) -> Scores:
    """Estimates of candidate minus baseline (or of the pairs' one side); `extra` variance where all sizes count."""
    present = np.all([np.isfinite(side).any(axis=-2) for _, side in sides], axis=0)
    sides = [(sign, np.where(present[..., None, :], side, np.nan)) for sign, side in sides]
    band = _bands(present)
    inside = [(band == number)[..., None, :] for number in range(BANDS)]

    def of_bands(side: Array, *, against_rest: bool) -> Array:
        means = [_mean(np.where(mine, side, np.nan), -1) for mine in inside]
        if against_rest:
            means = [mean - _mean(np.where(mine, np.nan, side), -1) for mean, mine in zip(means, inside, strict=True)]
        return np.stack(means, axis=-1)

    return Scores(
        level=_own(sides, lambda side: _mean(side, -1)[..., None], extra),
        bands=_shrunk(sides, lambda side: of_bands(side, against_rest=True)),
        sizes=_with_neighbours(sides, present),
        plain_bands=_own(sides, lambda side: of_bands(side, against_rest=False), extra),
        plain_sizes=_own(sides, lambda side: side, extra),
        band=band,
    )


Score = Callable[[Array], Array]


def _own(sides: list[tuple[float, Array]], score: Score, extra: float) -> Estimates:
    """Each with the variance of its own; a known one that is added counts as exact (Satterthwaite)."""
    value, squares, freedom, weight = _moments(sides, score)
    variance = np.maximum(squares / freedom, _LEAST_VARIANCE) * weight
    return Estimates(value, variance + extra, freedom * ((variance + extra) / variance) ** 2)


def _shrunk(sides: list[tuple[float, Array]], score: Score) -> Estimates:
    value, squares, freedom, weight = _moments(sides, score)
    own = squares / freedom
    variance = (_SHRINKAGE * own.mean(axis=-1, keepdims=True) + freedom * own) / (_SHRINKAGE + freedom)
    return Estimates(value, np.maximum(variance, _LEAST_VARIANCE) * weight, freedom + _SHRINKAGE)


def _with_neighbours(sides: list[tuple[float, Array]], present: Mask) -> Estimates:
    from scipy.special import fdtri  # noqa: PLC0415 - `show` starts without scipy

    value, squares, freedom, weight = _moments(sides, lambda side: side - _median(side)[..., None])
    squares, counted = np.where(present, squares, 0.0), np.where(present, freedom, 0.0)
    near_squares, near = _window(squares), _window(counted)
    around = near_squares - squares, np.maximum(near - counted, 1)
    own, rest = squares / freedom, around[0] / around[1]
    alone = own > rest * fdtri(freedom, around[1], 1 - _STANDS_OUT)
    variance = np.where(alone, own, near_squares / np.maximum(near, 1))
    known = np.where(alone, freedom, np.minimum(_NEIGHBOURS_COUNT * freedom, np.maximum(near, 1)))
    return Estimates(np.where(present, value, np.nan), np.maximum(variance, _LEAST_VARIANCE) * weight, known)


def _moments(sides: list[tuple[float, Array]], score: Score) -> tuple[Array, Array, Array, Array]:
    """Estimate, sum of squares, degrees of freedom (at least 1) and sum of 1/n over the sides."""
    totals = [np.zeros(1) for _ in range(4)]
    for sign, side in sides:
        values = score(side)
        count = np.isfinite(values).sum(axis=-2)
        mean = _mean(values)
        squares = np.nansum((values - mean[..., None, :]) ** 2, axis=-2)
        parts = (sign * mean, squares, np.maximum(count - 1, 0), 1 / np.maximum(count, 1))
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
    value, squares, freedom, weight = totals
    return value, squares, np.maximum(freedom, 1), weight


def _countable(cells: Array, fewest: int) -> Array:
    """Without the sizes that have too few cells."""
    return np.where(np.isfinite(cells).sum(axis=-2, keepdims=True) >= fewest, cells, np.nan)


def _bands(present: Mask) -> npt.NDArray[np.int64]:
    """Thirds of the sizes that are there."""
    count = np.maximum(present.sum(axis=-1, keepdims=True), 1)
    return np.where(present, BANDS * (np.cumsum(present, axis=-1) - 1) // count, -1)


def _mean(values: Array, axis: int = -2) -> Array:
    count = np.isfinite(values).sum(axis=axis)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)


def _median(values: Array) -> Array:
    """Over the last axis, without NaN; np.nanmedian walks rows in Python."""
    ordered = np.sort(values, axis=-1)  # NaN last
    count = np.isfinite(values).sum(axis=-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(k, 0), axis=-1) for k in ((count - 1) // 2, count // 2))
    return np.where(count > 0, (low + high) / 2, np.nan)[..., 0]


def _window(values: Array) -> Array:
    """Sums over each size and its neighbours."""
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    last = values.shape[-1]
    at = np.arange(last)
    return np.asarray(sums[..., np.minimum(at + _NEIGHBOURS + 1, last)] - sums[..., np.maximum(at - _NEIGHBOURS, 0)])
