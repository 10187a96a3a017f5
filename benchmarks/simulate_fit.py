"""What the fit is worth, on curves whose truth is known.

    python benchmarks/simulate_fit.py [--curves 2000] [--seed 1] [--output results/statistics-fit.md]

Every curve goes the whole way from records to `fit_curve`. A time is the model's, times lognormal noise, times an
outlier's factor here and there, times a factor common to all sizes of a run. Beside it stand ordinary least squares
of T on D, one line for every curve, and other prices of a break. Seeded: the same arguments give the same table.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commbench.analyze.fit import CurveFit, Estimate, fit_curve
from commbench.analyze.segments import best_of_each_count, every_cut, price_of_a_break
from commbench.analyze.summary import Curve, curves, points
from commbench.records import Record, Seconds
from commbench.spec import Point
from commbench.stats import t_quantile
from commbench.units import format_size

Vector = npt.NDArray[np.float64]
Truth = Callable[[Vector], Vector]

POINT = Point(
    op="allreduce", in_place=True, dtype="float32", redop="sum", root=None, bytes=0, ranks=2, backend="mpi",
    device="cpu", path="auto", mode="sync", cache="hot",
)  # fmt: skip
ALPHA, BANDWIDTH = 5e-6, 1e10
SWITCH = 256 << 10
SIZES = tuple(8 << i for i in range(31))  # 8 B to 8 GiB


def one_line(sizes: Vector) -> Vector:
    """5 us + D / 10 GB/s."""
    return ALPHA + sizes / BANDWIDTH


def switched(sizes: Vector) -> Vector:
    """5 us + D / 5 GB/s below 256 KiB, 20 us + D / 10 GB/s from there."""
    return np.where(sizes < SWITCH, 5e-6 + sizes / 5e9, 20e-6 + sizes / 1e10)


def late(sizes: Vector) -> Vector:
    """A protocol of 2 us + D / 2 GB/s that is kept up to 64 KiB, though 8 us + D / 10 GB/s is faster from 15 KB on."""
    return np.where(sizes <= 64 << 10, 2e-6 + sizes / 2e9, 8e-6 + sizes / 1e10)


def dip(sizes: Vector) -> Vector:
    """NCCL's shape: bandwidth falls to 0.4 of the line's in the middle (tuning.cc, treeCorrectionFactor)."""
    factor = 1 - 0.6 * np.exp(-(((np.log2(sizes) - 23) / 2.5) ** 2))
    return 20e-6 + sizes / (3e11 * factor)


@dataclass(frozen=True)
class Noise:
    """Of each time (share), outliers (share of them, factor), and of each run as a whole (share)."""

    each: float = 0.05
    outliers: float = 0.02
    factor: float = 1.5
    run: float = 0.0
    runs: int = 1


def draw(truth: Truth, noise: Noise, count: int, seed: int, sizes: Sequence[int] = SIZES) -> Iterator[Curve]:
    """Curves of that truth under that noise."""
    random = np.random.default_rng(seed)
    exact = truth(np.array(sizes, dtype=float))
    for _ in range(count):
        records = []
        for run in range(1, noise.runs + 1):
            times = exact * np.exp(
                noise.each * random.standard_normal(len(sizes)) + noise.run * random.standard_normal()
            )
            times = np.where(random.random(len(sizes)) < noise.outliers, noise.factor * times, times)
            records += [
                Record(point=replace(POINT, bytes=size), run=run, seconds=Seconds(median=median), check="ok")
                for size, median in zip(sizes, times.tolist(), strict=True)
            ]
        [curve] = curves(points(records))
        yield curve


@dataclass(frozen=True)
class Figures:
    """How well a quantity was estimated: shares; None where nothing was claimed."""

    bias: float
    rmse: float
    coverage: float
    half: float
    known: float

    @classmethod
    def of(cls, estimates: Sequence[Estimate], truth: float) -> Figures:
        known = [e for e in estimates if e.value is not None and e.low is not None and e.high is not None]
        ratios = np.array([e.value for e in known], dtype=float) / truth - 1
        held = [e.low <= truth <= e.high for e in known]  # type: ignore[operator]
        halves = [(e.high - e.low) / (2 * abs(e.value)) for e in known]  # type: ignore[operator,arg-type]
        return cls(
            float(ratios.mean()),
            float(np.sqrt((ratios**2).mean())),
            sum(held) / len(known),
            float(np.median(halves)),
            len(known) / len(estimates),
        )

    def cells(self) -> list[str]:
        return [f"{100 * self.bias:+.2f} %", f"{100 * self.rmse:.3g} %", f"{100 * self.coverage:.1f} %",
                f"{100 * self.half:.3g} %"]  # fmt: skip


def least_squares(curve: Curve) -> tuple[Estimate, Estimate]:
    """Alpha and B by ordinary least squares of T on D with its textbook 95 % intervals."""
    sizes = np.array([point.point.bytes for point in curve.points], dtype=float)
    seconds = np.array([point.seconds.median for point in curve.points if point.seconds])
    design = np.stack((np.ones_like(sizes), sizes / sizes.max()), axis=1)
    (alpha, slope), *_ = np.linalg.lstsq(design, seconds, rcond=None)
    left = seconds - design @ (alpha, slope)
    covariance = np.linalg.inv(design.T @ design) * (left @ left) / (len(sizes) - 2)
    half_alpha, half_slope = t_quantile(0.975, len(sizes) - 2) * np.sqrt(np.diag(covariance))
    low, high = (sizes.max() / (slope + side * half_slope) for side in (1, -1))
    return (
        Estimate(float(alpha), float(alpha - half_alpha), float(alpha + half_alpha)),
        Estimate(float(sizes.max() / slope), float(low), float(high)),
    )


def of_fit(curve: Curve, segments: int | None = None) -> tuple[Estimate, Estimate]:
    fitted = fit_curve(curve, segments)
    return fitted.alpha, fitted.bandwidth


def within_run(curve: Curve) -> tuple[Estimate, Estimate]:
    """What one run alone claims, with the same breaks."""
    alone = [replace(point, by_run=point.by_run[:1]) for point in curve.points]
    return of_fit(Curve(curve.key, tuple(replace(p, seconds=Seconds(median=p.by_run[0][1])) for p in alone)))


ESTIMATORS: dict[str, Callable[[Curve], tuple[Estimate, Estimate]]] = {
    "least squares of T on D": least_squares,
    "Student t(4) in logs, one line": partial(of_fit, segments=1),
    "**commbench fit**": of_fit,
}


def accuracy(truth: Truth, noise: Noise, count: int, seed: int) -> dict[str, tuple[Figures, Figures]]:
    """For each estimator the figures of alpha and of B."""
    found = {}
    drawn = list(draw(truth, noise, count, seed))
    estimators = ESTIMATORS | ({"one of the runs alone": within_run} if noise.runs > 1 else {})
    for name, estimator in estimators.items():
        alphas, bandwidths = zip(*map(estimator, drawn), strict=True)
        found[name] = Figures.of(alphas, ALPHA), Figures.of(bandwidths, BANDWIDTH)
    return found


def false_switches(sizes: Sequence[int], count: int, seed: int) -> dict[str, float]:
    """Share of curves of one line that are split, by the price of a break."""
    number = len(sizes)
    prices = {
        "BIC": 3 * math.log(number),
        "two more a break": 5 * math.log(number),
        "**x n / (n - 4)**": price_of_a_break(number),
    }
    split: Counter[str] = Counter()
    for curve in draw(one_line, Noise(), count, seed, sizes):
        logs = np.log(sizes), np.log([p.seconds.median for p in curve.points if p.seconds])
        found = best_of_each_count(*logs, every_cut(number, (1, 2, 3)))
        for name, price in prices.items():
            split[name] += len(min(found, key=lambda one, price=price: price * len(one[0]) - 2 * one[1])[0]) > 0
    return {name: split[name] / count for name in prices}


def shares(fits: Sequence[CurveFit], holds: Callable[[CurveFit], bool]) -> float:
    """Share of fits of which something holds."""
    return sum(map(holds, fits)) / len(fits)


def bounds_hold(count: int, seed: int) -> tuple[float, float]:
    """Share of one-sided bounds that hold, where a sweep ends below n_1/2 (B) or begins above it (alpha)."""
    low = [fit_curve(c).bandwidth.lower for c in draw(one_line, Noise(), count, seed, SIZES[:12])]
    high = [fit_curve(c).alpha.upper for c in draw(one_line, Noise(), count, seed, SIZES[14:])]
    known = [b for b in low if b is not None], [a for a in high if a is not None]
    return sum(b <= BANDWIDTH for b in known[0]) / len(known[0]), sum(a >= ALPHA for a in known[1]) / len(known[1])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _accuracy_table(found: dict[str, tuple[Figures, Figures]]) -> str:
    head = [
        "estimator",
        *(f"{of} {what}" for of in ("alpha", "B") for what in ("bias", "rmse", "covered", "± (median)")),
    ]
    return _table(head, [[name, *alpha.cells(), *bandwidth.cells()] for name, (alpha, bandwidth) in found.items()])


def report(count: int, seed: int) -> str:
    """The whole table, as Markdown."""
    command = f"python benchmarks/simulate_fit.py --curves {count} --seed {seed}"
    parts = [
        "# What the fit is worth",
        "",
        f"`{command}`. Unless said otherwise: 31 sizes from 8 B to 8 GiB, 5 % lognormal noise, 2 % of the times",
        "half as long again. Intervals are 95 %.",
        "",
    ]
    scenarios: list[tuple[str, Truth, Noise]] = [
        ("One line: 5 us + D / 10 GB/s", one_line, Noise()),
        ("A switch at 256 KiB: 5 us + D / 5 GB/s below, 20 us + D / 10 GB/s from there", switched, Noise()),
        ("Three runs, a factor of 2 % common to all sizes of a run; one line", one_line, Noise(run=0.02, runs=3)),
        ("Three runs, a factor of 2 %; the switch", switched, Noise(run=0.02, runs=3)),
    ]
    for title, truth, noise in scenarios:
        parts += [f"## {title}\n", _accuracy_table(accuracy(truth, noise, count, seed)), ""]
        print(title, file=sys.stderr)
    parts += ["## Switches that are none: share of one-line curves that are split\n", _false_table(count, seed), ""]
    print("false switches", file=sys.stderr)
    parts += ["## Where the switch at 256 KiB is put, and what is said about the fit\n", *_judgements(count, seed)]
    return "\n".join(parts)


def _false_table(count: int, seed: int) -> str:
    rows = []
    for number in (8, 10, 12, 16, 20, 24, 31):
        sizes = [round(8 * 2 ** (30 * i / (number - 1))) for i in range(number)]
        found = false_switches(sizes, count, seed)
        rows.append([str(number), *map(_percent, found.values())])
    return _table(["sizes", *found], rows)


def _judgements(count: int, seed: int) -> Iterator[str]:
    fits = [fit_curve(curve) for curve in draw(switched, Noise(), count, seed)]
    at = SIZES.index(SWITCH)
    near = {SIZES[at + side] for side in (-1, 0, 1)}
    found, alone = shares(fits, lambda f: len(f.segments) > 1), shares(fits, lambda f: len(f.segments) == 2)
    there, about = shares(fits, lambda f: SWITCH in f.switches), shares(fits, lambda f: bool(near & set(f.switches)))
    yield (
        f"The switch is found in {_percent(found)} of the curves, as the only one in {_percent(alone)}; at the right "
        f"size in {_percent(there)}, within one size in {_percent(about)}.\n"
    )
    rows = []
    for title, truth, segments in (
        ("one line", one_line, None),
        ("the switch", switched, None),
        ("the switch, `--segments 1`", switched, 1),
        ("NCCL's dip", dip, None),
        ("NCCL's dip, `--segments 1`", dip, 1),
    ):
        cells = []
        for runs in (1, 3):
            drawn = draw(truth, Noise(run=0.02 * (runs > 1), runs=runs), count, seed)
            cells.append(_percent(shares([fit_curve(c, segments) for c in drawn], lambda f: f.quality == "poor")))
        rows.append([title, *cells])
    yield _table(["called poor", "one run", "three runs"], rows) + "\n"
    print("judgements", file=sys.stderr)
    told = [fit_curve(curve) for curve in draw(late, Noise(), count, seed)]
    yield (
        "A protocol kept up to 64 KiB though the next one would be 139 % faster there: called late in "
        f"{_percent(shares(told, _says('late')))}. The switch at 256 KiB is in its place; it is called late in "
        f"{_percent(shares(fits, _says('late')))} and early in {_percent(shares(fits, _says('early')))}.\n"
    )
    low, high = bounds_hold(count, seed)
    yield (
        f"One-sided 95 % bounds (n_1/2 is 48.8K): B is at least the bound in {_percent(low)} of the sweeps that end "
        f"at {format_size(SIZES[11])}, alpha at most the bound in {_percent(high)} of those that begin at "
        f"{format_size(SIZES[14])}.\n"
    )


def _says(word: str) -> Callable[[CurveFit], bool]:
    return lambda fitted: any(f" {word}: " in note for note in fitted.notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    text = report(asked.curves, asked.seed)
    if asked.output is None:
        print(text)
    else:
        asked.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
