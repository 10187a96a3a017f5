"""How often the gate is wrong, and what it finds: simulation of the very rule that the product uses.

    python benchmarks/simulate_gate.py [--repetitions 4000] [--output results/statistics-gate.md]

Log time = curve + session + run + within: a factor common to all launches of a session, one common to all sizes of a
launch, and one of each point. A gate measures 5 pairs of launches in one session; of curves that are undecided 5 more
(10, where several curves share the error rate). Beside it stand the rules that CI jobs write by hand, on the same
first five launches of each side: the median over launches is more than 10 % (5 %) worse at any size.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commbench.analyze import gate_rule, gate_scores
from commbench.analyze.gate_rule import CONVICT, SUSPECT
from commbench.analyze.gate_scores import Array, Scores

SIZES, PAIRS, BY_HAND = 25, 5, 5
LARGE, ONE = np.arange(SIZES) >= 16, np.arange(SIZES) == 12


@dataclass(frozen=True)
class Noise:
    """Standard deviations of log time.

    Attributes:
        session, run, within: as above; `within` may differ by size.
        neighbours: correlation of neighbouring sizes' within.
        band: a further factor of a launch in each third of the sizes.
        disturbed: share of launches that something slows by 20 %.
        flips: probability that the cores change state, three times as slow, from one point to the next.
    """

    run: float = 0.02
    within: float | tuple[float, ...] = 0.03
    session: float = 0.02
    neighbours: float = 0.0
    band: float = 0.0
    disturbed: float = 0.0
    flips: float = 0.0


@dataclass(frozen=True)
class Share:
    """Shares of repetitions, one row of the table; no second look where a file cannot ask for one."""

    regressions: float
    passes: float
    second_look: float | None
    naive10: float
    naive5: float

    @property
    def undecided(self) -> float:
        return max(1 - self.regressions - self.passes, 0.0)


def effect(percent: float, where: npt.NDArray[np.bool_] | None = None) -> Array:
    """Log slowdown per size."""
    return np.log1p(percent / 100) * (np.ones(SIZES) if where is None else where.astype(float))


NOTHING = effect(0)
EFFECTS = {
    "nothing": NOTHING,
    "5 % at all sizes": effect(5),
    "5 % at the 9 largest": effect(5, LARGE),
    "5 % at one size": effect(5, ONE),
    "10 % at one size": effect(10, ONE),
}


@dataclass
class World:
    """Draws log times."""

    noise: Noise
    repetitions: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def session(self) -> Array:
        return self.random.normal(0, self.noise.session, (self.repetitions, 1, 1))

    def launches(self, number: int) -> Array:
        """Log times [repetition, launch, size] without curve and session."""
        noise, shape = self.noise, (self.repetitions, number, SIZES)
        own = self.random.standard_normal(shape)
        if noise.neighbours:
            for size in range(1, SIZES):
                fresh = np.sqrt(1 - noise.neighbours**2) * own[..., size]
                own[..., size] = noise.neighbours * own[..., size - 1] + fresh
        times = own * np.broadcast_to(noise.within, SIZES) + self.random.normal(0, noise.run, (*shape[:2], 1))
        if noise.band:
            times += np.repeat(self.random.normal(0, noise.band, (*shape[:2], 3)), (9, 8, 8), axis=-1)
        if noise.disturbed:
            times += np.log(1.2) * (self.random.random((*shape[:2], 1)) < noise.disturbed)
        return times

    def states(self, number: int) -> npt.NDArray[np.int64]:
        """The cores' state at each point: it flips from one to the next with probability `flips`."""
        flips = self.random.random((self.repetitions, number, SIZES)) < self.noise.flips
        flips[..., 0] = self.random.random((self.repetitions, number)) < 0.5
        return np.cumsum(flips, axis=-1) % 2


@dataclass(frozen=True)
class Paired:
    """Pairs of launches: what the gate sees, and what a hand-written rule sees of the first five."""

    ratios: Array
    baseline: Array
    candidate: Array


def pairs(world: World, number: int, slowdown: Array) -> Paired:
    """Pairs of launches; cells whose sides met different states are measured again up to twice, then dropped."""
    baseline, candidate = world.launches(number), world.launches(number) + slowdown
    if not world.noise.flips:
        return Paired(candidate - baseline, baseline, candidate)
    ours, theirs = world.states(number), world.states(number)
    ratios = np.where(ours == theirs, candidate - baseline, np.nan)
    first = baseline + np.log(3) * ours, candidate + np.log(3) * theirs
    for _ in range(2):
        again = world.launches(number) + slowdown - world.launches(number)
        met = world.states(number) == world.states(number)
        ratios = np.where(gate_rule.worth_again(ratios) & met, again, ratios)
    return Paired(ratios, *first)


