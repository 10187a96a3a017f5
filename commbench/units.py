"""Sizes, times and rates: text to base units and back. Nothing else in the program formats a quantity.

Stored values are seconds, bytes and bytes per second. Shown are microseconds, K/M/G as powers of two for
sizes, and GB/s = 1e9 bytes per second for rates.
"""

from __future__ import annotations

import math
import re

from commbench.errors import UsageError

# Digits are limited so that no text becomes infinity.
_SIZE = re.compile(r"(?P<number>\d{1,20}(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_NUMBER_AND_UNIT = re.compile(r"(?P<number>\d{1,20}(?:\.\d*)?(?:e[+-]?\d{1,2})?)\s*(?P<unit>[a-zµ%/]*)", re.IGNORECASE)
# Twice "µs": by Unicode the micro sign and the Greek letter are two characters, and keyboards have either.
_SECONDS = {"ns": 1e-9, "us": 1e-6, "\N{MICRO SIGN}s": 1e-6, "\N{GREEK SMALL LETTER MU}s": 1e-6, "ms": 1e-3,
            "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}  # fmt: skip
_RATE_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_size(text: str, flag: str = "a size") -> int:
    """Bytes of "8", "64K", "1.5M", "1GiB" (powers of two, as in nccl-tests).

    Raises:
        UsageError: naming `flag`, when the text is no size or not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{flag}: {text!r} is not a size", "write bytes, or a number with K, M or G: 8, 64K, 1G")
    size = float(match["number"]) * _SIZE_FACTOR[match["unit"].lower()]
    if size != int(size):
        raise UsageError(f"{flag}: {text!r} is not a whole number of bytes", "write it in bytes")
    return int(size)


def format_size(size: int) -> str:
    """64K, 1M, 1G where the size is a whole number of them, else the bytes: 8, 1000, 196608 is 192K."""
    for suffix in ("T", "G", "M", "K"):
        factor = _SIZE_FACTOR[suffix.lower()]
        if size >= factor and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)


def format_size_about(size: float) -> str:
    """A size that was estimated, three significant digits: "49.1K", "812", "1.20M"."""
    for suffix in ("T", "G", "M", "K"):
        factor = _SIZE_FACTOR[suffix.lower()]
        if math.isfinite(size) and _rounded(size / factor, 3) >= 1:
            return f"{_significant(size / factor, 3)}{suffix}"
    return _significant(size, 3)


def parse_duration(text: str, flag: str = "a duration") -> float:
    """Seconds of "5us", "20ms", "60s", "10m", "1h"; a bare number is seconds.

    Raises:
        UsageError: naming `flag`.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or match["unit"].lower() not in _SECONDS:
        raise UsageError(f"{flag}: {text!r} is not a duration", "write it as 5us, 20ms, 60s, 10m or 1h")
    return float(match["number"]) * _SECONDS[match["unit"].lower()]


def parse_rate(text: str, flag: str = "a rate") -> float:
    """Bytes per second of "10GB/s", "440 MB/s", "100Gbit/s"; a bare number is bytes per second.

    Raises:
        UsageError: naming `flag`.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    unit = match["unit"] if match else "?"
    found = re.fullmatch(r"(?P<prefix>[kmgt]?)(?P<what>b|bit)/s", unit, re.IGNORECASE)
    if match is None or (unit and found is None):
        raise UsageError(f"{flag}: {text!r} is not a rate", "write it as 10GB/s or 100Gbit/s")
    if found is None:
        return float(match["number"])
    bits = found["what"].lower() == "bit" or found["what"] == "b"
    return float(match["number"]) * _RATE_PREFIX[found["prefix"].lower()] / (8 if bits else 1)


def parse_share(text: str, flag: str = "a share") -> float:
    """0.02 of "2%" or "0.02".

    Raises:
        UsageError: naming `flag`, also when the share is not between 0 and 1.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or match["unit"] not in ("", "%"):
        raise UsageError(f"{flag}: {text!r} is not a percentage", "write it as 2% or 0.02")
    share = float(match["number"]) / (100 if match["unit"] else 1)
    if not 0 <= share < 1:
        raise UsageError(f"{flag}: {text!r} must be at least 0% and below 100%", "write it as 2% or 0.02")
    return share


def format_microseconds(seconds: float) -> str:
    """The number of a "time(us)" column: four significant digits, no exponent."""
    return _significant(seconds * 1e6)


def format_seconds(seconds: float) -> str:
    """A time in running text: "3.12 us", "4.5 ms", "1.2 s"."""
    for unit, factor in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if _rounded(abs(seconds) / factor, 3) < 1000:  # noqa: PLR2004 - the next unit begins there
            return f"{_significant(seconds / factor, 3)} {unit}"
    return f"{_significant(seconds, 3)} s"


def format_rate(bytes_per_second: float) -> str:
    """A rate in running text, always GB/s so that two of them compare at a glance: "12.3 GB/s"."""
    return f"{format_gigabytes(bytes_per_second)} GB/s"


def format_gigabytes(bytes_per_second: float) -> str:
    """The number of a GB/s column: three significant digits below 1000."""
    return _significant(bytes_per_second / 1e9, 3)


def format_ratio(ratio: float) -> str:
    """A ratio, four significant digits: "1.024", "12.35", "0.0834"; far from 1 "1.2e+07"."""
    return _significant(ratio) if 1e-5 <= ratio < 1e5 else f"{ratio:.2g}"  # noqa: PLR2004 - a column's width


def format_percent(share: float) -> str:
    """A half-width or a share of "1.2%" or "35%"."""
    percent = 100 * share
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"  # noqa: PLR2004 - two digits are enough


def _significant(value: float, digits: int = 4) -> str:
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(_rounded(value, digits))))
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")
