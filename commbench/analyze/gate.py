"""The gate's verdict on two sides: regression, pass, cannot tell, or refused; pure analysis of two results files.

`gate_rule` says when a curve is slower, `cells` which numbers may be divided. Here: what must hold before that is
asked, what needs no statistics (a wrong answer, a hang, a slower path), and what it all amounts to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from commbench.analyze import cells, gate_rule, gate_scores
from commbench.analyze.cells import Form, Measured, Replicate
from commbench.analyze.comparable import nearest_difference, noteworthy, unlike
from commbench.analyze.gate_faults import crashes, exact_hits
from commbench.analyze.gate_rule import CONVICT, FEWEST_SIZES, SUSPECT
from commbench.analyze.gate_scores import FEWEST_CELLS, Array, Estimates, Scores
from commbench.analyze.verdicts import CurveVerdict, Family, GateReport, Hit, Ratio, Verdict, worst
from commbench.results import Results
from commbench.spec import Point
from commbench.units import format_size

SESSION_SPREAD = 0.02
# A size where not even this slowdown of its own would have been seen is not looked at, and of those at most so many.
_BLIND, _MOST_BLIND = math.log(1.5), 0.2
_MOST_PAIRS = 100


@dataclass(frozen=True)
class Comparison:
    """One curve on both sides, ready for the rule."""

    key: Point
    baseline: Measured
    candidate: Measured
    form: Form
    turns: bool
    spread: float

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes that are sound on both sides."""
        there = self.baseline.records.keys() & self.candidate.records.keys()
        return sorted(size for size in there if self.baseline.sound(size) and self.candidate.sound(size))

    @cached_property
    def _ratios(self) -> tuple[Array, list[Replicate]]:
        return cells.ratios(self.baseline, self.candidate, self.sizes, turns=self.turns)

    @cached_property
    def _times(self) -> tuple[Array, Array]:
        return cells.times(self.baseline, self.candidate, self.sizes, self.form)

    @property
    def replicates(self) -> int:
        """How many replicates: pairs, or those of the side that has fewer."""
        if self.form == "pairs":
            return len(self._ratios[1])
        baseline, candidate = self._times
        return len(baseline) if self.form == "sessions" else min(len(baseline), len(candidate))

    @cached_property
    def scores(self) -> Scores:
        if self.form == "pairs":
            return gate_scores.scores_of_pairs(self._ratios[0])
        baseline, candidate = self._times
        fewest = 1 if self.form == "sessions" else FEWEST_CELLS
        return gate_scores.scores_of_sides(baseline, candidate, self.spread, fewest=fewest)

    def unmatched(self) -> dict[Replicate, list[Point]]:
        """Cells of pairs to measure again: their sides met no state in common, and their sizes lack too many."""
        grid, pairs = self._ratios
        again: dict[Replicate, list[Point]] = {}
        for row, column in np.argwhere(gate_rule.worth_again(grid)):
            again.setdefault(pairs[row], []).append(replace(self.key, bytes=self.sizes[column]))
        return again


def compare(baseline: Results, candidate: Results, session_spread: float = SESSION_SPREAD) -> list[Comparison]:
    """The curves that both sides have."""
    form = cells.form_of(baseline, candidate)
    turns = cells.took_turns(baseline) and cells.took_turns(candidate)
    spread = 0.0 if form != "runs" or cells.in_one_session(baseline, candidate) else session_spread
    ours, theirs = cells.measured(baseline, form), cells.measured(candidate, form)
    # Of a candidate that crashed, what is missing is the finding.
    keys = [key for key in ours if key in theirs or crashes(candidate)]
    nothing = Measured({})
    return [Comparison(key, ours[key], theirs.get(key, nothing), form, turns, spread) for key in keys]


def undecided(comparison: Comparison, margin: float = gate_rule.MARGIN) -> bool:
    """After the first pairs: whether more would be worth it."""
    if any(exact_hits(comparison.baseline, comparison.candidate)) or len(comparison.sizes) < FEWEST_SIZES:
        return False
    return bool(gate_rule.is_undecided(comparison.scores, margin))


