"""How often `show` cries wolf about a clean curve, and how often it finds a real fault: `analyze/shape.py`, simulated.

    .venv/bin/python benchmarks/simulate_findings.py          writes results/statistics-findings.md (5 minutes)

Seeded. Times are a law of size, times lognormal noise. Clean curves may change their protocol, early or in time,
and may have the bandwidth of NCCL's trees in middle sizes: none of that is odd.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commbench.analyze.lines import Sample, roughness
from commbench.analyze.shape import Oddity, oddities_of_shape

Times = list[float]
Law = Callable[[Sequence[int], random.Random], Times]
Fault = Callable[[Sequence[int], Times, random.Random], tuple[Times, Callable[[Oddity], bool]]]

# NCCL's treeCorrectionFactor for its protocol LL, from 64 B on (src/graph/tuning.cc).
TREE = (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9)  # fmt: skip

GRIDS = {
    "24 sizes, 8 B to 64 MiB": [8 << i for i in range(24)],
    "31 sizes, 8 B to 8 GiB": [8 << i for i in range(31)],
    "12 sizes, factor 4": [8 << 2 * i for i in range(12)],
    "10 sizes, 1 KiB to 512 KiB": [1024 << i for i in range(10)],
}

_WIDE = "31 sizes, 8 B to 8 GiB"


def line(sizes: Sequence[int], draw: random.Random) -> Times:
    """Latency alpha of 1 to 50 us, n_1/2 of 4 KiB to 1 MiB."""
    alpha, half = 10 ** draw.uniform(-6, -4.3), 2 ** draw.uniform(12, 20)
    return [alpha * (1 + size / half) for size in sizes]


def switch(sizes: Sequence[int], _draw: random.Random) -> Times:
    """docs/method.md: 5 us + D / (5 GB/s) below 256 KiB, 20 us + D / (10 GB/s) from there on."""
    return [5e-6 + size / 5e9 if size < 256 << 10 else 20e-6 + size / 10e9 for size in sizes]


def early_switch(sizes: Sequence[int], draw: random.Random) -> Times:
    """A second protocol with up to 6 alphas and 4 B, taken up to 16 times too early, as rendezvous often is."""
    alpha, half = 10 ** draw.uniform(-6, -4.3), 2 ** draw.uniform(10, 18)
    bandwidth, more, faster = half / alpha, draw.uniform(1, 6), draw.uniform(1.2, 4)
    in_time = alpha * (more - 1) / (1 / bandwidth - 1 / (bandwidth * faster))
    at = in_time * 2 ** draw.uniform(-4, 0)
    return [alpha + s / bandwidth if s < at else alpha * more + s / (bandwidth * faster) for s in sizes]


def tree(sizes: Sequence[int], draw: random.Random) -> Times:
    """Bandwidth down to 0.4 in middle sizes, as NCCL models its trees; alpha = 20 us, 10 to 300 GB/s."""
    bandwidth = 10 ** draw.uniform(10, 11.5)
    factors = [TREE[i] if 0 <= (i := int(math.log2(size)) - 6) < len(TREE) else 1 for size in sizes]
    return [20e-6 + size / (bandwidth * factor) for size, factor in zip(sizes, factors, strict=True)]


LAWS: dict[str, Law] = {
    "alpha + D/B": line,
    "protocol switch at 256 KiB": switch,
    "protocol switch, up to 16 times too early": early_switch,
    "NCCL's mid-size dip": tree,
}


@dataclass(frozen=True)
class Noise:
    """Lognormal noise of each time, of each run as a whole, and how many runs; one run has no interval."""

    each: float
    run: float = 0.0
    runs: int = 1

    def measured(self, sizes: Sequence[int], times: Times, draw: random.Random) -> list[Sample]:
        factors = [self.run * draw.gauss(0, 1) for _ in range(self.runs)]
        logs = [[math.log(t) + f + self.each * draw.gauss(0, 1) for f in factors] for t in times]
        means = [sum(log) / self.runs for log in logs]
        own = [
            math.sqrt(sum((x - mean) ** 2 for x in log) / (self.runs - 1) / self.runs) if self.runs > 1 else 0.0
            for log, mean in zip(logs, means, strict=True)
        ]
        rough = roughness(sizes, list(map(math.exp, means)))
        return [Sample(size, mean, max(o, rough)) for size, mean, o in zip(sizes, means, own, strict=True)]


NOISES = {
    "5 %, no intervals": Noise(0.05),
    "2 %, no intervals": Noise(0.02),
    "10 %, no intervals": Noise(0.10),
    "3 runs (run 2 %, each 3 %)": Noise(0.03, 0.02, 3),
}


def slow_size(factor: float, width: int = 1, above: int = 1) -> Fault:
    """`width` sizes that take `factor` times as long, with at least `above` sizes after them."""

    def fault(sizes: Sequence[int], times: Times, draw: random.Random) -> tuple[Times, Callable[[Oddity], bool]]:
        first = draw.randrange(1, len(sizes) - width - above + 1)
        slow = set(sizes[first : first + width])
        slower = [time * factor if size in slow else time for size, time in zip(sizes, times, strict=True)]
        return slower, lambda oddity: bool(slow & set(oddity.sizes))

    return fault


def sunk(depth: float) -> Fault:
    """Bandwidth that loses `depth` over two steps and stays there for the three to five largest sizes."""

    def fault(sizes: Sequence[int], times: Times, draw: random.Random) -> tuple[Times, Callable[[Oddity], bool]]:
        start = len(sizes) - draw.randrange(3, 6)
        lost = [depth * min(max(i - start + 2, 0) / 2, 1) for i in range(len(sizes))]
        return [t / (1 - x) for t, x in zip(times, lost, strict=True)], _stays_slow

    return fault


def step(factor: float, *, low: float, high: float) -> Fault:
    """All times from some size on `factor` as long, where time grows with size to the power of `low` to `high`."""

    def fault(sizes: Sequence[int], times: Times, draw: random.Random) -> tuple[Times, Callable[[Oddity], bool]]:
        slopes = [math.log(times[i + 1] / times[i]) / math.log(sizes[i + 1] / sizes[i]) for i in range(len(sizes) - 1)]
        places = [i + 1 for i, slope in enumerate(slopes) if low <= slope <= high and 3 <= i <= len(sizes) - 4]
        start = draw.choice(places or [len(sizes) - 4])
        return [time * factor if i >= start else time for i, time in enumerate(times)], _stays_slow

    return fault


def late_switch(factor: float) -> Fault:
    """Small sizes up to some size take `factor` times as long: the time falls from there to the next."""

    def fault(_sizes: Sequence[int], times: Times, draw: random.Random) -> tuple[Times, Callable[[Oddity], bool]]:
        latency = [i for i, time in enumerate(times) if time < 1.2 * times[0] and i >= 3]
        last = draw.choice(latency[:-1] or [3])
        slower = [time * factor if i <= last else time for i, time in enumerate(times)]
        return slower, lambda oddity: oddity.kind == "time_falls"

    return fault


def _stays_slow(oddity: Oddity) -> bool:
    return oddity.kind in ("cliff", "sinking_plateau", "step")


FAULTS: dict[str, Fault] = {
    "one size x 2, anywhere but the ends": slow_size(2.0),
    "one size x 2, three or more sizes above it": slow_size(2.0, above=3),
    "one size x 1.5, three or more sizes above it": slow_size(1.5, above=3),
    "two neighbouring sizes x 2, three or more above": slow_size(2.0, width=2, above=3),
    "the largest 3 to 5 sizes lose 30 % of bandwidth": sunk(0.3),
    "the largest 3 to 5 sizes lose half": sunk(0.5),
    "step x 1.5 where bandwidth counts (slope > 0.8)": step(1.5, low=0.8, high=1.1),
    "step x 2 where bandwidth counts (slope > 0.8)": step(2.0, low=0.8, high=1.1),
    "step x 2 midway (slope 0.3 to 0.8)": step(2.0, low=0.3, high=0.8),
    "step x 1.5 among latencies (slope < 0.2): as a switch": step(1.5, low=0.0, high=0.2),
    "time falls by a third over one gap": late_switch(1.5),
}


def false_findings(law: Law, noise: Noise, sizes: Sequence[int], count: int, seed: int) -> float:
    """Share of clean curves about which anything is found."""
    draw = random.Random(seed)
    return sum(bool(oddities_of_shape(noise.measured(sizes, law(sizes, draw), draw))) for _ in range(count)) / count


def power(fault: Fault, law: Law, noise: Noise, sizes: Sequence[int], count: int, seed: int) -> tuple[float, float]:
    """Share of faulty curves whose fault is found, and of those about which something else is (also) said."""
    draw = random.Random(seed)
    found = extra = 0
    for _ in range(count):
        times, is_it = fault(sizes, law(sizes, draw), draw)
        oddities = oddities_of_shape(noise.measured(sizes, times, draw))
        hits = sum(map(is_it, oddities))
        found += hits > 0
        extra += len(oddities) > hits
    return found / count, extra / count


def report(count: int) -> str:
    """Both tables as Markdown."""
    usual = next(iter(GRIDS))
    settings = [(noise, usual) for noise in NOISES]
    settings += [("5 %, no intervals", grid) for grid in list(GRIDS)[1:]]
    text = [
        "# Findings about the shape of curves: false ones and power",
        "",
        f"`benchmarks/simulate_findings.py`, {count} curves a cell, seeded. One time a size; without intervals the",
        "noise must be read off the curve itself, as for numbers imported from other tools.",
        "",
        f"## Clean curves about which anything is said, %; {usual} where no others are named",
        "",
        _row("law", *NOISES, *(f"5 %; {grid}" for grid in list(GRIDS)[1:])),
        _row(*["---"] * (len(settings) + 1)),
    ]
    for name, law in LAWS.items():
        cells = [100 * false_findings(law, NOISES[n], GRIDS[g], count, 1) for n, g in settings]
        text.append(_row(name, *(f"{cell:.1f}" for cell in cells)))
        _show(text[-1])
    text += ["", f"## Faults found, %, on alpha + D/B of {_WIDE}", "", "In brackets: something else said."]
    text += ["", _row("fault", *NOISES), _row(*["---"] * (len(NOISES) + 1))]
    for name, fault in FAULTS.items():
        pairs = [power(fault, line, noise, GRIDS[_WIDE], count, 2) for noise in NOISES.values()]
        text.append(_row(name, *(f"{100 * found:.0f} ({100 * extra:.1f})" for found, extra in pairs)))
        _show(text[-1])
    return "\n".join(text) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _show(row: str) -> None:
    print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    target = Path(__file__).resolve().parent.parent / "results" / "statistics-findings.md"
    target.write_text(report(int(sys.argv[1]) if len(sys.argv) > 1 else 2000), encoding="utf-8")
