"""What a cache line's way says about two cores; the probe itself is measured in tests/backends/test_kernels.py."""

from __future__ import annotations

import numpy as np
import pytest

from commbench.backends.base import World
from commbench.measure.control import SocketControl
from commbench.measure.handover import Handover, name_of


@pytest.mark.parametrize(
    ("nanoseconds", "name"),
    [
        (5, "same core"),
        (14.9, "same core"),
        (15, "near"),
        (50, "near"),
        (74.9, "near"),
        (75, "far"),
        (200, "far"),
        (399, "far"),
        (400, "apart"),
        (5000, "apart"),
    ],
)
def test_a_state_is_named_by_how_long_a_line_takes(nanoseconds: float, name: str) -> None:
    assert name_of(nanoseconds * 1e-9) == name


def test_one_rank_has_no_neighbour_to_probe() -> None:
    alone = SocketControl(World(0, 1, 0, 1, "alone"), 1, "")

    assert Handover(alone, "launch").probe() is None
    assert not Handover(alone, "launch").able


@pytest.mark.parametrize(
    ("seconds", "reading"),
    [
        (50e-9, {"seconds": 50e-9, "state": "near"}),
        (-1.0, None),  # this side lost patience: void everywhere
    ],
)
def test_a_reading_counts_when_both_sides_have_one(
    seconds: float, reading: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loop:
        def handover(self, *_: int) -> float:
            return seconds

    probe = Handover(SocketControl(World(0, 1, 0, 1, "alone"), 1, ""), "launch")
    monkeypatch.setattr(probe, "_loop", Loop())
    monkeypatch.setattr(probe, "_memory", np.zeros(8, dtype=np.int64))

    assert probe.probe() == reading