def judge(
    baseline: Results,
    candidate: Results,
    *,
    session_spread: float = SESSION_SPREAD,
    margin: float = gate_rule.MARGIN,
    settled: Iterable[Point] = (),
) -> GateReport:
    """The verdict on `candidate`.

    The two files hold launches in pairs, of one session, or of different sessions.

    Args:
        baseline: what to compare with.
        candidate: what is judged.
        session_spread: the standard deviation of log time between sessions, where they differ.
        margin: the slowdown that a pass must rule out.
        settled: curves that a first look at fewer pairs has decided.
    """
    found = compare(baseline, candidate, session_spread)
    refusals = list(_refusals(baseline, candidate, found))
    if refusals:
        return GateReport("refused", (), tuple(refusals), margin=margin)
    stages = dict.fromkeys(settled, 1)
    curves = tuple(_judge_curve(one, len(found), stages.get(one.key, 2), margin) for one in found)
    if broken := crashes(candidate):
        hit = Hit("hang", "the launch", None, Ratio(None), text=broken[0])
        curves = tuple(replace(one, verdict="regression", hits=(*one.hits, hit), reasons=()) for one in curves)
    judged = any(curve.level.value is not None for curve in curves)
    spread = next((one.spread for one in found if one.spread and judged), None)
    return GateReport(
        worst(curve.verdict for curve in curves),
        curves,
        tuple(_remarks(baseline, candidate, found)),
        tuple(noteworthy(baseline, candidate)),
        margin,
        spread,
    )


def _refusals(baseline: Results, candidate: Results, found: Sequence[Comparison]) -> Iterator[str]:
    if _timed(baseline) & _timed(candidate):
        yield "both files hold the same launches: nothing was measured twice"
        return
    if broken := crashes(baseline):
        yield f"the baseline is bad: a launch of it failed: {broken[0]}"
        return
    if not found:
        a, b = (list(cells.measured(side, "runs")) for side in (baseline, candidate))
        if set(a) & set(b):
            yield "no launch of one side has its partner on the other"
        else:
            yield f"the two sides ask different questions: {nearest_difference(a, b)}"
    if found and found[0].form != "pairs":
        # What differs between the sides of a pair was asked for on the same machine at the same time.
        for change in unlike(baseline, candidate):
            ours, theirs = change.values
            yield f"the two sides ask different questions: {change.fact} is {ours} and {theirs}"


def _timed(side: Results) -> set[tuple[object, ...]]:
    """What was measured in which launch; tables from elsewhere number theirs alike, so the times must agree too."""
    return {(r.launch, r.run, r.point, r.seconds.median, r.samples) for r in side.records if r.seconds is not None}


def _remarks(baseline: Results, candidate: Results, found: Sequence[Comparison]) -> Iterator[str]:
    keys = {one.key for one in found}
    for name, side in (("baseline", baseline), ("candidate", candidate)):
        for key in cells.measured(side, "runs"):
            if key not in keys:
                yield f"{key.op} ({key.dtype}, mode {key.mode}) is only in the {name}: not judged"
        ended = {str(end.get("launch", "")) for end in side.ends}
        killed = sum(str(run.get("launch", "")) not in ended for run in side.runs)
        if killed and side.ends:
            yield f"{killed} launch{'es' * (killed > 1)} of the {name} did not end: killed, or still going on"


def _judge_curve(one: Comparison, curves: int, stage: int, margin: float) -> CurveVerdict:
    exact = tuple(exact_hits(one.baseline, one.candidate))
    complaint = _complaint(one)
    if exact or complaint:
        verdict: Verdict = "regression" if exact else "refused"
        return CurveVerdict(
            key=one.key,
            verdict=verdict,
            hits=exact,
            pairs=one.replicates if one.sizes else 0,
            replicates=one.form,
            sizes=len(one.sizes),
            reasons=(complaint,) if complaint and not exact else (),
        )
    return _judge_by_rule(one, curves, stage, margin)


