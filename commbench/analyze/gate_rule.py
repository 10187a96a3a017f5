"""The gate's rule: when a curve counts as slower, when as unchanged, and what would have been seen.

Each score (see `gate_scores`) gets a one-sided t test over runs and a floor on the effect; the families share the error
rate 4 : 3 : 3, the tests of a family divide theirs. `benchmarks/simulate_gate.py` calls what the product calls, and
`results/statistics-gate.md` shows what that finds, and how often it is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commbench.analyze.gate_scores import Array, Mask, Scores

FEWEST_SIZES = 8
MARGIN = 0.05
_SHARES = (0.4, 0.3, 0.3)
_CONFIDENCE = 0.95
_Z_CONFIDENCE, _Z_POWER = 1.6449, 0.8416
_MOST_MISSING = 0.2


@dataclass(frozen=True, slots=True)
class Look:
    """How strict a look is.

    Attributes:
        alpha: its error rate.
        floors: the least slowdown that counts, of level, bands and sizes.
        plainly: p of the plain slowdown. A band or size may be slow beside others that became faster; to be a
            regression it must be slower itself.
    """

    alpha: float
    floors: tuple[float, float, float]
    plainly: float


SUSPECT = Look(0.20, (0.02, 0.02, 0.03), 1.0)
CONVICT = Look(0.02, (0.03, 0.03, 0.04), 0.05)


def hits(scores: Scores, look: Look, curves: int = 1) -> tuple[Mask, Mask, Mask]:
    """Which level, bands and sizes are slower.

    Args:
        scores: of the `reversed` ones, which are faster.
        look: how strict.
        curves: how many curves share the error rate.
    """
    found = []
    for (test, plain), threshold, floor in zip(
        scores.families, thresholds(scores, look, curves), look.floors, strict=True
    ):
        effect = np.log1p(floor)
        with np.errstate(invalid="ignore"):
            plainly = (plain.value >= effect) & (plain.chance_above() < look.plainly)
            found.append((test.chance_above() < threshold) & plainly & (test.value >= effect / 2))
    return found[0], found[1], found[2]


def thresholds(scores: Scores, look: Look, curves: int = 1) -> tuple[Array, Array, Array]:
    """The p below which a score of each family is a hit."""
    level, bands, sizes = (
        look.alpha / curves * share / np.maximum(test.count, 1)
        for share, (test, _) in zip(_SHARES, scores.families, strict=True)
    )
    return level, bands, sizes


def is_equivalent(scores: Scores, margin: float = MARGIN) -> Mask:
    """Whether the level and each band are known to be less than `margin` slower (upper one-sided 95 % bounds).

    Never where fewer than eight sizes count: a detector that did not look has seen nothing.
    """
    limit = np.log1p(margin)
    with np.errstate(invalid="ignore"):
        level = scores.level.bound(_CONFIDENCE)[..., 0] < limit
        bands = np.all(scores.plain_bands.bound(_CONFIDENCE) < limit, axis=-1)
    return np.asarray(level & bands & is_enough(scores))


def is_enough(scores: Scores) -> Mask:
    """Whether eight sizes count."""
    return np.asarray((scores.band >= 0).sum(axis=-1) >= FEWEST_SIZES)


def is_undecided(scores: Scores, margin: float = MARGIN) -> Mask:
    """After a first look: something is suspicious, or not yet known to be unchanged; more pairs are worth it."""
    suspicious = np.any(np.concatenate(hits(scores, SUSPECT), axis=-1), axis=-1)
    return np.asarray(suspicious | ~is_equivalent(scores, margin))


def worth_again(ratios: Array) -> Mask:
    """Which cells of pairs to measure again: the missing ones of sizes that lack more than a fifth of theirs."""
    missing = np.isnan(ratios)
    return np.asarray(missing & (missing.mean(axis=-2, keepdims=True) > _MOST_MISSING))


def more_pairs(pairs: int, curves: int) -> int:
    """How many pairs a second look adds.

    Several curves share the error rate, so each needs more of them; only the undecided ones are measured again.
    """
    return pairs if curves == 1 else 2 * pairs


def detectable(scores: Scores, look: Look, curves: int = 1) -> Array:
    """The slowdown of one size alone that would have been a hit in four of five cases, as log ratio per size."""
    from scipy.special import stdtrit  # noqa: PLC0415 - `show` starts without scipy

    _, _, threshold = thresholds(scores, look, curves)
    test, plain = scores.sizes, scores.plain_sizes
    by_chance = (stdtrit(test.freedom, 1 - threshold) + _Z_POWER) * np.sqrt(test.variance)
    by_size = np.log1p(CONVICT.floors[2]) + _Z_POWER * np.sqrt(plain.variance)
    return np.asarray(np.where(np.isfinite(test.value), np.maximum(by_chance, by_size), np.nan))


def pairs_needed(scores: Scores, pairs: int, margin: float = MARGIN) -> Array:
    """About how many pairs would show that a curve like this is unchanged; infinite where none would.

    k = ((z_.95 + z_.80) sd / (log(1 + margin) - slowdown))^2 for the level and each band, the largest of them.
    """
    parts = [scores.level, scores.plain_bands]
    value = np.concatenate([part.value for part in parts], axis=-1)
    variance = np.concatenate([part.variance for part in parts], axis=-1) * pairs
    room = np.log1p(margin) - np.maximum(value, 0.0)
    with np.errstate(divide="ignore"):
        needed = np.where(room > 0, ((_Z_CONFIDENCE + _Z_POWER) / room) ** 2 * variance, np.inf)
    return np.asarray(np.ceil(np.max(needed, axis=-1)))