def any_hit(scores: Scores, curves: int = 1) -> npt.NDArray[np.bool_]:
    return np.any(np.concatenate(gate_rule.hits(scores, CONVICT, curves), axis=-1), axis=-1)


def in_two_looks(ratios: Array, curves: int = 1) -> tuple[npt.NDArray[np.bool_], ...]:
    """(regression, pass, a second look was asked for) of each repetition."""
    first = gate_scores.scores_of_pairs(ratios[:, :PAIRS])
    second = gate_scores.scores_of_pairs(ratios)
    again = gate_rule.is_undecided(first)
    regression = again & any_hit(second, curves)
    passed = ~regression & np.where(again, gate_rule.is_equivalent(second), gate_rule.is_equivalent(first))
    return regression, passed, again


def naive(baseline: Array, candidate: Array, percent: float) -> float:
    """Share of repetitions in which the medians of five launches differ by more than `percent` at any size."""
    middle = [np.median(side[:, :BY_HAND], axis=1) for side in (baseline, candidate)]
    return float(np.mean(np.any(middle[1] - middle[0] > np.log1p(percent / 100), axis=-1)))


def interleaved(noise: Noise, slowdown: Array, repetitions: int, curves: int = 1) -> Share:
    """One curve of a gate of so many, in pairs."""
    drawn = pairs(World(noise, repetitions), PAIRS + gate_rule.more_pairs(PAIRS, curves), slowdown)
    regression, passed, again = in_two_looks(drawn.ratios, curves)
    by_hand = [naive(drawn.baseline, drawn.candidate, percent) for percent in (10, 5)]
    return Share(*(float(np.mean(found)) for found in (regression, passed, again)), *by_hand)


def whole_gate(noise: Noise, repetitions: int, curves: int = 12) -> Share:
    """A gate of several curves in which nothing changed: the share of gates with a false alarm anywhere."""
    drawn = pairs(World(noise, repetitions * curves), PAIRS + gate_rule.more_pairs(PAIRS, curves), NOTHING)
    found = [one.reshape(repetitions, curves) for one in in_two_looks(drawn.ratios, curves)]
    sides = [side.reshape(repetitions, curves, -1, SIZES).swapaxes(1, 2) for side in (drawn.baseline, drawn.candidate)]
    flat = [side.reshape(repetitions, side.shape[1], -1) for side in sides]
    by_hand = [naive(flat[0], flat[1], percent) for percent in (10, 5)]
    regression, passed, again = found
    shares = regression.any(axis=1).mean(), passed.all(axis=1).mean(), again.mean()
    return Share(*map(float, shares), *by_hand)


def two_files(noise: Noise, slowdown: Array, repetitions: int, spread: float, launches: int = 5) -> Share:
    """A stored baseline: each side in a session of its own."""
    world = World(noise, repetitions)
    baseline = world.session() + world.launches(launches)
    candidate = world.session() + world.launches(launches) + slowdown
    return _one_look(gate_scores.scores_of_sides(baseline, candidate, spread), baseline, candidate)


def many_sessions(noise: Noise, slowdown: Array, repetitions: int, sessions: int, launches: int = 5) -> Share:
    """A baseline of several sessions: each counts once, the candidate's too."""
    world = World(noise, repetitions)
    stored = np.stack([world.session() + world.launches(launches) for _ in range(sessions)], axis=1)
    candidate = world.session() + world.launches(launches) + slowdown
    means = stored.mean(axis=2), candidate.mean(axis=1, keepdims=True)
    scores = gate_scores.scores_of_sides(*means, fewest=1)
    return _one_look(scores, stored[:, -1], candidate)


def _one_look(scores: Scores, baseline: Array, candidate: Array) -> Share:
    regression = any_hit(scores)
    passed = ~regression & gate_rule.is_equivalent(scores)
    by_hand = [naive(baseline, candidate, percent) for percent in (10, 5)]
    return Share(float(regression.mean()), float(passed.mean()), None, by_hand[0], by_hand[1])


