"""The back end whose truth is known must tell that truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from commbench.backends.base import World
from commbench.backends.emulated import SYNTAX, EmulatedBackend, Emulation, parse
from commbench.errors import UsageError
from commbench.spec import Point


def backend_of(text: str, rank: int = 0, seed: int = 1) -> EmulatedBackend:
    return EmulatedBackend(World(rank, 4, rank, 4, "alone"), text, seed)


def durations(text: str, point: Point, count: int = 10, rank: int = 0) -> Any:
    out = np.empty(count)
    backend_of(text, rank).prepare(point).sync(out, 3)
    return out


# -- the words ---------------------------------------------------------------------------------------------------


def test_every_word_is_understood() -> None:
    found = parse(SYNTAX)

    assert (found.alpha, found.bandwidth, found.noise) == pytest.approx((5e-6, 10e9, 0.05))
    assert found.switch == pytest.approx((256 << 10, 20e-6, 20e9))
    assert found.slow_rank == (1, 1.5)
    assert found.hang == found.die == found.wrong == (1, 64 << 10)


def test_what_is_left_out_has_its_default() -> None:
    assert parse("") == Emulation(alpha=5e-6, bandwidth=10e9)
    assert parse("alpha=2us, noise=50%,") == Emulation(alpha=2e-6, bandwidth=10e9, noise=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma=5us", "--emulate: unknown word 'gamma'"),
        ("alpha", "--emulate alpha: '' is not a duration"),
        ("alpha=fast", "--emulate alpha: 'fast' is not a duration"),
        ("bandwidth=10GB", "--emulate bandwidth: '10GB' is not a rate"),
        ("bandwidth=0", "--emulate: a bandwidth is more than 0"),
        ("noise=200%", "--emulate noise: '200%' must be"),
        ("switch=256K:20us", "--emulate: 'switch=256K:20us' is not understood"),
        ("switch=256K:20us:0GB/s", "--emulate: a bandwidth is more than 0"),
        ("switch=big:20us:1GB/s", "--emulate switch: 'big' is not a size"),
        ("slow_rank=1", "--emulate: 'slow_rank=1' is not understood"),
        ("slow_rank=one:2", "--emulate: 'slow_rank=one:2' is not understood"),
        ("slow_rank=1:0", "--emulate slow_rank: a factor is more than 0"),
        ("slow_rank=1:nan", "--emulate slow_rank: a factor is more than 0"),
        ("slow_rank=1:inf", "--emulate slow_rank: a factor is more than 0"),
        ("hang=1", "--emulate: 'hang=1' is not understood"),
        ("hang=x@64K", "--emulate: 'hang=x@64K' is not understood"),
        ("die=1@64K@2", "--emulate: 'die=1@64K@2' is not understood"),
        ("wrong=1@often", "--emulate wrong: 'often' is not a size"),
    ],
)
def test_a_word_that_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.message.startswith(message)
    assert caught.value.hint


# -- the truth ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "seconds"), [(8, 5.0008e-6), (1 << 20, 109.8576e-6), (1 << 30, 0.1073791824)])
def test_without_noise_every_call_takes_alpha_plus_d_over_b(size: int, seconds: float, point: Any) -> None:
    assert durations("alpha=5us,bandwidth=10GB/s", point(size)) == pytest.approx(seconds, rel=1e-12)


def test_from_the_switch_on_the_second_line_holds(point: Any) -> None:
    text = "alpha=5us,bandwidth=10GB/s,switch=64K:20us:20GB/s"

    assert durations(text, point(32 << 10)) == pytest.approx(5e-6 + 32768 / 10e9)
    assert durations(text, point(64 << 10)) == pytest.approx(20e-6 + 65536 / 20e9)


def test_noise_leaves_the_median_where_it_is(point: Any) -> None:
    """Lognormal with sigma 5 %: log of the median of n is the truth ± 1.2533·sigma/√n; four of those are allowed."""
    count, truth = 10_000, 5e-6 + 4096 / 10e9
    out = durations("noise=5%", point(4096), count)

    assert abs(math.log(np.median(out) / truth)) < 4 * 1.2533 * 0.05 / math.sqrt(count)
    assert np.log(out).std() == pytest.approx(0.05, rel=4 / math.sqrt(2 * count))


def test_a_slow_rank_is_slower_by_its_factor_in_every_call(point: Any) -> None:
    text = "noise=5%,slow_rank=2:1.5"

    assert durations(text, point(8), rank=2) == pytest.approx(1.5 * durations(text, point(8), rank=0))
    assert durations(text, point(8), rank=1).tolist() == durations(text, point(8), rank=0).tolist()


def test_the_same_seed_gives_the_same_durations_and_another_one_others(point: Any) -> None:
    def draw(seed: int) -> list[float]:
        out = np.empty(5)
        backend_of("noise=5%", seed=seed).prepare(point(8)).sync(out, 0)
        return list(out)

    assert draw(1) == draw(1)
    assert set(draw(1)).isdisjoint(draw(2))


def test_a_batch_takes_per_call_what_a_call_takes(point: Any) -> None:
    out = np.empty(4)
    backend_of("alpha=2us,bandwidth=1GB/s").prepare(point(1000)).pipe(16, out, 0)

    assert out == pytest.approx(3e-6)


def test_the_clock_that_budgets_are_counted_on_moves_with_the_slowest_rank(point: Any) -> None:
    fast, slow = backend_of("slow_rank=1:3", rank=0), backend_of("slow_rank=1:3", rank=1)
    for backend in (fast, slow):
        backend.prepare(point(0)).sync(np.empty(10), 3)

    assert fast.now() == slow.now() == pytest.approx(10 * 3 * 5e-6)


def test_only_the_rank_and_size_that_were_named_answer_wrongly(point: Any) -> None:
    wrong = backend_of("wrong=1@64", rank=1)

    assert wrong.prepare(point(64)).check() is not None
    assert wrong.prepare(point(128)).check() is None
    assert backend_of("wrong=1@64", rank=0).prepare(point(64)).check() is None


def test_the_emulation_is_part_of_the_record() -> None:
    assert backend_of("alpha=1us").libraries() == {"emulated": "alpha=1us"}
    assert backend_of("").libraries() == {"emulated": "alpha=5us,bandwidth=10GB/s"}
