"""Limits that a single measurement has to keep: "allreduce@1G busbw>=440GB/s", "p2p alpha<=2us".

A limit is kept when the value keeps it. It is missed when the whole 95 % interval is on its wrong side; where only the
value is, nobody can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from commbench.analyze.fit import fit_curve
from commbench.analyze.summary import Curve, PointSummary
from commbench.analyze.verdicts import CurveVerdict, GateReport, Hit, Ratio, Verdict, worst
from commbench.errors import CannotTellError, UsageError
from commbench.ops import OPERATIONS, parse_operations
from commbench.units import format_rate, format_seconds, format_size, parse_duration, parse_rate, parse_size

_OF_A_SIZE, _OF_THE_FIT = ("time", "algbw", "busbw"), ("alpha", "bandwidth")
_TIMES = ("time", "alpha")
_KEYS = ("mode", "dtype", "redop", "backend", "device", "path", "cache", "in_place", "ranks")
_FORM = re.compile(
    r"(?P<op>[\w-]+)(@(?P<size>[\w.]+))?\s+(?P<keys>(\w+=\S+\s+)*)(?P<quantity>[a-z]+)\s*(?P<relation>[<>]=?|=)\s*(?P<limit>.+)"
)
SYNTAX = "'allreduce@1G busbw>=440GB/s', 'p2p@8 mode=sync time<=2us', 'allreduce alpha<=5us'"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One limit.

    Attributes:
        text: as it was typed.
        op: the operation.
        size: bytes, None for a limit on the fit.
        keys: what else the curve must be, as (("mode", "pipe"),).
        quantity: time, algbw, busbw of a size; alpha, bandwidth of the fit.
        limit: seconds, which must not be more, or bytes per second, which must not be less.
    """

    text: str
    op: str
    size: int | None
    keys: tuple[tuple[str, str], ...]
    quantity: str
    limit: float

    def is_about(self, curve: Curve) -> bool:
        key = curve.key
        return key.op == self.op and all(_word(getattr(key, name)) == value for name, value in self.keys)


@dataclass(frozen=True, slots=True)
class _Found:
    value: float
    low: float | None
    high: float | None


def parse_expectation(text: str) -> Expectation:
    """The limit in "OP@SIZE [KEY=VALUE ...] QUANTITY>=LIMIT".

    Raises:
        UsageError: saying which part is not understood.
    """
    flag = f"--expect {text!r}"
    match = _FORM.fullmatch(" ".join(text.split()))
    if match is None:
        raise UsageError(f"{flag} is not understood", f"write it like {SYNTAX}")
    quantity, relation = match["quantity"], match["relation"]
    if quantity not in _OF_A_SIZE + _OF_THE_FIT:
        raise UsageError(f"{flag}: unknown quantity {quantity!r}", f"one of: {', '.join(_OF_A_SIZE + _OF_THE_FIT)}")
    right = "<=" if quantity in _TIMES else ">="
    if relation != right:
        raise UsageError(f"{flag}: a limit on {quantity} is written {quantity}{right}...", f"as in {SYNTAX}")
    if (quantity in _OF_A_SIZE) != (match["size"] is not None):
        needs = "needs a size" if quantity in _OF_A_SIZE else "is one of the whole curve, without a size"
        raise UsageError(f"{flag}: {quantity} {needs}", f"as in {SYNTAX}")
    operations = parse_operations(match["op"])
    if len(operations) != 1:
        raise UsageError(f"{flag}: one operation a limit", f"one of: {', '.join(OPERATIONS)}")
    limit = (parse_duration if quantity in _TIMES else parse_rate)(match["limit"], flag)
    if not limit > 0:
        raise UsageError(f"{flag}: a limit is more than 0", f"as in {SYNTAX}")
    return Expectation(
        text=" ".join(text.split()),
        op=operations[0],
        size=None if match["size"] is None else parse_size(match["size"], flag),
        keys=tuple(_key(word, flag) for word in match["keys"].split()),
        quantity=quantity,
        limit=limit,
    )


def check(expectations: Sequence[Expectation], curves: Iterable[Curve]) -> GateReport:
    """Whether the limits are kept; a limit that nothing was measured for refuses."""
    curves = list(curves)
    reasons = [f"{limit.text}: {why}" for limit in expectations if (why := _not_there(limit, curves))]
    verdicts = []
    for curve in curves:
        mine = [_judge(limit, curve) for limit in expectations if limit.is_about(curve) and not _lacks(limit, curve)]
        if mine:
            verdicts.append(_together(curve, mine))
    all_verdicts: list[Verdict] = [one.verdict for one in verdicts] + ["refused" for _ in reasons]
    return GateReport(worst(all_verdicts), tuple(verdicts), tuple(reasons))


