"""The time loop in plain Python: what it calls, how often and in which order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from commbench.backends import base
from commbench.backends.base import calibrate_host_clock, calibration_of, host_loop


class Diary:
    """Writes down every call; time passes in them alone: 7 s to align, 1 s in the body, 0.5 s in the tail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self._now = 0.0
        self._costs = {"align": 7.0, "body": 1.0, "tail": 0.5}
        monkeypatch.setattr(base.time, "perf_counter", lambda: self._now)

    def align(self) -> None:
        self._note("align")

    def body(self, position: int) -> None:
        self._note("body", str(position))

    def tail(self) -> None:
        self._note("tail")

    def _note(self, what: str, more: str = "") -> None:
        self.said.append(what + more)
        self._now += self._costs[what]


@pytest.fixture
def diary() -> Iterator[Diary]:
    with pytest.MonkeyPatch.context() as patch:
        yield Diary(patch)


def test_ranks_are_aligned_twice_before_each_call_and_lead_in_comes_first(diary: Diary) -> None:
    out = np.full(2, -1.0)
    position = host_loop(out, 1, 1, 1.0, diary.align, diary.body, None, 5)

    assert diary.said == ["align", "align", "body5", "align", "align", "body6", "align", "align", "body7"]
    assert position == 8


def test_a_batch_is_aligned_once_and_completed_once(diary: Diary) -> None:
    host_loop(np.empty(2), 0, 3, 1.0, diary.align, diary.body, diary.tail, 0)

    one = ["align", "align", "body{}", "body{}", "body{}", "tail"]
    assert diary.said == "/".join(one + one).format(*range(6)).split("/")


def test_the_time_is_per_call_with_the_tail_and_without_the_alignment(diary: Diary) -> None:
    """Four calls of 1 s and a tail of 0.5 s are 1.125 s a call."""
    out = np.empty(3)
    host_loop(out, 2, 4, 1.0, diary.align, diary.body, diary.tail, 0)

    assert out.tolist() == [1.125] * 3


def test_half_a_round_trip_is_half_of_what_the_clock_says(diary: Diary) -> None:
    out = np.empty(1)
    host_loop(out, 0, 1, 0.5, None, diary.body, None, 0)

    assert out.tolist() == [0.5]
    assert diary.said == ["body0"]


def test_a_clock_is_calibrated_by_the_gaps_between_its_readings() -> None:
    """Gaps of 40, 80 and 120 ns: the median costs 80 ns, the clock ticks every 40."""
    calibration = calibration_of("mine", np.array([40e-9, 80e-9, 80e-9, 120e-9]), 5e-7)

    assert calibration.clock == "mine"
    assert calibration.step == pytest.approx(40e-9)
    assert calibration.overhead == pytest.approx(80e-9)
    assert calibration.call_overhead == 5e-7


def test_a_clock_that_always_says_the_same_ticks_every_nanosecond() -> None:
    assert calibration_of("mine", np.full(10, 50e-9)).step == pytest.approx(1e-9)


def test_the_hosts_clock_moves_forward() -> None:
    calibration = calibrate_host_clock()

    assert calibration.clock == "perf_counter"
    assert calibration.step >= 1e-9
    assert calibration.overhead > 0
    assert calibration.call_overhead is None
