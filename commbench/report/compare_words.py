"""What a comparison says, in words, rows and columns: the one definition that terminal, Markdown and JSON share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from commbench.analyze.compare import Compared, Comparison, Pair, SizeRatio
from commbench.analyze.crossings import Crossing
from commbench.analyze.finding import worst_first
from commbench.analyze.fit import CurveFit
from commbench.analyze.matching import Candidate
from commbench.analyze.measured import findings_of_records
from commbench.analyze.ratios import Ratio
from commbench.report.text import KEYS as WORDED_KEYS
from commbench.report.text import SEPARATOR, clean, common_settings, common_words, labels, words
from commbench.units import (
    format_ratio,
    format_size,
    format_size_about,
)

LABEL = 10
NO_VERDICT = "Ratios, not a verdict: `commbench gate` judges."

_NOTHING = "-"
_LONGEST_NAME = 24
_MOST_SIZES = 4
_MOST_CHANGES = 12
_MOST_FLAGS = 3


@dataclass(frozen=True)
class Words:
    """A comparison in words. Curves have a letter each, for columns, and a name, for sentences."""

    comparison: Comparison

    @cached_property
    def letters(self) -> list[str]:
        return [letter(number) for number in range(len(self.comparison.curves))]

    @cached_property
    def labels(self) -> list[str]:
        """For each curve what tells it from the others; "" where nothing but the file does."""
        curves = self.comparison.curves
        found = labels([candidate.curve for candidate in curves])
        if len({candidate.statistic for candidate in curves}) > 1:
            found = [_joined(label, f"statistic {c.statistic}") for label, c in zip(found, curves, strict=True)]
        variables = list(dict.fromkeys(name for candidate in curves for name in _variables(candidate)))
        return [
            label or _joined(*(f"no {clean(name, 60)}" for name in variables if name not in _variables(candidate)))
            for label, candidate in zip(found, curves, strict=True)
        ]

    @cached_property
    def names(self) -> list[str]:
        """What sentences call the curves: as their files are called, else by what tells them apart, else by letter."""
        sides = [clean(candidate.name) for candidate in self.comparison.curves]
        both = [f"{side} {label}" for side, label in zip(sides, self.labels, strict=True)]
        for names in (sides, self.labels, both):
            if len(set(names)) == len(names) and all(0 < len(name) <= _LONGEST_NAME for name in names):
                return names
        return self.letters

    @cached_property
    def header(self) -> list[str]:
        """What all curves share: what was asked, and where."""
        curves = [candidate.curve for candidate in self.comparison.curves]
        lines = [SEPARATOR.join(common) for common in (common_words(curves), common_settings(curves)) if common]
        return lines or ["nothing in common"]

    @cached_property
    def legend(self) -> list[str]:
        """One line a curve: letter, what tells it apart, side, runs."""
        curves = self.comparison.curves
        several = len({candidate.name for candidate in curves}) > 1
        return [
            f"{mark}  " + SEPARATOR.join(filter(None, (label, clean(c.name) if several else "", _runs(c.curve.runs))))
            for mark, label, c in zip(self.letters, self.labels, curves, strict=True)
        ]

    @cached_property
    def shows_bus(self) -> bool:
        """Whether bus factors differ, so that times alone compare different amounts of traffic."""
        factors = {candidate.curve.key.bus_factor for candidate in self.comparison.curves}
        return len(factors) > 1 and None not in factors

    def pair_lines(self, pair: Pair) -> list[tuple[str, str]]:
        """(label, text) of all that is known of a pair beyond its rows."""
        ratio = f"{self.letters[pair.other]}/{self.letters[0]}"
        fits = [self.comparison.fits[pair.first], self.comparison.fits[pair.other]]
        several = len(pair.sizes) > 1
        lines = [("faster", self._faster(pair)), ("crossing", self._crossing(pair))] if several else []
        if self.shows_bus:
            lines += [("bus", f"{ratio} {ratio_words(self._bus(pair))} in bus bandwidth")]
        lines += [("alpha", f"{ratio} {self._parameter(pair, pair.alpha, 'alpha', fits)}")]
        lines += [("bandwidth", f"{ratio} {self._parameter(pair, pair.bandwidth, 'bandwidth', fits)}")]
        return lines + [("note", note) for note in self._pair_notes(pair)]

    def _faster(self, pair: Pair) -> str:
        """How often each is ahead, in sizes whose interval says so."""
        if all(size.ratio.holds_one is None for size in pair.sizes):
            return "no size has an interval, so none is decided"
        ahead = ", ".join(
            f"{self.names[at]} at {_some(sizes, len(pair.sizes))}"
            for at, sizes in ((pair.first, _on(pair, 1)), (pair.other, _on(pair, -1)))
        )
        undecided = f"undecided at {pair.count(0) or 'none'}"
        return f"{ahead}, {undecided} of {len(pair.sizes)} sizes, each by its own interval"

    def _bus(self, pair: Pair) -> Ratio:
        """Bus bandwidth of the other / of the first, over the common sizes: time turned around, times the factors."""
        first, other = (self.comparison.curves[at].curve.key.bus_factor or 1.0 for at in (pair.first, pair.other))
        return pair.level.inverse().scaled(other / first)

    def _crossing(self, pair: Pair) -> str:
        if pair.crossings:
            doubt = "; within one run" if any(size.ratio.basis == "within_run" for size in pair.sizes) else ""
            doubt = doubt if pair.crossings[0].low is not None else "; no interval is known, so it may be chance"
            return "; ".join(self._one_crossing(pair, crossing) for crossing in pair.crossings) + doubt
        return "none is clear" if pair.count(1) and pair.count(-1) else "none"

    def _one_crossing(self, pair: Pair, crossing: Crossing) -> str:
        below, above = (pair.first, pair.other) if crossing.first_below else (pair.other, pair.first)
        where = "" if crossing.value is None else f"at about {format_size_about(crossing.value)}"
        if crossing.low is not None and crossing.high is not None:
            between = f"{format_size_about(crossing.low)} to {format_size_about(crossing.high)}"
        else:
            between = f"between {format_size(crossing.last_below)} and {format_size(crossing.first_above)}"
        where = f"{where} ({between})" if where else f"somewhere, {between}"
        return f"{self.names[below]} is faster below, {self.names[above]} above; equal {where}"

    def _parameter(self, pair: Pair, ratio: Ratio | None, name: str, fits: Sequence[CurveFit | None]) -> str:
        marks = (self.letters[pair.first], self.letters[pair.other])
        if ratio is None:
            missing = [
                f"{mark} has no fit" if fitted is None else f"not identified in {mark}"
                for mark, fitted in zip(marks, fits, strict=True)
                if fitted is None or getattr(fitted, name).value is None
            ]
            return f"unknown: {', '.join(missing)}"
        poor = [mark for mark, fitted in zip(marks, fits, strict=True) if fitted and fitted.quality == "poor"]
        doubt = f"; the fit of {' and '.join(poor)} is poor, so it says little" if poor else ""
        return ratio_words(ratio) + doubt

    def _pair_notes(self, pair: Pair) -> Iterator[str]:
        for at, sizes in ((pair.first, pair.only_first), (pair.other, pair.only_other)):
            if sizes:
                yield f"only {self.letters[at]} has {sizes_words(sizes)}: left out"
        if pair.unsound:
            yield f"no time or a wrong answer on one side at {sizes_words(pair.unsound)}: left out"
        if len(pair.sizes) > 1 and all(_is_equal(size) for size in pair.sizes):
            yield "all times are equal to the last digit: is it the same measurement twice?"

    def notes(self) -> list[str]:
        """What a reader must know of the curves to use the ratios."""
        comparison = self.comparison
        paired = {pair.other for pair in comparison.pairs}
        lines = [
            f"{mark} has no size in common with {self.letters[0]}"
            for number, mark in enumerate(self.letters)
            if number and number not in paired
        ]
        if comparison.crosses_sessions:
            lines.append("measured in different sessions: what differs from one to the next is in no interval here")
        for mark, candidate in zip(self.letters, comparison.curves, strict=True):
            lines += [f"{mark}: {clean(notice, 400)}" for notice in candidate.notices]
            if odd := _oddities(candidate):
                lines.append(f"{mark} is odd: {odd}; see `commbench show`")
        return lines

    def changes(self) -> list[str]:
        """What differs in the circumstances: fact, and its value for each curve."""
        lines = []
        for change in self.comparison.changes:
            none = "not set" if change.fact.startswith("environment.") else "unknown"
            values = (none if value is None else clean(value, 60) for value in change.values)
            each = (f"{mark} {value}" for mark, value in zip(self.letters, values, strict=True))
            lines.append(f"{clean(change.fact, 60)}: {', '.join(each)}")
        more = len(lines) - _MOST_CHANGES
        return lines if more < 2 else [*lines[:_MOST_CHANGES], f"and {more} more facts: see --json"]  # noqa: PLR2004

    def heading(self, pair: Pair) -> str:
        """The pair in letters, and by name where curves have names."""
        marks, names = ([of[at] for at in (pair.other, pair.first)] for of in (self.letters, self.names))
        return " against ".join(marks if marks == names else (f"{m} ({n})" for m, n in zip(marks, names, strict=True)))

    def in_short(self, pair: Pair) -> str:
        """The ratio over all common sizes in one sentence."""
        first, other = self.names[pair.first], self.names[pair.other]
        level, count = pair.level, len(pair.sizes)
        where = f"over the {count} common sizes" if count > 1 else f"at {format_size(pair.sizes[0].bytes)}"
        if level.holds_one:
            return (
                f"{other} and {first} cannot be told apart {where}: "
                f"{self.letters[pair.other]}/{self.letters[0]} {ratio_words(level)}."
            )
        if level.low is None or level.high is None:
            return f"{other} takes {format_ratio(level.value)} times as long as {first} {where}; no interval is known."
        shown = level if level.value >= 1 else level.inverse()
        bounds = f"{format_ratio(shown.low or 0)} to {format_ratio(shown.high or 0)}"
        bounds += " within one run" if level.basis == "within_run" else ""
        what = "slower" if level.value >= 1 else "faster"
        both = ", but they change places" if pair.crossings else ""
        return f"{other} is {format_ratio(shown.value)}x ({bounds}) {what} than {first} {where}{both}."


def letter(number: int) -> str:
    """A, B, ... Z, then C27, C28, ..."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return alphabet[number] if number < len(alphabet) else f"C{number + 1}"