def _judge_by_rule(one: Comparison, curves: int, stage: int, margin: float) -> CurveVerdict:
    scores = one.scores
    hits = tuple(_hits(one, scores, curves, 1.0))
    seen = gate_rule.detectable(scores, SUSPECT if stage == 1 else CONVICT, 1 if stage == 1 else curves)
    counted = seen[np.isfinite(seen)]
    blind = [size for size, ratio in zip(one.sizes, seen, strict=True) if np.isfinite(ratio) and ratio > _BLIND]
    verdict: Verdict = "regression"
    reasons: list[str] = []
    if not hits:
        verdict = "pass" if gate_rule.is_equivalent(scores, margin) else "inconclusive"
        if len(counted) < FEWEST_SIZES:
            reasons.append(
                f"{len(counted)} sizes have {FEWEST_CELLS} {one.form} in one state of the cores, not {FEWEST_SIZES}"
            )
        elif len(blind) > _MOST_BLIND * len(counted):
            verdict = "refused"
            reasons.append(
                f"{len(blind)} of {len(counted)} sizes are too unstable: 50 % more at one alone would not be seen"
            )
        elif verdict == "inconclusive":
            reasons.append(_what_is_open(one, scores, margin))
    needed = float(gate_rule.pairs_needed(scores, one.replicates, margin))
    is_open = verdict == "inconclusive" and needed <= _MOST_PAIRS
    return CurveVerdict(
        key=one.key,
        verdict=verdict,
        stage=stage,
        level=_ratio(scores.level, 0),
        bands=tuple(_band(one, scores, number) for number in range(gate_scores.BANDS)) if len(counted) else (),
        hits=hits,
        improvements=tuple(_hits(one, scores.reversed(), curves, -1.0)),
        smallest_detectable=math.exp(counted.max()) if len(counted) else None,
        typical=math.exp(float(np.median(counted))) if len(counted) else None,
        pairs=one.replicates,
        replicates=one.form,
        sizes=len(counted),
        pairs_needed=max(int(needed), one.replicates + 1) if is_open and one.form == "pairs" else None,
        reasons=tuple(reasons),
    )


def _complaint(one: Comparison) -> str:
    """Why the rule cannot be asked about this curve, "" when it can."""
    if bad := one.baseline.bad():
        first = bad[0]
        what = "a wrong answer" if first.check == "wrong" else first.status
        return f"the baseline is bad: {what} at {format_size(first.point.bytes)}: {first.reason}"
    if one.key.ranks == 1:
        return "on 1 rank nothing travels, so there is nothing to compare"
    if len(one.sizes) < FEWEST_SIZES:
        return f"{len(one.sizes)} sizes in common, at least {FEWEST_SIZES} are needed"
    if one.replicates < FEWEST_CELLS:
        form = one.form if one.replicates != 1 else one.form.removesuffix("s")
        return f"{one.replicates} {form}, at least {FEWEST_CELLS} are needed"
    if one.form == "sessions":
        ours, theirs = (cells.runs_of_a_session(side, one.sizes[0]) for side in (one.baseline, one.candidate))
        if theirs < ours:
            return f"a session of the candidate has {theirs} runs, those of the baseline have {ours}: --runs {ours}"
    return ""


def _hits(one: Comparison, scores: Scores, curves: int, sign: float) -> Iterator[Hit]:
    """The hits of the rule; `sign` -1 for scores that were turned round."""
    families: tuple[Family, Family, Family] = ("level", "band", "size")
    found = gate_rule.hits(scores, CONVICT, curves)
    for family, (test, plain), hit in zip(families, scores.families, found, strict=True):
        chance = test.chance_above()
        for number in np.flatnonzero(hit):
            where, sizes = _where(one, scores, family, int(number))
            yield Hit(family, where, sizes, _ratio(plain, int(number), sign), float(chance[number]))


def _band(one: Comparison, scores: Scores, number: int) -> Hit:
    where, sizes = _where(one, scores, "band", number)
    return Hit("band", where, sizes, _ratio(scores.plain_bands, number))


def _where(one: Comparison, scores: Scores, family: Family, number: int) -> tuple[str, tuple[int, int]]:
    if family == "size":
        return format_size(one.sizes[number]), (one.sizes[number],) * 2
    inside = scores.band == number if family == "band" else scores.band >= 0
    sizes = [size for size, mine in zip(one.sizes, inside, strict=True) if mine]
    where = "all sizes" if family == "level" else f"{format_size(sizes[0])}-{format_size(sizes[-1])}"
    return where, (sizes[0], sizes[-1])


def _ratio(estimates: Estimates, number: int, sign: float = 1.0) -> Ratio:
    """One estimate as a ratio with its two-sided 95 % interval."""
    ends = (-estimates.reversed().bound(0.975)[number], estimates.value[number], estimates.bound(0.975)[number])
    low, value, high = sorted(math.exp(sign * float(end)) for end in ends) if np.all(np.isfinite(ends)) else (None,) * 3
    return Ratio(value, low, high)


def _what_is_open(one: Comparison, scores: Scores, margin: float) -> str:
    """What keeps a curve without a hit from passing: the widest bound."""
    level = math.exp(float(scores.level.bound(0.95)[0])) - 1
    bands = np.exp(scores.plain_bands.bound(0.95)) - 1
    number = int(np.argmax(bands))
    where, bound = (
        ("all sizes together", level) if level >= margin else (_where(one, scores, "band", number)[0], bands[number])
    )
    return f"{where} may be up to {100 * bound:.1f} % slower, a pass must rule out {100 * margin:g} %"
