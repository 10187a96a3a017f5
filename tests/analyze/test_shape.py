"""Exact times with one fault each: what must be found, and what must not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from commbench.analyze.lines import Sample, roughness
from commbench.analyze.shape import MIN_SIZES, Oddity, oddities_of_shape

SIZES = [8 << i for i in range(24)]  # 8 B to 64 MiB
KIB, MIB = 1 << 10, 1 << 20


def law(size: int) -> float:
    """5 us + D / (10 GB/s): n_1/2 = 49 KiB."""
    return 5e-6 + size * 1e-10


def judged(seconds: Callable[[int], float], sizes: Sequence[int] = SIZES, noise: float = 0.0) -> list[Oddity]:
    times = [seconds(size) for size in sizes]
    rough = roughness(sizes, times)
    return oddities_of_shape(
        [Sample(size, math.log(time), max(noise, rough)) for size, time in zip(sizes, times, strict=True)]
    )


def only(found: list[Oddity]) -> Oddity:
    [oddity] = found
    return oddity


def test_a_line_is_not_odd() -> None:
    assert judged(law) == []


@pytest.mark.parametrize(
    "protocols",
    [
        # docs/method.md: taken where it begins to pay; as a rendezvous, eight times too early; four of them.
        [(0, 5e-6, 5e9), (256 * KIB, 20e-6, 10e9)],
        [(0, 2e-6, 5e9), (8 * KIB, 7e-6, 10e9)],
        [(0, 1e-6, 1e9), (KIB, 2e-6, 4e9), (32 * KIB, 8e-6, 8e9), (2 * MIB, 100e-6, 12e9)],
    ],
)
def test_a_change_of_protocol_is_not_odd(protocols: list[tuple[int, float, float]]) -> None:
    def seconds(size: int) -> float:
        _, alpha, bandwidth = max(p for p in protocols if p[0] <= size)
        return alpha + size / bandwidth

    assert judged(seconds) == []


@pytest.mark.parametrize("slow", [64, 16 * KIB, 256 * KIB, 8 * MIB])
def test_a_single_slow_size_is_a_dip_with_its_factor(slow: int) -> None:
    oddity = only(judged(lambda size: law(size) * (5 if size == slow else 1)))

    assert (oddity.kind, oddity.sizes, oddity.beside) == ("dip", (slow,), (slow // 2, 2 * slow))
    assert math.exp(oddity.excess) == pytest.approx(5, rel=0.01)


def test_a_slow_size_at_a_change_of_protocol_is_measured_against_the_slower_side() -> None:
    """As MPICH's reduce_scatter: 24 us at 128 KiB, 221 us at 256 KiB, 49 us at 512 KiB."""
    times = [7.12, 9.57, 14.49, 24.42, 220.72, 48.82, 94.94, 184.5, 378.33]
    by_size = dict(zip([16 * KIB << i for i in range(9)], times, strict=True))

    oddity = only(judged(lambda size: by_size[size] * 1e-6, list(by_size)))

    # The line of the four sizes below leads to 44 us, that of those above to 25 us.
    assert (oddity.kind, oddity.sizes) == ("dip", (256 * KIB,))
    assert math.exp(oddity.excess) == pytest.approx(221 / 44, rel=0.03)


def test_neighbouring_slow_sizes_are_one_dip() -> None:
    oddity = only(judged(lambda size: law(size) * (3 if size in (MIB, 2 * MIB) else 1)))

    assert (oddity.kind, oddity.sizes) == ("dip", (MIB, 2 * MIB))


def test_a_size_that_is_ten_per_cent_slow_is_no_matter_however_certain() -> None:
    assert judged(lambda size: law(size) * (1.1 if size == MIB else 1)) == []


def test_a_slow_size_with_a_wide_interval_is_not_certain() -> None:
    slow = [Sample(size, math.log(law(size) * (2 if size == MIB else 1)), 0.01) for size in SIZES]
    unsure = [Sample(s.size, s.log_time, 0.3 if s.size == MIB else 0.01) for s in slow]

    assert [oddity.sizes for oddity in oddities_of_shape(slow)] == [(MIB,)]
    assert oddities_of_shape(unsure) == []