def ratio_words(ratio: Ratio) -> str:
    """A ratio with its interval, and what that is over where it is not over launches."""
    if ratio.low is None or ratio.high is None:
        return f"{format_ratio(ratio.value)}, no interval known"
    within = " within one run" if ratio.basis == "within_run" else ""
    return f"{format_ratio(ratio.value)} [{format_ratio(ratio.low)}, {format_ratio(ratio.high)}]{within}"


def sizes_words(sizes: Sequence[int]) -> str:
    """A few sizes by name, many by their ends and number."""
    if len(sizes) <= _MOST_SIZES:
        return ", ".join(map(format_size, sizes))
    return f"{len(sizes)} sizes from {format_size(min(sizes))} to {format_size(max(sizes))}"


def left_out_lines(compared: Compared) -> list[str]:
    """The curves that were compared with nothing, by what tells them from the first that was."""
    first = compared.comparisons[0].curves[0].curve.key.key()
    lines = []
    for left in compared.left_out:
        key = left.candidate.curve.key
        differing = [name for name in WORDED_KEYS if getattr(key, name) != first.get(name, "")]
        what = ", ".join(words(key, differing) or words(key))
        lines.append(f"left out: {what} of {clean(left.candidate.name)}: {left.reason}")
    return lines


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _variables(candidate: Candidate) -> list[str]:
    return [word.partition("=")[0] for word in candidate.curve.setting.environment]


def _on(pair: Pair, side: int) -> list[int]:
    return [size.bytes for size in pair.sizes if size.ratio.side == side]


def _some(sizes: Sequence[int], total: int) -> str:
    """The count, and where there are few of many which."""
    which = f" ({sizes_words(sizes)})" if 0 < len(sizes) <= _MOST_SIZES and len(sizes) < total else ""
    return f"{len(sizes) or 'none'}{which}"


def _is_equal(size: SizeRatio) -> bool:
    return [seconds for _, seconds in size.first.by_run] == [seconds for _, seconds in size.other.by_run]


def _oddities(candidate: Candidate) -> str:
    """What is wrong with most of its points, worst first."""
    found = worst_first(findings_of_records(candidate.curve, ()))
    shown = [f"{clean(one.kind.replace('_', ' '))} at {_plural(len(one.sizes))}" for one in found[:_MOST_FLAGS]]
    more = [f"{len(found) - _MOST_FLAGS} more"] if len(found) > _MOST_FLAGS else []
    return ", ".join(shown + more)


def _plural(sizes: int) -> str:
    return "1 size" if sizes == 1 else f"{sizes} sizes"
