"""Maximum likelihood of a straight line T = alpha + D g seen through relative, heavy-tailed noise.

    log T_i = log(alpha + D_i g) + e_i,   g = 1/B,   theta = (log alpha, log g),   e ~ s x Student t(4)

Noise of a time is a share of it, so least squares on T would listen to the largest sizes alone and know
nothing of alpha. In logs alpha and g are positive by construction, the median of T is what is fitted, and
t(4) is robust and a likelihood at once (docs/measuring.md has the comparison). With w = alpha / T the
Jacobian is (w, 1 - w): two well scaled columns, so that a dozen Gauss-Newton steps do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commbench.stats import t_quantile

Vector = npt.NDArray[np.float64]
Theta = tuple[float, float]

FREEDOM = 4.0
_REACH = 15.0  # how far (in logs) theta may leave the data's range: 3e-7 of it cannot be told from 0
_SCALE_FLOOR = 1e-9  # exact data would take the scale to 0 and the likelihood with it
_TOLERANCE = 1e-6
_MAX_STEPS = 200
_MAX_HALVINGS = 10

# Directions c: what is estimated is c . theta.
ALPHA: Theta = (1.0, 0.0)
BANDWIDTH: Theta = (0.0, -1.0)  # log B = -log g
N_HALF: Theta = (1.0, -1.0)  # log(alpha B)


@dataclass(frozen=True, slots=True)
class Peak:
    """A maximum of the likelihood: theta, the relative scale s, and the log-likelihood up to a constant."""

    theta: Theta
    scale: float
    loglik: float


class Likelihood:
    """The likelihood of times (seconds) at sizes (bytes): all above 0, at least three different sizes."""

    def __init__(self, sizes: Vector, seconds: Vector) -> None:
        order = np.argsort(sizes)
        self._log_sizes = np.log(sizes[order])
        self._log_seconds = np.log(seconds[order])
        self._log_slopes = self._log_seconds - self._log_sizes
        self._lowest = float(self._log_seconds.min()) - _REACH, float(self._log_slopes.min()) - _REACH
        self._highest = float(self._log_seconds.max()) + 1, float(self._log_slopes.max()) + 1
        count = len(sizes)
        self._freedom = count - 2
        # The scale at the peak is too small by n / (n - 2) in variance, two parameters having been fitted.
        self._shrunk = count / self._freedom

    def peak(self) -> Peak:
        """The fit; it starts from the plateau of the smallest third and the slope of the largest."""
        third = max(len(self._log_sizes) // 3, 1)
        return self._climb((float(np.median(self._log_seconds[:third])), float(np.median(self._log_slopes[-third:]))))

    def interval(self, peak: Peak, direction: Theta) -> tuple[float, float]:
        """Linearised 95 % interval of direction . theta."""
        centre = dot(direction, peak.theta)
        half = t_quantile(0.975, self._freedom) * self._deviation(peak, direction)
        return centre - half, centre + half

    def bound(self, peak: Peak, direction: Theta, side: int) -> float | None:
        """One-sided 95 % bound of direction . theta, above the peak for side = 1, below it for side = -1.

        Where the profile log-likelihood has lost enough: 2.71 in twice the logarithm for many sizes, and
        by the t quantile in place of the normal one for few. None when it never does.
        """
        centre = dot(direction, peak.theta)
        enough = t_quantile(0.95, self._freedom) * math.sqrt(self._shrunk)

        def lost(distance: float) -> float:
            # The square root of the drop: in a parabola it is linear in the distance.
            best = self._profile(peak, direction, centre + side * distance)
            return math.sqrt(max(2 * (peak.loglik - best.loglik), 0.0)) - enough

        near, at_near = 0.0, -enough
        far = min(max(1.7 * self._deviation(peak, direction), 0.01), 2.0)
        while (at_far := lost(far)) < 0:
            if far > 2 * _REACH:
                return None
            near, at_near, far = far, at_far, 2 * far
        while far - near > 0.002 + 0.01 * far:  # half a per cent of a bound is more than it is worth
            middle = near + (far - near) * min(max(-at_near / (at_far - at_near), 0.1), 0.9)
            at_middle = lost(middle)
            if abs(at_middle) < 0.005 * enough:
                return centre + side * middle
            if at_middle < 0:
                near, at_near = middle, at_middle
            else:
                far, at_far = middle, at_middle
        return centre + side * far

    def _deviation(self, peak: Peak, direction: Theta) -> float:
        """Standard deviation of direction . theta by the Fisher information of t: (nu+1)/(nu+3) J'J / s^2."""
        jacobian = self._jacobian(peak.theta)
        information = (FREEDOM + 1) / (FREEDOM + 3) * jacobian.T @ jacobian / self._shrunk
        variance = np.array(direction) @ np.linalg.pinv(information) @ np.array(direction)
        return peak.scale * math.sqrt(max(float(variance), 0.0))

    def _profile(self, peak: Peak, direction: Theta, value: float) -> Peak:
        """The best theta among those with direction . theta = value."""
        missing = (value - dot(direction, peak.theta)) / dot(direction, direction)
        start = (peak.theta[0] + missing * direction[0], peak.theta[1] + missing * direction[1])
        return self._climb(start, along=(-direction[1], direction[0]), scale=peak.scale)

    def _climb(self, theta: Theta, along: Theta | None = None, scale: float | None = None) -> Peak:
        """The maximum over all theta, or over the line through `theta` along `along`.

        Gauss-Newton steps with the weights of t(4); the scale follows by parameter-expanded EM (Kent,
        Tyler and Vardi 1994), which never loses likelihood either.
        """
        residual = self._residual(theta)
        scale = scale or max(float(np.median(np.abs(residual))), _SCALE_FLOOR)
        for _ in range(_MAX_STEPS):
            weight = (FREEDOM + 1) / (FREEDOM + (residual / scale) ** 2)
            loss = float(weight @ residual**2)
            before, scale = scale, max(math.sqrt(loss / float(weight.sum())), _SCALE_FLOOR)
            step = self._step(theta, residual, weight, along)
            theta, residual = self._walk(theta, residual, weight, step, loss, free=along is None)
            if max(map(abs, step)) < _TOLERANCE and abs(scale - before) < _TOLERANCE * before:
                break
        tails = np.log1p((residual / scale) ** 2 / FREEDOM)
        return Peak(theta, scale, -len(residual) * math.log(scale) - (FREEDOM + 1) / 2 * float(tails.sum()))

    def _step(self, theta: Theta, residual: Vector, weight: Vector, along: Theta | None) -> Theta:
        jacobian = self._jacobian(theta)
        weighted = jacobian * weight[:, None]
        (a, b), (_, c) = (jacobian.T @ weighted).tolist()
        p, q = (residual @ weighted).tolist()
        ridge = 1e-12 * (a + c) + 1e-300  # a parameter that fades out of the model has an empty column
        a, c = a + ridge, c + ridge
        if along is None:
            determinant = a * c - b * b
            step = ((c * p - b * q) / determinant, (a * q - b * p) / determinant)
        else:
            u, v = along
            length = (u * p + v * q) / (u * u * a + 2 * u * v * b + v * v * c)
            step = (u * length, v * length)
        longest = max(1.0, abs(step[0]), abs(step[1]))
        return step[0] / longest, step[1] / longest

    def _walk(
        self, theta: Theta, residual: Vector, weight: Vector, step: Theta, loss: float, *, free: bool
    ) -> tuple[Theta, Vector]:
        """Theta and residual after the step, or after the first of its halves that does not lose."""
        for _ in range(_MAX_HALVINGS):
            tried = (theta[0] + step[0], theta[1] + step[1])
            if free:
                tried = self._within_reach(tried)
            left = self._residual(tried)
            if float(weight @ left**2) <= loss:
                return tried, left
            step = (step[0] / 2, step[1] / 2)
        return theta, residual

    def _within_reach(self, theta: Theta) -> Theta:
        (low0, low1), (high0, high1) = self._lowest, self._highest
        return min(max(theta[0], low0), high0), min(max(theta[1], low1), high1)

    def _jacobian(self, theta: Theta) -> Vector:
        share = np.exp(theta[0] - np.logaddexp(theta[0], theta[1] + self._log_sizes))  # of alpha in T
        return np.stack((share, 1 - share), axis=1)

    def _residual(self, theta: Theta) -> Vector:
        return self._log_seconds - np.logaddexp(theta[0], theta[1] + self._log_sizes)


def dot(left: Theta, right: Theta) -> float:
    return left[0] * right[0] + left[1] * right[1]
