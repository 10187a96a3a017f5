from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commbench.analyze.finding import BROKEN, TO_KNOW, UNSURE, Finding
from commbench.analyze.measured import findings_of_records
from commbench.analyze.summary import curves, points
from commbench.stats import FLAGS, LogHistogram


def found_in(records: list[Any]) -> list[Finding]:
    [curve] = curves(points(records))
    return list(findings_of_records(curve, records))


def two_groups(low: float, high: float, share_of_high: float) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    slow = int(1000 * share_of_high)
    values = np.concatenate([np.full(1000 - slow, low), np.full(slow, high)]) * np.exp(0.02 * draw.normal(size=1000))
    histogram = LogHistogram()
    histogram.extend(values)
    return histogram.to_json()


def test_wrong_answers_hangs_and_failures_come_with_their_reason(record: Any) -> None:
    found = found_in(
        [
            record(8, flags=("unstable",)),
            record(16, None, status="failed", reason="rank 1 died", check="skipped"),
            record(32, None, status="hung", reason="no progress", check="skipped"),
            record(64, status="failed", reason="rank 0: element 5 is 3, expected 4", check="wrong"),
        ]
    )

    assert [(f.kind, f.sizes, f.severity) for f in found] == [
        ("wrong_answer", (64,), BROKEN),
        ("hung", (32,), BROKEN),
        ("failed", (16,), BROKEN),
        ("unstable", (8,), UNSURE),
    ]
    assert found[0].text == "wrong answer at 64: rank 0: element 5 is 3, expected 4"


def test_a_flag_is_said_once_with_all_its_sizes_and_in_the_words_of_the_statistics(record: Any) -> None:
    [drift] = found_in([record(size, flags=("drift",)) for size in (8, 16, 32)])

    assert (drift.kind, drift.sizes, drift.ratio.value) == ("drift", (8, 16, 32), None)
    assert drift.text == f"drift at 8 to 32: {FLAGS['drift']}"


def test_what_another_flag_explains_at_the_same_size_is_not_said_again(record: Any) -> None:
    found = found_in(
        [record(8, flags=("state_changed", "two_modes", "unstable")), record(16, flags=("two_modes", "unstable"))]
    )

    assert [(f.kind, f.sizes) for f in found] == [("state_changed", (8,)), ("two_modes", (16,))]


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_becomes_a_finding(record: Any, flag: str) -> None:
    [found] = found_in([record(8, flags=(flag,))])

    assert (found.kind, found.text) == (flag, f"{flag} at 8: {FLAGS[flag]}")


def test_a_flag_of_another_version_is_named_and_comes_last(record: Any) -> None:
    found = found_in([record(8, flags=("from_the_future", "resumed"))])

    assert [(f.kind, f.severity) for f in found] == [("resumed", TO_KNOW), ("from_the_future", TO_KNOW)]
    assert "unknown to this version" in found[1].text


def test_the_rank_that_is_last_is_named_with_its_share(record: Any) -> None:
    [found] = found_in(
        [
            record(8, slowest=(3, 0.62), flags=("one_rank_last",)),
            record(16, slowest=(3, 0.81), flags=("one_rank_last",)),
            record(32, slowest=(1, 0.95), flags=("one_rank_last",)),
            record(64, slowest=(2, 0.3)),
        ]
    )

    assert found.sizes == (8, 16, 32)
    assert "rank 3 mostly, in up to 81% of the calls" in found.text


def test_two_modes_are_named_with_their_times_and_share(record: Any) -> None:
    """Groups at 15.7 and 49 us, three in ten of the calls in the slower one."""
    [found] = found_in([record(65536, flags=("two_modes",), histogram=two_groups(15.7e-6, 49e-6, 0.3))])

    assert found.ratio.value == pytest.approx(49 / 15.7, rel=0.02)
    assert "(30% of them)" in found.text
    assert "or 48." in found.text or "or 49." in found.text


@pytest.mark.parametrize("histogram", [None, {}, {"base": 1}, {"base": "x", "step": 1, "bins": [], "counts": []},
                                       {"base": 1e-9, "step": 0.01, "bins": [5], "counts": [100]}])  # fmt: skip
def test_a_histogram_without_two_groups_costs_the_detail_only(record: Any, histogram: Any) -> None:
    [found] = found_in([record(8, flags=("two_modes",), histogram=histogram)])

    assert found.text == f"two_modes at 8: {FLAGS['two_modes']}"
