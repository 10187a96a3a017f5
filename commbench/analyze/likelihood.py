"""Maximum likelihood of straight lines T = alpha + D g, seen through relative, heavy-tailed noise.

    log T_i = log(alpha + D_i g) + e_i,   g = 1/B,   theta = (log alpha, log g),   e ~ s x Student t(4)

Noise of a time is a share of it, so least squares on T would listen to the largest sizes alone and know
nothing of alpha. In logs alpha and g are positive by construction, the median of T is what is fitted, and
t(4) is robust and a likelihood at once (docs/measuring.md has the comparison). With w = alpha / T the
Jacobian is (w, 1 - w): two well scaled columns, so that a dozen Gauss-Newton steps do.

A curve of 31 sizes has 235 ways to cut it into at most three lines, and a bound of a parameter asks for
twenty fits: all of them are climbed at once, as rows of flat arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Theta = tuple[float, float]

FREEDOM = 4.0
REACH = 15.0  # how far (in logs) theta may leave the data's range: 3e-7 of it cannot be told from 0
SCALE_FLOOR = 1e-9  # exact data would take the scale to 0 and the likelihood with it
_PATIENCE = 5  # steps between two looks at which rows have arrived
_MAX_LOOKS = 40
_TINY = 1e-300


class Rows:
    """Independent fits: each row has points of its own, cut into segments, a line a segment and a scale a row.

    Attributes:
        log_sizes: of all points of all rows, one after the other: float64[points].
        log_seconds: likewise.
        in_segment: how many points each segment has, at least 1: intp[segments].
        in_row: how many segments each row has, at least 1: intp[rows].
        points: how many points each row has: float64[rows].
    """

    def __init__(self, log_sizes: Vector, log_seconds: Vector, in_segment: Counts, in_row: Counts) -> None:
        self.log_sizes, self.log_seconds = log_sizes, log_seconds
        self._sizes, self._seconds = np.exp(log_sizes), np.exp(log_seconds)
        self.in_segment, self.in_row = in_segment, in_row
        self._segment_starts, self._row_starts = _starts(in_segment), _starts(in_row)
        self.points = np.add.reduceat(in_segment.astype(float), self._row_starts)

    @classmethod
    def of(cls, curves: Sequence[tuple[Vector, Vector, Sequence[int]]]) -> Rows:
        """A row for each (log sizes, log seconds, lengths of its segments)."""
        return cls(
            np.concatenate([sizes for sizes, _, _ in curves]),
            np.concatenate([seconds for _, seconds, _ in curves]),
            np.array([length for _, _, lengths in curves for length in lengths], dtype=np.intp),
            np.array([len(lengths) for _, _, lengths in curves], dtype=np.intp),
        )

    def of_rows(self, chosen: Flags) -> tuple[Rows, Flags]:
        """The chosen rows, and which segments are theirs."""
        segments = np.repeat(chosen, self.in_row)
        points = np.repeat(segments, self.in_segment)
        kept = Rows(self.log_sizes[points], self.log_seconds[points], self.in_segment[segments], self.in_row[chosen])
        return kept, segments

    def segment_sums(self, values: Vector) -> Vector:
        """Sums over each segment's points: [..., points] to [..., segments]."""
        return np.add.reduceat(values, self._segment_starts, axis=-1)

    def row_sums(self, values: Vector) -> Vector:
        """Sums over each row's segments: [..., segments] to [..., rows]."""
        return np.add.reduceat(values, self._row_starts, axis=-1)

    def of_points(self, by_row: Vector) -> Vector:
        """A row's value at each of its points."""
        return np.repeat(np.repeat(by_row, self.in_row), self.in_segment)

    def seen_from(self, theta: Vector) -> tuple[Vector, Vector]:
        """Of each point: alpha's share of the fitted time, and log(measured / fitted time)."""
        alpha, slope = np.exp(theta).T
        alpha = np.repeat(alpha, self.in_segment)
        fitted = np.maximum(alpha + np.repeat(slope, self.in_segment) * self._sizes, _TINY)
        return alpha / fitted, np.log(self._seconds / fitted)


def _starts(lengths: Counts) -> Counts:
    starts = np.zeros(len(lengths), dtype=np.intp)
    np.cumsum(lengths[:-1], out=starts[1:])
    return starts


@dataclass(slots=True)
class Peaks:
    """Where the rows' likelihoods are largest.

    Attributes:
        theta: (log alpha, log g) of each segment: float64[segments, 2].
        scale: s of each row.
        loglik: log-likelihood of each row, up to a constant that depends on its number of points only.
    """

    theta: Vector
    scale: Vector
    loglik: Vector


