from __future__ import annotations

import math
from typing import Any

import pytest

from commbench.analyze.finding import (
    BROKEN,
    NO_RATIO,
    ODD,
    Finding,
    ratio_of,
    sizes_in_words,
    times_as_long,
    worst_first,
)
from commbench.analyze.fit import Estimate


def finding(record: Any, text: str, ratio: Estimate = NO_RATIO, severity: int = ODD) -> Finding:
    return Finding(kind="dip", key=record().point.curve, sizes=(8,), ratio=ratio, text=text, severity=severity)


def test_a_ratio_has_the_normal_interval_of_its_logarithm() -> None:
    ratio = ratio_of(math.log(2), 0.1)

    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2 * math.exp(-0.196), 2 * math.exp(0.196)))
    assert times_as_long(ratio) == "2.00 times [1.64, 2.43] as long as"


def test_findings_are_ordered_by_severity_then_by_the_end_of_the_interval_nearer_to_1(record: Any) -> None:
    vague, sure = Estimate(5.0, 1.1, 20.0), Estimate(2.0, 1.9, 2.1)
    fast, nothing = Estimate(0.2, 0.18, 0.22), Estimate(3.0, 0.9, 9.0)
    found = [
        finding(record, "nothing", nothing),
        finding(record, "vague", vague),
        finding(record, "sure", sure),
        finding(record, "fast", fast),
        finding(record, "broken", severity=BROKEN),
    ]

    assert [f.text for f in worst_first(found)] == ["broken", "fast", "sure", "vague", "nothing"]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((262144,), "256K"),
        ((8, 16), "8 and 16"),
        ((8, 16, 32), "8 to 32"),
        ((8, 32, 64), "3 sizes of 8 to 64"),
    ],
)
def test_sizes_are_named_shortly(sizes: tuple[int, ...], words: str) -> None:
    assert sizes_in_words(sizes, [8, 16, 32, 64, 262144]) == words
