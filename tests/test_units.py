"""Sizes, times and rates, there and back; expected values are powers of two and of ten."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.units import (
    format_gigabytes,
    format_microseconds,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    format_size,
    format_size_about,
    parse_duration,
    parse_rate,
    parse_share,
    parse_size,
)

# -- sizes -------------------------------------------------------------------------------------------------------


def test_a_size_without_unit_is_bytes() -> None:
    assert parse_size("8") == 8


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1K", 1024),
        ("64k", 65536),
        ("1M", 1 << 20),
        ("1G", 1 << 30),
        ("2T", 1 << 41),
        ("1.5M", 3 << 19),
        ("0.5K", 512),
        ("1GiB", 1 << 30),
        ("64 KB", 65536),
        (" 8B ", 8),
        ("0", 0),
    ],
)
def test_units_of_sizes_are_powers_of_two(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-8", "8X", "1e6", "8 8", "K", "64Kbit", "1,5M", "nan", "9" * 400])
def test_what_is_no_size_is_refused_by_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--min-bytes: ") as caught:
        parse_size(text, "--min-bytes")
    assert caught.value.hint


def test_a_size_is_a_whole_number_of_bytes() -> None:
    with pytest.raises(UsageError, match="not a whole number of bytes"):
        parse_size("1.1K")  # 1126.4


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (8, "8"),
        (1000, "1000"),
        (1023, "1023"),
        (1024, "1K"),
        (1025, "1025"),
        (196608, "192K"),
        (1 << 20, "1M"),
        (3 << 19, "1536K"),
        (1 << 30, "1G"),
        (1 << 40, "1T"),
    ],
)
def test_a_size_is_shown_exactly(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1 << 52))
def test_a_size_that_is_shown_can_be_typed_again(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(812.4, "812"), (1024, "1.00K"), (50278, "49.1K"), (1.2 * (1 << 20), "1.20M"), (0.0, "0"), (math.inf, "-")],
)
def test_an_estimated_size_has_three_digits(size: float, text: str) -> None:
    assert format_size_about(size) == text


# -- durations, rates and shares ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5us", 5e-6),
        ("5 µs", 5e-6),
        ("5 \N{GREEK SMALL LETTER MU}s", 5e-6),  # most keyboards have this mu, not the micro sign
        ("20ms", 0.02),
        ("100ns", 1e-7),
        ("60s", 60),
        ("60", 60),
        ("1.5", 1.5),
        ("2e-3", 0.002),
        ("10m", 600),
        ("10min", 600),
        ("1h", 3600),
        ("10M", 600),
    ],
)
def test_a_duration_is_seconds_unless_it_says_otherwise(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "s", "-5s", "5 parsecs", "5%", "inf", "nan", "1e400", "1:30"])
def test_what_is_no_duration_is_refused_by_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--budget: "):
        parse_duration(text, "--budget")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10GB/s", 1e10),
        ("440 MB/s", 4.4e8),
        ("100Gbit/s", 1.25e10),
        ("100Gb/s", 1.25e10),
        ("8kbit/s", 1000),
        ("1TB/s", 1e12),
        ("1.5B/s", 1.5),
        ("1e9", 1e9),
    ],
)
def test_a_rate_is_bytes_per_second_and_its_units_are_powers_of_ten(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("text", ["", "GB/s", "10GB", "10 apples", "10GiB/s", "-1GB/s", "1e400"])
def test_what_is_no_rate_is_refused_by_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--emulate bandwidth: "):
        parse_rate(text, "--emulate bandwidth")


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.02", 0.02), ("0", 0.0), ("99.9 %", 0.999)])
def test_a_share_is_a_percentage_or_a_number_below_one(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("text", ["", "%", "2s", "100%", "1", "2", "-1%", "nan"])
def test_what_is_no_share_is_refused_by_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--precision: "):
        parse_share(text, "--precision")


@pytest.mark.parametrize("parse", [parse_size, parse_duration, parse_rate, parse_share])
@given(
    text=st.text(max_size=12) | st.from_regex(r"[0-9]{1,3}(\.[0-9])?(e[0-9]{1,3})? ?[a-zA-Z%/]{0,5}", fullmatch=True)
)
def test_any_text_is_a_finite_number_or_a_usage_error(parse: Callable[[str], float], text: str) -> None:
    try:
        value = parse(text)
    except UsageError:
        return
    assert value >= 0
    assert math.isfinite(value)


# -- shown -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.1234567e-6, "3.123"),
        (9.9999e-6, "10.00"),
        (1.048576e-3, "1049"),
        (1.5, "1500000"),
        (1.234e-9, "0.001234"),
        (0.0, "0"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_a_time_in_a_column_has_four_digits_of_microseconds(seconds: float, text: str) -> None:
    assert format_microseconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4.2e-8, "42.0 ns"),
        (3.1234e-6, "3.12 us"),
        (312e-6, "312 us"),
        (4.5e-3, "4.50 ms"),
        (1.234, "1.23 s"),
        (125, "125 s"),
        (0.0, "0 ns"),
        (-3e-6, "-3.00 us"),
    ],
)
def test_a_time_in_running_text_has_three_digits_and_a_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_rounding_does_not_leave_a_unit_too_small() -> None:
    """999.6 us to three digits is 1.00 ms; 1023.9K is 1.00M."""
    assert format_seconds(999.6e-6) == "1.00 ms"
    assert format_size_about(1023.9 * 1024) == "1.00M"


@pytest.mark.parametrize(
    ("rate", "text"), [(12.345e9, "12.3"), (1e9, "1.00"), (440e9, "440"), (1234e9, "1234"), (5e6, "0.00500")]
)
def test_a_rate_is_always_in_gigabytes_of_a_billion_bytes(rate: float, text: str) -> None:
    assert format_gigabytes(rate) == text
    assert format_rate(rate) == f"{text} GB/s"


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.0%"), (0.0123, "1.2%"), (0.0994, "9.9%"), (0.35, "35%")])
def test_a_share_is_shown_with_two_digits(share: float, text: str) -> None:
    assert format_percent(share) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "1.000"), (1.0243, "1.024"), (12.345678, "12.35"), (0.08341, "0.08341"), (123456.0, "1.2e+05"), (0.0, "0")],
)
def test_a_ratio_has_four_digits_and_never_outgrows_a_column(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@given(st.floats(1e-9, 1e4))
def test_four_digits_are_within_half_a_unit_of_the_fourth(seconds: float) -> None:
    assert float(format_microseconds(seconds)) == pytest.approx(seconds * 1e6, rel=5.0001e-4)
