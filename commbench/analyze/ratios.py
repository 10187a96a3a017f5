"""How many times the time of one measurement another one takes, with an interval that says what it is over.

All in logarithms: a ratio and its inverse must be equally sure, and the noise of a time is a share of it.

* Over runs, k >= 2 on both sides: Welch's t interval of the difference of mean logs, as runs of two files need
  not scatter alike. [B. L. Welch, Biometrika 34 (1947)]
* Over the same runs (two curves out of the same launches): t over the runs' own ratios, since what one launch
  does to both cancels.
* Otherwise the two intervals that there are, combined side by side: what a sum of two independent errors can be
  is the root of the sum of their squares. [G. Y. Zou, A. Donner, Statistics in Medicine 27 (2008)] Such an
  interval knows nothing of how launches differ, and is labelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.analyze.fit import CurveFit, Estimate
from commbench.analyze.summary import PointSummary
from commbench.stats import t_quantile

Basis = Literal["runs", "same_runs", "within_run", "none"]

_LEAST_RUNS = 2
_FARTHEST = 700.0  # log of the largest number: beyond it lies no measurement


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval, None where nothing is known about how sure it is.

    Attributes:
        basis: what the interval is over: launches, the same launches on both sides, the inside of one launch
            (on one side at least), or nothing.
    """

    value: float
    low: float | None = None
    high: float | None = None
    basis: Basis = "none"

    @property
    def side(self) -> int:
        """1 when the whole interval lies above 1, -1 when below, 0 when it holds 1 or is not known."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 1 else -1 if self.high < 1 else 0

    @property
    def holds_one(self) -> bool | None:
        """Whether the interval holds 1; None when there is none."""
        return None if self.low is None or self.high is None else self.low <= 1 <= self.high

    def scaled(self, factor: float) -> Ratio:
        """`factor` times the ratio."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Ratio(self.value * factor, low, high, self.basis)

    def inverse(self) -> Ratio:
        """1 / ratio."""
        low = 1 / self.high if self.high else None
        return Ratio(1 / self.value, low, 1 / self.low if self.low else None, self.basis)


def of_points(first: PointSummary, other: PointSummary, *, same_launches: bool = False) -> Ratio:
    """Time of `other` / time of `first`; both must have times above 0.

    `same_launches`: run numbers mean the same launches on both sides.
    """
    assert first.seconds is not None
    assert other.seconds is not None
    ours, theirs = dict(first.by_run), dict(other.by_run)
    if min(len(ours), len(theirs)) >= _LEAST_RUNS:
        return of_runs(ours, theirs, same_launches=same_launches)
    estimates = [Estimate(known.median, known.low, known.high) for known in (first.seconds, other.seconds)]
    return _combined(*estimates)


def of_runs(first: dict[int, float], other: dict[int, float], *, same_launches: bool = False) -> Ratio:
    """Ratio of the geometric means of two sets of values above 0, each run -> value with two runs at least."""
    if same_launches and first.keys() == other.keys():
        centre, error = _mean([math.log(other[run] / first[run]) for run in first])
        return _interval(centre, t_quantile(0.975, len(first) - 1) * error, "same_runs")
    (ours, our_error), (theirs, their_error) = (_mean([math.log(v) for v in run.values()]) for run in (first, other))
    half = _welch((our_error, len(first) - 1), (their_error, len(other) - 1))
    return _interval(theirs - ours, half, "runs")


def of_level(points: Sequence[tuple[PointSummary, PointSummary]], *, same_launches: bool = False) -> Ratio | None:
    """Geometric mean over sizes of other / first, one (first, other) a size; None without sizes.

    With runs on both sides the interval is over the runs' own geometric means, so that what moves a launch as a
    whole counts once. Runs that lack one of the sizes cannot take part; where fewer than two are left on a side
    although there are several, nothing honest can be said of how sure the mean is.
    """
    if not points:
        return None
    whole = [_complete(side) for side in zip(*points, strict=True)]
    if all(len(runs) >= _LEAST_RUNS for runs in whole):
        return of_runs(*whole, same_launches=same_launches)
    each = [of_points(first, other, same_launches=same_launches) for first, other in points]
    centre = math.fsum(math.log(ratio.value) for ratio in each) / len(each)
    if any(ratio.basis != "within_run" for ratio in each):
        return Ratio(_exp(centre))
    below, above = (
        math.sqrt(math.fsum(math.log(bound / ratio.value) ** 2 for ratio, bound in zip(each, bounds, strict=True)))
        for bounds in ([ratio.low or 1.0 for ratio in each], [ratio.high or 1.0 for ratio in each])
    )
    return Ratio(_exp(centre), _exp(centre - below / len(each)), _exp(centre + above / len(each)), "within_run")


