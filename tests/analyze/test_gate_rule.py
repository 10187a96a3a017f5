"""The rule on arrays, against hand calculations and scipy's own t test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from commbench.analyze import gate_rule, gate_scores
from commbench.analyze.gate_rule import CONVICT, SUSPECT
from commbench.analyze.gate_scores import scores_of_pairs, scores_of_sides

SIZES = 12


def noisy(pairs: int, sizes: int = SIZES, run: float = 0.01, within: float = 0.01, seed: int = 1) -> gate_scores.Array:
    draw = np.random.default_rng(seed)
    return draw.normal(0, run, (pairs, 1)) + draw.normal(0, within, (pairs, sizes))


# -- scores --------------------------------------------------------------------------------------------------------


def test_the_level_is_students_t_over_the_pairs_means() -> None:
    ratios = noisy(6) + 0.01
    scores = scores_of_pairs(ratios)
    expected = stats.ttest_1samp(ratios.mean(axis=1), 0, alternative="greater")

    assert scores.level.value[0] == pytest.approx(ratios.mean())
    assert scores.level.freedom[0] == 5
    assert scores.level.chance_above()[0] == pytest.approx(expected.pvalue)


def test_a_bound_is_the_one_sided_t_interval() -> None:
    ratios = noisy(6)
    means = ratios.mean(axis=1)
    expected = means.mean() + stats.t.ppf(0.95, 5) * means.std(ddof=1) / math.sqrt(6)

    assert scores_of_pairs(ratios).level.bound(0.95)[0] == pytest.approx(expected)


def test_two_sides_are_compared_by_the_pooled_t_test() -> None:
    baseline, candidate = noisy(5, seed=1) + 3.0, noisy(7, seed=2) + 3.02
    scores = scores_of_sides(baseline, candidate)
    expected = stats.ttest_ind(candidate.mean(axis=1), baseline.mean(axis=1), alternative="greater")

    assert scores.level.value[0] == pytest.approx(candidate.mean() - baseline.mean())
    assert scores.level.chance_above()[0] == pytest.approx(expected.pvalue)


def test_a_spread_between_sessions_is_added_once_a_side() -> None:
    baseline, candidate = noisy(5, seed=1), noisy(5, seed=2)
    alone, spread = scores_of_sides(baseline, candidate), scores_of_sides(baseline, candidate, 0.02)

    assert spread.level.variance[0] == pytest.approx(alone.level.variance[0] + 2 * 0.02**2)
    assert spread.plain_bands.variance == pytest.approx(alone.plain_bands.variance + 2 * 0.02**2)
    assert spread.sizes.variance == pytest.approx(alone.sizes.variance)  # common to all sizes, it cancels there
    assert spread.level.freedom[0] > alone.level.freedom[0]  # most of that variance is known exactly


def test_bands_are_thirds_and_compared_with_the_rest() -> None:
    ratios = np.repeat([[0.0] * 4 + [0.03] * 4 + [0.06] * 4], 5, axis=0)
    scores = scores_of_pairs(ratios)

    assert scores.band.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert scores.plain_bands.value == pytest.approx([0, 0.03, 0.06])
    assert scores.bands.value == pytest.approx([0 - 0.045, 0.03 - 0.03, 0.06 - 0.015])
    assert scores_of_pairs(noisy(5, 25)).band.tolist() == [0] * 9 + [1] * 8 + [2] * 8


def test_a_size_is_measured_against_the_median_of_all() -> None:
    ratios = np.repeat([[0.01] * 11 + [0.11]], 5, axis=0)
    scores = scores_of_pairs(ratios)

    assert scores.sizes.value[-1] == pytest.approx(0.10)
    assert scores.plain_sizes.value[-1] == pytest.approx(0.11)


def test_the_variance_of_a_size_is_that_of_nine_neighbours() -> None:
    ratios = noisy(6, 25)
    own = (ratios - np.median(ratios, axis=1, keepdims=True)).var(axis=0, ddof=1)
    scores = scores_of_pairs(ratios)

    assert scores.sizes.variance[12] == pytest.approx(own[8:17].mean() / 6)
    assert scores.sizes.freedom[12] == pytest.approx(4.5 * 5)
    assert scores.sizes.variance[0] == pytest.approx(own[:5].mean() / 6)


def test_a_size_that_jumps_is_judged_by_its_own_spread() -> None:
    ratios = noisy(8, 25)
    ratios[:, 12] += np.array([0.4, -0.4] * 4)
    scores = scores_of_pairs(ratios)

    assert scores.sizes.freedom[12] == 7
    assert scores.sizes.variance[12] > 0.1 / 8
    assert scores.sizes.freedom[24] == pytest.approx(4.5 * 7)


def test_sizes_with_fewer_than_four_cells_do_not_count() -> None:
    ratios = noisy(5)
    ratios[:2, 3] = np.nan  # three left
    ratios[0, 4] = np.nan  # four left
    scores = scores_of_pairs(ratios)

    assert scores.band[3] == -1
    assert math.isnan(scores.sizes.value[3])
    assert scores.band[4] >= 0
    assert scores.plain_sizes.value[4] == pytest.approx(ratios[1:, 4].mean())
    assert scores.plain_sizes.freedom[4] == 3
    assert scores.sizes.count[0] == SIZES - 1


def test_curves_are_independent_of_each_other() -> None:
    curves = np.stack([noisy(5, seed=1), noisy(5, seed=2) + 0.1])
    together, alone = scores_of_pairs(curves), scores_of_pairs(curves[1])

    assert together.level.value[1] == pytest.approx(alone.level.value)
    assert together.sizes.variance[1] == pytest.approx(alone.sizes.variance)


# -- hits ----------------------------------------------------------------------------------------------------------


def test_what_is_slower_everywhere_is_a_level() -> None:
    level, bands, sizes = gate_rule.hits(scores_of_pairs(noisy(10) + math.log(1.08)), CONVICT)

    assert level.tolist() == [True]
    assert not bands.any()
    assert not sizes.any()


def test_what_is_slower_in_a_third_is_that_band() -> None:
    ratios = noisy(10)
    ratios[:, 8:] += math.log(1.08)
    _, bands, sizes = gate_rule.hits(scores_of_pairs(ratios), CONVICT)

    assert bands.tolist() == [False, False, True]
    assert not sizes[:8].any()


def test_what_is_slower_at_one_size_is_that_size() -> None:
    ratios = noisy(10)
    ratios[:, 5] += math.log(1.15)
    level, _, sizes = gate_rule.hits(scores_of_pairs(ratios), CONVICT)

    assert np.flatnonzero(sizes).tolist() == [5]
    assert not level.any()


def test_what_is_slow_only_beside_others_that_became_faster_is_no_regression() -> None:
    """Launches differ by ±20 % as a whole, so that size is 10 % slower, give or take 14 %."""
    launches = np.array([0.2, -0.2] * 5)[:, None]
    ratios = noisy(10, run=0.0, within=0.002) + launches - 0.2 + 0.3 * (np.arange(SIZES) == 5)
    scores = scores_of_pairs(ratios)

    assert scores.sizes.chance_above()[5] < 1e-6
    assert scores.plain_sizes.chance_above()[5] > 0.05
    assert not gate_rule.hits(scores, CONVICT)[2].any()


@pytest.mark.parametrize(("slowdown", "found"), [(0.02, False), (0.04, True)])
def test_what_is_certain_but_small_is_below_the_floor_of_three_per_cent(slowdown: float, found: bool) -> None:
    ratios = noisy(10, run=1e-4, within=1e-4) + math.log1p(slowdown)

    assert gate_rule.hits(scores_of_pairs(ratios), CONVICT)[0].tolist() == [found]


def test_what_repeats_exactly_divides_by_no_zero() -> None:
    same, slower = np.zeros((5, SIZES)), np.full((5, SIZES), math.log(1.1))

    assert not np.concatenate(gate_rule.hits(scores_of_pairs(same), SUSPECT)).any()
    assert gate_rule.is_equivalent(scores_of_pairs(same))
    assert gate_rule.hits(scores_of_pairs(slower), CONVICT)[0].all()


def test_curves_share_the_error_rate() -> None:
    """The level has 40 % of it, divided among the curves."""
    scores = scores_of_pairs(noisy(5))

    assert gate_rule.thresholds(scores, CONVICT)[0] == pytest.approx(0.02 * 0.4)
    assert gate_rule.thresholds(scores, CONVICT, curves=12)[0] == pytest.approx(0.02 * 0.4 / 12)
    assert gate_rule.thresholds(scores, CONVICT)[1] == pytest.approx(0.02 * 0.3 / 3)
    assert gate_rule.thresholds(scores, CONVICT)[2] == pytest.approx(0.02 * 0.3 / SIZES)


def test_faster_is_the_same_with_the_sign_turned() -> None:
    ratios = noisy(10) - math.log(1.1)

    assert not gate_rule.hits(scores_of_pairs(ratios), CONVICT)[0].any()
    assert gate_rule.hits(scores_of_pairs(ratios).reversed(), CONVICT)[0].all()


# -- passing -------------------------------------------------------------------------------------------------------


def test_a_pass_must_rule_out_the_margin_in_every_band() -> None:
    quiet = noisy(5, run=0.001, within=0.001)
    banded = quiet.copy()
    banded[:, 8:] += math.log(1.06)

    assert gate_rule.is_equivalent(scores_of_pairs(quiet))
    assert not gate_rule.is_equivalent(scores_of_pairs(banded))
    assert not gate_rule.is_equivalent(scores_of_pairs(noisy(5, run=0.1)))


def test_a_detector_that_looked_at_seven_sizes_has_seen_nothing() -> None:
    ratios = noisy(5, run=0.001, within=0.001)
    ratios[:, 7:] = np.nan

    assert not gate_rule.is_enough(scores_of_pairs(ratios))
    assert not gate_rule.is_equivalent(scores_of_pairs(ratios))
    assert gate_rule.is_undecided(scores_of_pairs(ratios))


def test_nothing_at_all_is_no_pass() -> None:
    scores = scores_of_pairs(np.full((5, SIZES), np.nan))

    assert not gate_rule.is_equivalent(scores)
    assert not np.concatenate(gate_rule.hits(scores, SUSPECT)).any()


# -- what more would bring -----------------------------------------------------------------------------------------


def test_the_pairs_needed_are_those_of_the_formula() -> None:
    """That is k = ((z_.95 + z_.80) sd / log 1.05)^2 with sd of the level and of the bands, whichever is largest."""
    ratios = noisy(6, run=0.05, within=0.0)
    ratios -= ratios.mean(axis=0)
    sd = ratios[:, 0].std(ddof=1)
    expected = math.ceil(((1.6449 + 0.8416) * sd / math.log(1.05)) ** 2)

    assert gate_rule.pairs_needed(scores_of_pairs(ratios), 6) == expected


def test_no_number_of_pairs_shows_that_a_slowdown_beyond_the_margin_is_none() -> None:
    assert gate_rule.pairs_needed(scores_of_pairs(noisy(6) + 0.06), 6) == math.inf


def test_more_curves_need_more_pairs() -> None:
    assert gate_rule.more_pairs(5, 1) == 5
    assert gate_rule.more_pairs(5, 12) == 10


def test_the_smallest_detectable_slowdown_falls_with_pairs_and_with_noise() -> None:
    few, many, noisier = (gate_rule.detectable(scores_of_pairs(r), CONVICT) for r in (
        noisy(5), noisy(40), noisy(5, within=0.05)
    ))  # fmt: skip

    assert np.median(many) < np.median(few) < np.median(noisier)
    assert np.all(many > math.log(1.04))  # the floor of a size


def test_a_cell_is_measured_again_only_where_its_size_lacks_too_many() -> None:
    ratios = np.zeros((5, 3))
    ratios[0, 0] = ratios[0, 1] = ratios[1, 1] = np.nan

    assert gate_rule.worth_again(ratios).tolist() == [[False, True, False], [False, True, False], *[[False] * 3] * 3]
