"""What is odd about some results: all that a reader should know beyond the numbers, worst first, each once.

Three sources come together: what records carry (`measured`), the shape of each curve (`shape`), and rules across
operations (`guidelines`). Here the shape gets its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from commbench.analyze.advice import another_algorithm
from commbench.analyze.datasets import Dataset
from commbench.analyze.finding import (
    ODD,
    USUAL,
    Finding,
    marked_sizes,
    ratio_of,
    sizes_in_words,
    times_as_long,
    worst_first,
)
from commbench.analyze.guidelines import findings_across
from commbench.analyze.lines import Sample, samples_of
from commbench.analyze.measured import findings_of_records
from commbench.analyze.shape import Oddity, ShapeKind, oddities_of_shape
from commbench.analyze.summary import Curve
from commbench.records import Record
from commbench.spec import Point
from commbench.units import format_percent, format_seconds, format_size

_SMALLEST_CACHE = 1 << 20
_POINTED = ("dip", "fast_size", "time_falls")


def diagnose(dataset: Dataset) -> list[Finding]:
    """All findings about what was measured in one setting, worst first."""
    records: dict[Point, list[Record]] = {}
    for record in dataset.records:
        records.setdefault(record.point.curve, []).append(record)
    found: list[Finding] = []
    said: dict[Point, set[int]] = {}
    curves = [(curve, samples_of(curve)) for curve in dataset.curves]
    for curve, samples in curves:
        found += findings_of_records(curve, records[curve.key])
        shape = list(findings_of_shape(curve, samples))
        said[curve.key] = set(marked_sizes(shape))
        found += shape
    return worst_first([*found, *findings_across(curves, said)])


def by_curve(findings: Iterable[Finding]) -> dict[Point, list[Finding]]:
    """Findings in their order, under the curve that each is about."""
    found: dict[Point, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.key, []).append(finding)
    return found


def findings_of_shape(curve: Curve, samples: Sequence[Sample]) -> Iterator[Finding]:
    """What is odd about the times of a curve over its sizes; on one rank nothing travels, so nothing is."""
    if curve.key.ranks < 2:  # noqa: PLR2004
        return
    for oddity in oddities_of_shape(samples):
        usual = oddity.kind in ("cliff", "sinking_plateau") and _outgrows_cache(curve, oddity)
        yield Finding(
            kind=oddity.kind,
            key=curve.key,
            sizes=oddity.sizes,
            ratio=ratio_of(oddity.excess, oddity.deviation),
            text=_Words(curve, oddity).text,
            severity=USUAL if usual else ODD,
            pointed=oddity.kind in _POINTED,
        )


def _outgrows_cache(curve: Curve, oddity: Oddity) -> bool:
    """One buffer that is used again and again lies in the cache, up to some megabytes."""
    return curve.key.device == "cpu" and curve.key.cache == "hot" and oddity.sizes[0] >= _SMALLEST_CACHE


class _Words:
    """The sentence about an oddity of a curve."""

    def __init__(self, curve: Curve, oddity: Oddity) -> None:
        self._curve, self._oddity = curve, oddity
        self._times = {p.point.bytes: p.seconds.median for p in curve.points if p.seconds}
        self._sizes = tuple(self._times)
        self._ratio = ratio_of(oddity.excess, oddity.deviation)
        self._try = another_algorithm(curve.key, curve.setting.library)

    @property
    def text(self) -> str:
        sentences: dict[ShapeKind, Callable[[], str]] = {
            "dip": self._dip,
            "fast_size": self._fast_size,
            "time_falls": self._time_falls,
            "cliff": self._sunk,
            "sinking_plateau": self._sunk,
            "step": self._step,
        }
        return sentences[self._oddity.kind]()

    def _dip(self) -> str:
        slow = self._oddity.sizes
        worst = max(slow, key=lambda size: self._times[size] / size)
        text = f"{self._where(slow)}: {self._takes(worst)}, {times_as_long(self._ratio)} its neighbours explain"
        half = worst // 2
        if half in self._times and 2 * self._times[half] < self._times[worst]:
            text += f"; two calls of {format_size(half)} take {format_seconds(2 * self._times[half])}"
        return f"{text}: measure again; if it stays, {self._try}"

    def _fast_size(self) -> str:
        [size] = self._oddity.sizes
        return (
            f"{format_size(size)}: {self._takes(size)}, only {times_as_long(self._ratio)} its neighbours explain and "
            f"less than {format_size(self._oddity.beside[0])}: measure again, with --check; if it stays, the sizes "
            f"around it are slow: {self._try}"
        )

    def _time_falls(self) -> str:
        slow, [faster] = self._oddity.sizes, self._oddity.beside
        worst = max(slow, key=lambda size: self._times[size])
        text = f"{self._where(slow)}: {self._takes(worst)}, {times_as_long(self._ratio)} {format_size(faster)}"
        if slow == self._sizes[:1]:
            return f"{text}: the first size paid for warming up; raise -w, or start one size lower"
        return f"{text}: the library changes its algorithm too late; {self._try}"

    def _sunk(self) -> str:
        assert self._ratio.value is not None
        how = "drops at once" if self._oddity.kind == "cliff" else "sinks"
        text = (
            f"from {format_size(self._oddity.sizes[0])} on: bandwidth {how} to {format_percent(1 / self._ratio.value)} "
            f"of what {self._where(self._oddity.beside)} reach and does not recover"
        )
        if _outgrows_cache(self._curve, self._oddity):
            return f"{text}: usual once buffers outgrow the cache; --cache rotated keeps it out of all sizes"
        return f"{text}: look for a throttled or shared link, NUMA placement, pinning; {self._try}"

    def _step(self) -> str:
        [last], first = self._oddity.beside, self._oddity.sizes[0]
        return (
            f"from {format_size(first)} on: calls take {times_as_long(self._ratio)} the sizes up to "
            f"{format_size(last)} lead to expect, and no larger size makes up for it: "
            f"{self._try}"
        )

    def _takes(self, size: int) -> str:
        name = f" at {format_size(size)}" if len(self._oddity.sizes) > 1 else ""
        return f"{format_seconds(self._times[size])}{name}"

    def _where(self, sizes: Iterable[int]) -> str:
        return sizes_in_words(tuple(sizes), self._sizes)