def of_fits(first: tuple[Estimate, CurveFit], other: tuple[Estimate, CurveFit]) -> Ratio | None:
    """Ratio of a parameter of two fits, given with its fit; None unless it is identified in both.

    A fit keeps no values of its runs, so that curves of the same launches count as independent: the interval is
    then rather too wide.
    """
    (ours, our_fit), (theirs, their_fit) = first, other
    if ours.value is None or theirs.value is None:
        return None
    combined = _combined(ours, theirs)
    if combined.low is None or our_fit.interval != "runs" or their_fit.interval != "runs":
        return combined
    errors = []
    for estimate, runs in ((ours, our_fit.runs), (theirs, their_fit.runs)):
        assert estimate.low is not None
        assert estimate.high is not None
        half = math.log(estimate.high / estimate.low) / 2
        errors.append((half / t_quantile(0.975, runs - 1), runs - 1))
    return _interval(math.log(theirs.value / ours.value), _welch(*errors), "runs")


def _complete(points: Sequence[PointSummary]) -> dict[int, float]:
    """Geometric mean over the points of every run that has all of them."""
    runs = [dict(point.by_run) for point in points]
    whole = [run for run in runs[0] if all(run in other for other in runs)]
    return {run: _exp(math.fsum(math.log(of[run]) for of in runs) / len(runs)) for run in whole}


def _mean(logs: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, of two values or more."""
    centre = math.fsum(logs) / len(logs)
    variance = math.fsum((log - centre) ** 2 for log in logs) / (len(logs) - 1)
    return centre, math.sqrt(variance / len(logs))


def _welch(first: tuple[float, int], other: tuple[float, int]) -> float:
    """Half of the 95 % interval of a difference of means, from (standard error, degrees of freedom) of each."""
    (a, freedom_a), (b, freedom_b) = first, other
    error = math.hypot(a, b)
    if error == 0:
        return 0.0
    freedom = 1 / ((a / error) ** 4 / freedom_a + (b / error) ** 4 / freedom_b)
    return _t_975(freedom) * error


def _t_975(freedom: float) -> float:
    """97.5 % quantile of Student's t, also for a broken number of degrees of freedom from 1 on.

    Between 1 and 2 the quantile's logarithm is nearly a straight line in 1/freedom: 2 % too large at most.
    """
    if freedom >= 2:  # noqa: PLR2004 - from there on the expansion is good to four digits
        return t_quantile(0.975, freedom)
    one, two = math.log(t_quantile(0.975, 1)), math.log(t_quantile(0.975, 2))
    return math.exp(two + (one - two) * (2 / freedom - 1))


def _combined(first: Estimate, other: Estimate) -> Ratio:
    """Other / first from two intervals that may lie unevenly about their values."""
    assert first.value is not None
    assert other.value is not None
    centre = math.log(other.value) - math.log(first.value)
    below, above = (_margins(estimate) for estimate in (first, other))
    if below is None or above is None:
        return Ratio(_exp(centre))
    (first_down, first_up), (other_down, other_up) = below, above
    low, high = centre - math.hypot(other_down, first_up), centre + math.hypot(other_up, first_down)
    return Ratio(_exp(centre), _exp(low), _exp(high), "within_run")


def _margins(estimate: Estimate) -> tuple[float, float] | None:
    """How far the interval reaches below and above its value, in logs."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or not low or not high:  # an interval that reaches down to 0 bounds no ratio
        return None
    return max(math.log(value / low), 0.0), max(math.log(high / value), 0.0)


def _interval(centre: float, half: float, basis: Basis) -> Ratio:
    return Ratio(_exp(centre), _exp(centre - half), _exp(centre + half), basis)


def _exp(log: float) -> float:
    return math.exp(min(max(log, -_FARTHEST), _FARTHEST))