def found_at_the_smallest_detectable(noise: Noise, repetitions: int) -> tuple[float, float]:
    """(the slowdown of one size that reports name, at half of them; the share of such slowdowns that is found)."""
    quiet = pairs(World(noise, repetitions), PAIRS, NOTHING)
    seen = gate_rule.detectable(gate_scores.scores_of_pairs(quiet.ratios), SUSPECT)
    named = float(np.median(seen[:, 12]))
    slow = pairs(World(noise, repetitions, np.random.default_rng(2)), 2 * PAIRS, named * ONE.astype(float))
    found = gate_rule.hits(gate_scores.scores_of_pairs(slow.ratios), CONVICT)[2][:, 12]
    return float(np.expm1(named)), float(np.mean(found & in_two_looks(slow.ratios)[0]))


REFERENCE, NOISY = Noise(), Noise(run=0.04, within=0.06)
OTHERS = {
    "quiet: run 0.5 %, within 1 %": Noise(run=0.005, within=0.01),
    "noisy: run 4 %, within 6 %": NOISY,
    "small sizes noisier: 6 % falling to 1 %": Noise(within=tuple(np.linspace(0.06, 0.01, SIZES))),
    "one size that jumps: within 12 % there": Noise(within=tuple(np.where(np.arange(SIZES) == 8, 0.12, 0.03))),
    "neighbours correlated 0.6": Noise(neighbours=0.6),
    "each third of the sizes has a launch factor of 2 %": Noise(band=0.02),
    "5 % of launches disturbed by +20 %": Noise(disturbed=0.05),
    "two states of the cores, x3, flip at 5 % of points": Noise(flips=0.05),
}


def rows(repetitions: int) -> Iterator[tuple[str, str, Share]]:
    """(setting, what changed, shares) of the whole table."""
    for what, slowdown in EFFECTS.items():
        yield "reference: run 2 %, within 3 %", what, interleaved(REFERENCE, slowdown, repetitions)
    for setting, noise in OTHERS.items():
        for what in ("nothing", "5 % at all sizes", "5 % at the 9 largest", "10 % at one size"):
            yield setting, what, interleaved(noise, EFFECTS[what], repetitions)
    yield "12 curves, the whole gate", "nothing", whole_gate(REFERENCE, max(repetitions // 4, 1))
    for what in ("5 % at all sizes", "5 % at the 9 largest", "10 % at one size"):
        yield "12 curves, the one that is slow", what, interleaved(REFERENCE, EFFECTS[what], repetitions, 12)
    quieter = Noise(run=0.01)
    yield "two files, run 1 %, spread ignored", "nothing", two_files(quieter, NOTHING, repetitions, 0.0)
    for what in ("nothing", "5 % at all sizes", "10 % at one size"):
        yield "two files, spread ignored", what, two_files(REFERENCE, EFFECTS[what], repetitions, 0.0)
        yield "two files, --session-sd 2 %", what, two_files(REFERENCE, EFFECTS[what], repetitions, 0.02)
        for sessions in (4, 10):
            yield (
                f"baseline of {sessions} sessions",
                what,
                many_sessions(REFERENCE, EFFECTS[what], repetitions, sessions),
            )


HEADER = """# The gate, simulated

`python benchmarks/simulate_gate.py --repetitions {repetitions}`, seed 1; it calls `commbench/analyze/gate_rule.py`.

Curves of {sizes} sizes; log time = session (2 %) + run + within (each normal). "Found" is a regression called: a false
alarm where nothing changed. "Undecided" exits 4 and asks for more pairs. "Second look": the share of curves that were
measured again. The rules by hand see the first five launches of each side.

| setting | changed | found | passed | undecided | second look | by hand > 10 % | by hand > 5 % |
|:--|:--|--:|--:|--:|--:|--:|--:|
"""


def report(repetitions: int) -> str:
    """The whole document."""
    lines = [HEADER.format(repetitions=repetitions, sizes=SIZES).rstrip("\n")]
    for setting, what, share in rows(repetitions):
        cells = (share.regressions, share.passes, share.undecided, share.second_look, share.naive10, share.naive5)
        lines.append(f"| {setting} | {what} | {' | '.join(map(_percent, cells))} |")
    named, found = found_at_the_smallest_detectable(REFERENCE, repetitions)
    lines += [
        "",
        f"The smallest slowdown of one size that a report names is {100 * named:.1f} % at the reference noise (half of",
        f"the reports name less); of slowdowns of just that size {_percent(found)} are found (80 % are meant to be).",
    ]
    return "\n".join(lines) + "\n"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %" if share < 0.02 else f"{100 * share:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent.parent / "results" / "statistics-gate.md")
    asked = parser.parse_args()
    text = report(asked.repetitions)
    asked.output.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
