"""Statistics of one point: a bounded trace, an interval of the median, the stop rule, what is odd.

Pure numpy, used by the ranks while they measure and by every reader afterwards. `docs/measuring.md` gives
the reasons and the simulations behind the constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]

TRACE_SIZE = 4096
SLICES = 20
MIN_SAMPLES = 60
MIN_SECONDS = 0.3
MIN_VISITS = 3
MAX_LAG1 = 0.2
UNSTABLE = 0.05
_WIDEST = math.log(1e6)

FLAGS: dict[str, str] = {
    "unstable": "the interval is wider than ±5%: raise --budget and --total-budget, or quieten the machine",
    "few_samples": "fewer than 60 samples: raise --budget and --total-budget",
    "drift": "the first fifth and the second half differ: the machine changed while measuring",
    "autocorrelated": "neighbouring samples move together: the interval is too narrow",
    "two_modes": "the samples form two groups: the median is not a speed, look at the histogram",
    "outliers": "more than 5% of the samples are far above the rest: something else uses the machine",
    "one_rank_last": "one rank is last more than half of the time",
    "too_short": "the call is shorter than 20 clock overheads: use --mode pipe",
    "state_changed": "the cores' hand-over time changed between visits (virtual machines move cores)",
    "throttled": "the GPU protected itself from heat or power: nvidia-smi -q -d PERFORMANCE says why",
    "resumed": "this run took more than one launch",
    "partial": "the launch ended before this point was finished",
}


class Trace:
    """A time-ordered sample of at most `TRACE_SIZE` values of a stream, thinned evenly.

    When it is full every second value is dropped and the stride doubles, so that drift stays visible and
    memory does not grow. All values are counted; minimum and maximum are exact.
    """

    def __init__(self) -> None:
        self._kept = np.empty(TRACE_SIZE)
        self._size = 0
        self._offset = 0
        self.stride = 1
        self.count = 0
        self.minimum = math.inf
        self.maximum = -math.inf

    def extend(self, values: Samples) -> None:
        """Add `values` (seconds) in the order they were measured."""
        if not len(values):
            return
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))
        self.count += len(values)
        while len(values):
            chosen = values[self._offset :: self.stride]
            room = TRACE_SIZE - self._size
            taken = chosen[:room]
            self._kept[self._size : self._size + len(taken)] = taken
            self._size += len(taken)
            if len(chosen) <= room:
                self._offset = self._offset + self.stride * len(chosen) - len(values)
                values = values[:0]
            else:
                values = values[self._offset + self.stride * room :]
                self._offset = 0
            if self._size == TRACE_SIZE:
                self._halve()

    def _halve(self) -> None:
        # Even positions stay; the next value to keep is one new stride after the last that stayed.
        self._kept[: TRACE_SIZE // 2] = self._kept[::2]
        self._size = TRACE_SIZE // 2
        self.stride *= 2

    @property
    def values(self) -> Samples:
        return self._kept[: self._size]


HISTOGRAM_BASE = 1e-9
HISTOGRAM_STEP = 0.01


class LogHistogram:
    """Counts in bins of 1 % from 1 ns on: any quantile within 0.5 %, whatever the number of samples."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def extend(self, values: Samples) -> None:
        bins = np.floor(np.log(np.maximum(values, HISTOGRAM_BASE) / HISTOGRAM_BASE) / HISTOGRAM_STEP).astype(int)
        for position, count in zip(*np.unique(bins, return_counts=True), strict=True):
            self.counts[int(position)] = self.counts.get(int(position), 0) + int(count)

    def to_json(self) -> dict[str, list[int] | float]:
        """Sparse: `bins[k]` holds `counts[k]` samples in [base·e^(step·bin), base·e^(step·(bin+1)))."""
        bins = sorted(self.counts)
        return {
            "base": HISTOGRAM_BASE,
            "step": HISTOGRAM_STEP,
            "bins": bins,
            "counts": [self.counts[position] for position in bins],
        }


@dataclass(frozen=True, slots=True)
class Precision:
    """How well a trace knows its median.

    Attributes:
        median: seconds.
        half_width: relative 95 % half-width in log time, None below two samples.
        lag1: correlation of neighbouring slice medians.
    """

    median: float
    half_width: float | None
    lag1: float

    def interval(self, clock_step: float = 0.0) -> tuple[float | None, float | None]:
        """Median x exp(± half-width), widened by half a clock step."""
        if self.half_width is None:
            return None, None
        factor = math.exp(self.half_width)
        return max(self.median / factor - clock_step / 2, 0.0), self.median * factor + clock_step / 2


def precision_of(trace: Samples) -> Precision:
    """Interval of the median from 20 equal consecutive slices (fewer when there are fewer samples).

    Slices, unlike order statistics, keep their coverage when samples are correlated: 91 to 93 % against
    29 to 78 % in simulation (docs/measuring.md).
    """
    median = float(np.median(trace))
    slices = min(SLICES, len(trace))
    if slices < 2 or median <= 0:  # noqa: PLR2004 - two medians make a spread
        return Precision(median, None, 0.0)
    logs = np.log([np.median(part) for part in np.array_split(trace, slices)])
    spread = float(logs.std(ddof=1))
    half_width = t_quantile(0.975, slices - 1) * spread / math.sqrt(slices)
    # Two samples a hundred times apart "know" the median to a factor of 10^12: that is no interval.
    return Precision(median, half_width if half_width < _WIDEST else None, _lag1(logs))


