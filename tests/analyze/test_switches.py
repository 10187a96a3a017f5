from __future__ import annotations

import math
from typing import Any

import pytest

from commbench.analyze.fit import fit_curve

SIZES = [8 << i for i in range(31)]


def told(curve_of: Any, record: Any, seconds: Any) -> list[str]:
    notes = fit_curve(curve_of([record(size, seconds(size)) for size in SIZES])).notes
    return [note for note in notes if note.startswith("switch at")]


def test_a_switch_that_comes_early_is_said(curve_of: Any, record: Any) -> None:
    """2 us + D/2 GB/s ends at 1 KiB: 8 us + D/10 GB/s takes 8.2 us at 2 KiB, where 3.02 us would do: 171 % early.

    The lines cross at 15 000 bytes, so 8 KiB is the last size at which the one below would be faster.
    """
    [note] = told(curve_of, record, lambda s: 2e-6 + s / 2e9 if s <= 1024 else 8e-6 + s / 1e10)

    assert note == "switch at 2K comes 171 % early: the protocol below it would be faster up to 8K"


def test_a_switch_where_the_lines_cross_is_in_its_place(curve_of: Any, record: Any) -> None:
    assert told(curve_of, record, lambda s: min(2e-6 + s / 2e9, 8e-6 + s / 1e10)) == []


def test_a_bandwidth_that_falls_is_a_cache_and_no_switch_too_early(curve_of: Any, record: Any) -> None:
    assert told(curve_of, record, lambda s: 1e-6 + s / (1e10 if s < 1 << 22 else 3e9)) == []


def test_one_slow_size_beside_a_switch_is_no_late_switch(curve_of: Any, record: Any) -> None:
    """The last size before the switch takes three times as long: its own line does not."""

    def seconds(size: int) -> float:
        best = min(2e-6 + size / 2e9, 8e-6 + size / 1e10)
        return 3 * best if size == 8 << 10 else best

    assert told(curve_of, record, seconds) == []


def test_a_difference_within_the_noise_is_not_said(curve_of: Any, record: Any) -> None:
    """8 % at the border, with a noise of 10 %."""
    noise = [math.exp(0.1 * math.sin(12.9898 * i) * 1.4) for i in range(31)]
    seconds = {s: (5e-6 + s / 5e9 if s <= 1 << 18 else 20e-6 + s / 7e9) * noise[i] for i, s in enumerate(SIZES)}

    assert told(curve_of, record, seconds.__getitem__) == []


@pytest.mark.parametrize("runs", [1, 3])
def test_notes_are_of_the_curve_over_all_runs(curve_of: Any, record: Any, runs: int) -> None:
    records = [
        record(s, 2e-6 + s / 2e9 if s <= 64 << 10 else 8e-6 + s / 1e10, run)
        for run in range(1, runs + 1)
        for s in SIZES
    ]

    assert any("139 % late" in note for note in fit_curve(curve_of(records)).notes)
