"""Limits as people type them, held against curves whose numbers are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from commbench.analyze.expectations import check, parse_expectation
from commbench.analyze.summary import Curve
from commbench.analyze.verdicts import GateReport
from commbench.errors import UsageError

CurveOf = Callable[..., Curve]
SIZE = 1 << 20


def held(curve: Curve, *texts: str) -> GateReport:
    return check([parse_expectation(text) for text in texts], [curve])


# -- what is typed -------------------------------------------------------------------------------------------------


def test_a_limit_is_an_operation_a_size_and_a_quantity() -> None:
    limit = parse_expectation("  allreduce@1G   busbw >= 440 GB/s ")

    assert (limit.op, limit.size, limit.quantity, limit.limit) == ("allreduce", 1 << 30, "busbw", 440e9)
    assert parse_expectation("all-reduce alpha<=5us").size is None
    assert parse_expectation("p2p@8 mode=sync dtype=float32 time<=2us").keys == (("mode", "sync"), ("dtype", "float32"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not understood"),
        ("allreduce", "not understood"),
        ("allreduce@1G", "not understood"),
        ("allreduce@1G busbw", "not understood"),
        ("allreduce@1G speed>=4GB/s", "unknown quantity 'speed'"),
        ("allreduce@1G busbw<=4GB/s", "is written busbw>="),
        ("allreduce@1G busbw>4GB/s", "is written busbw>="),
        ("allreduce@1G time>=4us", "is written time<="),
        ("allreduce busbw>=4GB/s", "busbw needs a size"),
        ("allreduce@1G alpha<=4us", "alpha is one of the whole curve"),
        ("allreduce@1G busbw>=4us", "not a rate"),
        ("allreduce@big busbw>=4GB/s", "not a size"),
        ("allreduce@1G colour=red busbw>=4GB/s", "unknown key 'colour'"),
        ("telepathy@1G busbw>=4GB/s", "telepathy"),
        ("allreduce@8 time<=0us", "more than 0"),
        ("all@1G busbw>=4GB/s", "one operation a limit"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_expectation(text)


# -- what comes of it ----------------------------------------------------------------------------------------------


def test_limits_of_each_kind_are_kept(curve_of: CurveOf) -> None:
    """1 MiB in 5 us + 1 MiB / 10 GB/s = 109.9 us: 9.545 GB/s, and 3/2 of that on the bus of four ranks."""
    report = held(
        curve_of(runs=3, run_noise=0.001),
        "allreduce@1M time<=111us",
        "allreduce@1M algbw>=9.4GB/s",
        "allreduce@1M busbw>=14.2GB/s",
        "allreduce alpha<=5.2us",
        "allreduce bandwidth>=9.8GB/s",
    )

    assert report.verdict == "pass"
    assert len(report.curves[0].met) == 5


def test_a_limit_beyond_the_whole_interval_is_missed(curve_of: CurveOf) -> None:
    report = held(curve_of(runs=3, run_noise=0.001), "allreduce@1M busbw>=20GB/s")

    assert report.verdict == "regression"
    [hit] = report.curves[0].hits
    assert (hit.family, hit.where, hit.sizes) == ("expect", "allreduce@1M busbw>=20GB/s", (SIZE, SIZE))
    assert hit.ratio.value == pytest.approx(20 / (1.5 * SIZE / (5e-6 + SIZE / 1e10) / 1e9), rel=0.01)
    assert hit.ratio.low is not None
    assert hit.ratio.low > 1  # above 1 is worse, as for times


def test_a_limit_inside_of_the_interval_cannot_be_told(curve_of: CurveOf) -> None:
    """The interval of one run is ±10 % here (see conftest)."""
    truth = 5e-6 + SIZE / 1e10
    report = held(curve_of(runs=1), f"allreduce@1M time<={truth * 0.95 * 1e6:.3f}us")

    assert report.verdict == "inconclusive"
    assert "inside of the interval" in report.curves[0].reasons[0]


def test_a_limit_that_the_value_keeps_is_kept(curve_of: CurveOf) -> None:
    truth = 5e-6 + SIZE / 1e10

    assert held(curve_of(runs=1), f"allreduce@1M time<={truth * 1.05 * 1e6:.3f}us").verdict == "pass"


def test_what_was_not_measured_is_refused_and_not_passed(curve_of: CurveOf) -> None:
    report = held(curve_of(), "allreduce@1000 time<=1s", "allgather@1M time<=1s", "allreduce@1M mode=pipe time<=1s")

    assert report.verdict == "refused"
    assert report.reasons == (
        "allreduce@1000 time<=1s: not measured at that size; the nearest one is 1K",
        "allgather@1M time<=1s: no such curve was measured",
        "allreduce@1M mode=pipe time<=1s: no such curve was measured",
    )


def test_one_limit_that_is_refused_does_not_hide_one_that_is_missed(curve_of: CurveOf) -> None:
    assert held(curve_of(), "allgather@1M time<=1s", "allreduce@1M time<=1us").verdict == "regression"


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"check": "wrong", "status": "failed", "reason": "element 3"}, "wrong"),
        ({"median": None, "status": "hung", "reason": "no progress"}, "hang"),
    ],
)
def test_a_point_that_failed_keeps_no_limit(
    curve_of: CurveOf, record: Any, changes: dict[str, Any], family: str
) -> None:
    report = held(curve_of([record(8, **changes)]), "allreduce@8 time<=1s")

    assert report.verdict == "regression"
    assert report.curves[0].hits[0].family == family


def test_a_curve_that_cannot_be_fitted_keeps_no_limit_on_its_fit(curve_of: CurveOf, record: Any) -> None:
    report = held(curve_of([record(8, 1e-5)]), "allreduce alpha<=1s")

    assert report.verdict == "refused"
    assert report.curves[0].reasons


def test_a_rate_of_one_rank_is_none(curve_of: CurveOf, record: Any) -> None:
    """The bus factor of one rank is 0: no bus moves anything."""
    report = held(curve_of([record(8, 1e-5, ranks=1)]), "allreduce@8 busbw>=1GB/s")

    assert report.verdict == "inconclusive"


def test_every_curve_that_a_limit_is_about_must_keep_it(curve_of: CurveOf) -> None:
    slow = curve_of(mode="pipe", alpha=1.0)
    limits = [parse_expectation("allreduce@1M time<=1ms")]

    assert check(limits, [curve_of(), slow]).verdict == "regression"
    assert check([parse_expectation("allreduce@1M mode=sync time<=1ms")], [curve_of(), slow]).verdict == "pass"
    assert math.isfinite(limits[0].limit)