def _together(curve: Curve, parts: Sequence[CurveVerdict]) -> CurveVerdict:
    """All limits on one curve."""
    return replace(
        parts[0],
        verdict=worst(part.verdict for part in parts),
        pairs=curve.runs,
        sizes=len(curve.points),
        hits=tuple(hit for part in parts for hit in part.hits),
        met=tuple(text for part in parts for text in part.met),
        reasons=tuple(text for part in parts for text in part.reasons),
    )


def _judge(limit: Expectation, curve: Curve) -> CurveVerdict:
    nothing = CurveVerdict(key=curve.key, verdict="refused", stage=1, replicates="runs")
    point = _point(limit, curve)
    sizes = None if point is None else (point.point.bytes, point.point.bytes)
    if point is not None and not point.is_sound:
        what = "wrong answer" if point.check == "wrong" else point.status
        hit = Hit(
            "wrong" if point.check == "wrong" else "hang",
            limit.text,
            sizes,
            Ratio(None),
            text=f"{what}: {point.reason}",
        )
        return replace(nothing, verdict="regression", hits=(hit,))
    try:
        found = _value(limit, curve, point)
    except CannotTellError as error:
        return replace(nothing, reasons=(f"{limit.text}: {error.message}",))
    if found is None:
        return replace(
            nothing, verdict="inconclusive", reasons=(f"{limit.text}: it cannot be told from what was measured",)
        )
    return _held_against(limit, found, sizes, nothing)


def _held_against(
    limit: Expectation, found: _Found, sizes: tuple[int, int] | None, nothing: CurveVerdict
) -> CurveVerdict:
    """Kept, missed, or cannot tell."""
    worse = 1 if limit.quantity in _TIMES else -1
    show = format_seconds if limit.quantity in _TIMES else format_rate
    best = found.value
    if found.low is not None and found.high is not None:
        best = found.low if worse == 1 else found.high
    interval = "" if found.low is None or found.high is None else f" [{show(found.low)}, {show(found.high)}]"
    text = f"{limit.text}: {show(found.value)}{interval}"
    if worse * (found.value - limit.limit) <= 0:
        return replace(nothing, verdict="pass", met=(text,))
    if worse * (best - limit.limit) <= 0:
        return replace(nothing, verdict="inconclusive", reasons=(f"{text}: the limit lies inside of the interval",))
    parts = (found.value, found.low, found.high)
    ratios = sorted((part / limit.limit) ** worse for part in parts if part is not None)
    ratio = Ratio((found.value / limit.limit) ** worse, *((ratios[0], ratios[-1]) if len(ratios) > 1 else ()))
    return replace(
        nothing,
        verdict="regression",
        hits=(Hit("expect", limit.text, sizes, ratio, text=f"{show(found.value)}{interval}"),),
    )


def _value(limit: Expectation, curve: Curve, point: PointSummary | None) -> _Found | None:
    """What was measured; None for a parameter that is not identified.

    Raises:
        CannotTellError: the curve cannot be fitted.
    """
    if point is None:
        fitted = fit_curve(curve)
        known = fitted.alpha if limit.quantity == "alpha" else fitted.bandwidth
        return None if known.value is None else _Found(known.value, known.low, known.high)
    assert point.seconds is not None
    median, low, high = point.seconds.median, point.seconds.low, point.seconds.high
    if limit.quantity == "time":
        return _Found(median, low, high)
    rate = point.busbw if limit.quantity == "busbw" else point.algbw
    if not rate:  # of one rank, no bus moves anything
        return None
    moved = rate * median
    return _Found(rate, moved / high if high else None, moved / low if low else None)


def _point(limit: Expectation, curve: Curve) -> PointSummary | None:
    return next((point for point in curve.points if point.point.bytes == limit.size), None)


def _lacks(limit: Expectation, curve: Curve) -> bool:
    return limit.size is not None and _point(limit, curve) is None


def _not_there(limit: Expectation, curves: Sequence[Curve]) -> str:
    """Why a limit cannot be looked at, "" when it can."""
    about = [curve for curve in curves if limit.is_about(curve)]
    if not about:
        return "no such curve was measured"
    if limit.size is None or any(not _lacks(limit, curve) for curve in about):
        return ""
    sizes = sorted({point.point.bytes for curve in about for point in curve.points})
    nearest = min(sizes, key=lambda size: abs(size - (limit.size or 0)))
    return f"not measured at that size; the nearest one is {format_size(nearest)}"


def _key(word: str, flag: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    if name not in _KEYS:
        raise UsageError(f"{flag}: unknown key {name!r}", f"one of: {', '.join(_KEYS)}")
    return name, value.lower()


def _word(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value).lower()