def test_a_single_fast_size_is_told_from_slow_ones() -> None:
    oddity = only(judged(lambda size: law(size) / (3 if size == 512 else 1)))

    assert (oddity.kind, oddity.sizes) == ("fast_size", (512,))
    assert math.exp(oddity.excess) == pytest.approx(1 / 3, rel=0.02)


def test_time_that_falls_with_size_names_the_slow_sizes_and_the_faster_one() -> None:
    """As an all-to-all whose small sizes take 100 us and whose larger ones 57 us."""
    oddity = only(judged(lambda size: (100e-6 if size <= KIB else 57e-6) + size * 1e-10))

    assert (oddity.kind, oddity.sizes, oddity.beside) == ("time_falls", tuple(SIZES[:8]), (2 * KIB,))
    assert math.exp(oddity.excess) == pytest.approx(100 / 57, rel=0.01)


def test_a_late_change_of_protocol_concerns_the_sizes_that_take_longer_than_the_next_one() -> None:
    """5 us + D / 0.5 GB/s up to 64 KiB (136 us), 20 us + D / 10 GB/s from 128 KiB (33 us): 16 KiB (38 us) to 64 KiB."""
    oddity = only(judged(lambda size: 5e-6 + size / 0.5e9 if size <= 64 * KIB else 20e-6 + size / 10e9))

    assert (oddity.kind, oddity.sizes) == ("time_falls", (32 * KIB, 64 * KIB))


def test_a_first_size_that_paid_for_warming_up_is_found_and_a_little_is_forgiven() -> None:
    assert only(judged(lambda size: law(size) * (1.5 if size == 8 else 1))).sizes == (8,)
    assert judged(lambda size: law(size) * (1.2 if size == 8 else 1)) == []


def test_bandwidth_that_is_halved_at_once_is_a_cliff() -> None:
    oddity = only(judged(lambda size: law(size) * (2 if size >= 8 * MIB else 1)))

    assert (oddity.kind, oddity.sizes[0], oddity.sizes[-1]) == ("cliff", 8 * MIB, 64 * MIB)
    assert math.exp(oddity.excess) == pytest.approx(2, rel=0.05)


def test_bandwidth_that_sinks_over_several_sizes_is_a_sinking_plateau() -> None:
    lost = {4 * MIB: 1.1, 8 * MIB: 1.4, 16 * MIB: 1.8, 32 * MIB: 2.2, 64 * MIB: 2.4}

    oddity = only(judged(lambda size: law(size) * lost.get(size, 1)))

    assert (oddity.kind, oddity.sizes[-1]) == ("sinking_plateau", 64 * MIB)
    assert max(oddity.beside) <= 4 * MIB


def test_bandwidth_that_recovers_is_not_sunk() -> None:
    assert "sinking_plateau" not in {o.kind for o in judged(lambda s: law(s) * (1.5 if MIB <= s <= 8 * MIB else 1))}


def test_a_jump_that_no_larger_size_pays_for_is_a_step() -> None:
    """From 64 KiB (1.3 n_1/2) on everything takes twice as long: bandwidth goes on rising, but not enough."""
    oddity = only(judged(lambda size: law(size) * (2 if size >= 64 * KIB else 1)))

    assert (oddity.kind, oddity.sizes[0], oddity.beside) == ("step", 64 * KIB, (32 * KIB,))


@pytest.mark.parametrize("count", range(MIN_SIZES))
def test_too_few_sizes_are_not_judged(count: int) -> None:
    sizes = SIZES[:count]

    assert oddities_of_shape([Sample(size, float(-index), 0.0) for index, size in enumerate(sizes)]) == []


@pytest.mark.parametrize(
    "seconds",
    [
        lambda _: 1e-6,
        lambda size: 1 / size,
        lambda size: size**3 * 1e-15,
        lambda size: 1e-6 * (1 + (size // 8) % 7),
        lambda size: 1e-12 if size < KIB else 1e9,
    ],
)
def test_curves_that_are_none_raise_nothing(seconds: Callable[[int], float]) -> None:
    for oddity in judged(seconds):
        assert oddity.deviation > 0
        assert math.isfinite(oddity.excess)


def test_four_thousand_sizes_are_judged_as_well() -> None:
    sizes = range(4096, 4096 * 2001, 4096)

    assert judged(law, list(sizes)) == []
