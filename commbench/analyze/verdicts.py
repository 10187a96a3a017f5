"""What the gate says: plain data that every output is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from commbench.analyze.cells import Form
from commbench.analyze.facts import Change
from commbench.analyze.gate_rule import MARGIN
from commbench.spec import Point

Verdict = Literal["pass", "regression", "inconclusive", "refused"]
Family = Literal["level", "band", "size", "path", "wrong", "hang", "expect"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Candidate time / baseline time with its 95 % interval; None where it is not known."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that got worse (or, among improvements, better).

    Attributes:
        where: "all sizes", "8-2K", "64K", or what was expected.
        sizes: first and last of the sizes concerned, None where sizes have nothing to do with it.
        p: None where no chance is involved.
        text: what happened, where that is no ratio.
    """

    family: Family
    where: str
    sizes: tuple[int, int] | None
    ratio: Ratio
    p: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveVerdict:
    """The verdict on one curve.

    Attributes:
        stage: the look that decided: 1 first pairs alone, 2 all.
        level, bands: as Hit, whether they are hits or not; bands with their sizes.
        pairs: how many replicates of each side counted (the lesser number, where they differ).
        replicates: what they are: "pairs", "runs" or "sessions".
        sizes: how many sizes counted.
        smallest_detectable: the ratio from which on a slowdown of any single size would have been seen in four of
            five cases; `typical` at half of the sizes.
        pairs_needed: about how many would decide, None where none would or none are needed.
        met: limits that were kept.
        reasons: why nothing better can be said.
    """

    key: Point
    verdict: Verdict
    stage: int = 2
    level: Ratio = Ratio(None)
    bands: tuple[Hit, ...] = ()
    hits: tuple[Hit, ...] = ()
    improvements: tuple[Hit, ...] = ()
    smallest_detectable: float | None = None
    typical: float | None = None
    pairs: int = 0
    replicates: Form = "pairs"
    sizes: int = 0
    pairs_needed: int | None = None
    met: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateReport:
    """The verdict.

    Attributes:
        curves: each curve's.
        reasons: why the whole was refused, and what a reader should know.
        changed: facts of library, environment and system that differ between the sides.
        margin: the slowdown that a pass rules out.
        session_spread: what was added for sessions that differ, None where nothing was.
    """

    verdict: Verdict
    curves: tuple[CurveVerdict, ...]
    reasons: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()
    margin: float = MARGIN
    session_spread: float | None = None


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on all: one regression is a regression, whatever cannot be told of the others."""
    order: tuple[Verdict, ...] = ("regression", "refused", "inconclusive", "pass")
    return min(verdicts, key=order.index)