def _lag1(values: Samples) -> float:
    centred = values - values.mean()
    power = float(centred @ centred)
    # Medians that differ by rounding alone are equal, not correlated.
    return float(centred[1:] @ centred[:-1]) / power if power > len(values) * 1e-18 else 0.0


def is_precise(trace: Trace, measured_seconds: float, visits: int, target: float) -> bool:
    """The stop rule: enough samples, time and visits, a narrow interval, and slices that do not follow each other.

    `measured_seconds` is wall time spent on the point. A first look after a few microseconds would often
    be wrong, whatever the interval says: machines change state within seconds.
    """
    if trace.count < MIN_SAMPLES or measured_seconds < MIN_SECONDS or visits < MIN_VISITS:
        return False
    now = precision_of(trace.values)
    return now.half_width is not None and now.half_width <= target and now.lag1 <= MAX_LAG1


def oddities(trace: Trace, clock_step: float, clock_overhead: float) -> list[str]:
    """Flags (keys of `FLAGS`) that the samples alone give rise to."""
    values = trace.values
    known = precision_of(values)
    flags = []
    if known.half_width is None or known.half_width > UNSTABLE:
        flags.append("unstable")
    if trace.count < MIN_SAMPLES:
        flags.append("few_samples")
    if known.median < 20 * clock_overhead:
        flags.append("too_short")
    if len(values) < MIN_SAMPLES:
        return flags
    if has_drifted(values, clock_step):
        flags.append("drift")
    if known.lag1 > 2 / math.sqrt(SLICES):
        flags.append("autocorrelated")
    if has_two_modes(values, clock_step):
        flags.append("two_modes")
    q1, q3 = np.quantile(values, (0.25, 0.75))
    if np.mean(values > q3 + 3 * max(q3 - q1, clock_step)) > 0.05:  # noqa: PLR2004 - the flag's own text
        flags.append("outliers")
    return flags


def has_drifted(values: Samples, clock_step: float) -> bool:
    """The medians of the first fifth and of the second half differ by more than 2 %, a clock step and chance.

    Chance: four standard errors of the difference of two medians, from the interquartile range.
    """
    early, late = values[: len(values) // 5], values[len(values) // 2 :]
    before, after = float(np.median(early)), float(np.median(late))
    q1, q3 = np.quantile(np.log(values), (0.25, 0.75))
    error = 1.2533 * (q3 - q1) / 1.349 * math.sqrt(1 / len(early) + 1 / len(late))
    return abs(math.log(after / before)) > max(0.02, 4 * error) and abs(after - before) > clock_step


def has_two_modes(values: Samples, clock_step: float) -> bool:
    """Two groups of at least 20 % each, 10 % apart, with a valley below half of the lower peak between them."""
    logs = np.log(values)
    low, high = np.quantile(logs, (0.01, 0.99))
    # A clock that ticks every 40 ns draws a comb through 300 ns calls: bins must be wider than its teeth.
    width = max(0.02, 2 * clock_step / float(np.exp(low)))
    if high - low < max(0.1, 3 * width):
        return False
    counts, _ = np.histogram(logs, bins=np.arange(low - width, high + 2 * width, width))
    smooth = np.convolve(counts, (0.25, 0.5, 0.25), mode="same")
    share = np.cumsum(counts) / len(values)
    for valley in range(1, len(smooth) - 1):
        left, right = smooth[:valley], smooth[valley + 1 :]
        if not 0.2 <= share[valley] <= 0.8 or smooth[valley] >= 0.5 * min(left.max(), right.max()):  # noqa: PLR2004
            continue
        if (valley + 1 + right.argmax() - left.argmax()) * width >= 0.1:  # noqa: PLR2004
            return True
    return False


def interval_over(values: list[float]) -> tuple[float, float, float]:
    """Geometric mean of per-run values and its 95 % t interval in log: (value, low, high).

    Needs two values or more. With three runs it covers the truth 96 % of the time where an interval within
    one run covers 71 to 85 % (docs/measuring.md).
    """
    logs = np.log(values)
    centre = float(logs.mean())
    half = t_quantile(0.975, len(values) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(values))
    return math.exp(centre), math.exp(centre - half), math.exp(min(centre + half, 700.0))  # a float ends at e^709


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t for a probability above one half, to four digits or better.

    Hill's expansion (ACM algorithm 396); exact for 1 and 2 degrees of freedom.
    scipy has it too, but takes half a second to import, and ranks and `show` should not pay that.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:  # noqa: PLR2004 - closed form
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    tail = 2 * (1 - probability)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    y = y0 = (d * tail) ** (2 / freedom)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tail / 2)
        y = x * x
        if freedom < 5:  # noqa: PLR2004 - as published
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = 1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3) + 0.5 / (freedom + 4)
        y = (y * y0 - 1) * (freedom + 1) / (freedom + 2) + 1 / y0
    return math.sqrt(freedom * y)