def climb(
    rows: Rows,
    theta: Vector,
    scale: Vector,
    *,
    held: Vector | None = None,
    floor: float = SCALE_FLOOR,
    tolerance: float = 1e-6,
    looks: int = _MAX_LOOKS,
) -> Peaks:
    """The maxima of all rows, from `theta` (float64[segments, 2]) and `scale` (float64[rows]) on.

    Gauss-Newton steps with the weights of t(4); the scale follows by parameter-expanded EM (Kent, Tyler and
    Vardi 1994). A step that would lose likelihood is made shorter.

    Args:
        rows: the points.
        theta: where to begin.
        scale: of each row, likewise.
        held: of each segment a direction c with c . theta to be left as it is, (0, 0) for none.
        floor: the smallest scale: differences below it count for little.
        tolerance: a row has arrived when a step gains less likelihood than this: a parameter that fades out
            of the model gains nothing more, however far it goes.
        looks: how often to look which rows have arrived; the others end where they are.
    """
    theta, scale = theta.copy(), scale.copy()
    along = np.zeros_like(theta) if held is None else np.stack((-held[:, 1], held[:, 0]), axis=1)
    reach = _reach(rows)
    climbing = np.ones(len(rows.in_row), dtype=bool)
    for _ in range(looks):
        some, segments = rows.of_rows(climbing)
        climb_on = _Climb(some, theta[segments], np.maximum(scale[climbing], floor), along[segments], reach, floor)
        for _ in range(_PATIENCE):
            climb_on.step()
        theta[segments], scale[climbing] = climb_on.theta, climb_on.scale
        climbing[climbing] = climb_on.gained > tolerance
        if not climbing.any():
            break
    _, residual = rows.seen_from(theta)
    tails = rows.row_sums(rows.segment_sums(np.log1p((residual / rows.of_points(scale)) ** 2 / FREEDOM)))
    return Peaks(theta, scale, -rows.points * np.log(scale) - (FREEDOM + 1) / 2 * tails)


def _reach(rows: Rows) -> tuple[Vector, Vector]:
    """The lowest and the highest theta that the data can speak of."""
    slopes = rows.log_seconds - rows.log_sizes
    lowest = np.array([rows.log_seconds.min(), slopes.min()]) - REACH
    return lowest, np.array([rows.log_seconds.max(), slopes.max()]) + 1


class _Climb:
    """Steps of some rows at the same time. `gained` is what the last one promised each row's log-likelihood."""

    def __init__(
        self, rows: Rows, theta: Vector, scale: Vector, along: Vector, reach: tuple[Vector, Vector], floor: float
    ) -> None:
        self._rows, self._along, self._reach, self._floor = rows, along, reach, floor
        self._free = np.asarray(~along.any(axis=1))
        self._all_free = bool(self._free.all())
        self._length = np.ones(len(theta))
        self._terms, self._room = np.empty((7, len(rows.log_sizes))), np.empty((3, len(rows.log_sizes)))
        self.theta, self.scale = theta, scale
        self._share, self._residual = rows.seen_from(theta)
        self.gained = np.full(len(scale), np.inf)

    def step(self) -> None:
        rows, share, residual = self._rows, self._share, self._residual
        terms, weight, pulled, weighted, rest = self._terms, self._terms[0], *self._room
        np.divide(FREEDOM + 1, FREEDOM + (residual / rows.of_points(self.scale)) ** 2, out=weight)
        np.multiply(weight, residual, out=pulled)
        np.multiply(weight, share, out=weighted)
        np.subtract(1.0, share, out=rest)
        np.multiply(pulled, residual, out=terms[1])
        np.multiply(weighted, share, out=terms[2])
        np.multiply(weighted, rest, out=terms[3])
        np.multiply(weight * rest, rest, out=terms[4])
        np.multiply(pulled, share, out=terms[5])
        np.multiply(pulled, rest, out=terms[6])
        sums = rows.segment_sums(terms)
        weights, loss = rows.row_sums(sums[:2])
        before, self.scale = self.scale, np.maximum(np.sqrt(loss / weights), self._floor)

        step = self._towards_the_peak(*sums[2:])
        promised = rows.row_sums(np.abs(step[:, 0] * sums[5] + step[:, 1] * sums[6])) / before**2
        self.gained = promised + rows.points * np.log(self.scale / before) ** 2
        tried = self.theta + step * self._length[:, None]
        if self._all_free:
            tried = np.clip(tried, *self._reach)
        else:
            tried[self._free] = np.clip(tried[self._free], *self._reach)
        share, residual = rows.seen_from(tried)
        worse = rows.segment_sums(weight * residual**2) > sums[1] * (1 + 1e-12) + _TINY
        if worse.any():  # back, and not so far next time
            tried[worse] = self.theta[worse]
            back = np.repeat(worse, rows.in_segment)
            share[back], residual[back] = self._share[back], self._residual[back]
        self._length = np.where(worse, self._length / 4, np.minimum(1.0, self._length * 2))
        self.theta, self._share, self._residual = tried, share, residual

    def _towards_the_peak(self, a: Vector, b: Vector, c: Vector, p: Vector, q: Vector) -> Vector:
        """Gauss-Newton steps of the normal equations [[a, b], [b, c]] step = (p, q), none longer than 1."""
        a, c = a * (1 + 1e-9) + _TINY, c * (1 + 1e-9) + _TINY  # a parameter may fade out of the model
        step: Vector = np.stack((c * p - b * q, a * q - b * p), axis=1) / (a * c - b * b + _TINY)[:, None]
        if not self._all_free:
            u, v = self._along[:, 0], self._along[:, 1]
            length = (u * p + v * q) / (u * u * a + 2 * u * v * b + v * v * c + _TINY)
            step = np.where(self._free[:, None], step, self._along * length[:, None])
        limited: Vector = step / np.maximum(1.0, np.abs(step).max(axis=1))[:, None]
        return limited
