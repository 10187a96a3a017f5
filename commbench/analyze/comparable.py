"""Whether two measurements ask the same question: facts that must agree, and facts that a reader should know differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commbench.analyze.facts import Change, changes, facts_of
from commbench.records import Record
from commbench.results import Results
from commbench.spec import Point

# Another processor, placement or definition of time makes another question. The library is what is under test.
_MUST_AGREE = (
    "nodes.cpu_model", "nodes.gpus", "key.ranks_per_node", "libraries.mpi_thread_level", "how.loop",
    "calibration.clock",
)  # fmt: skip
_UNDER_TEST = ("libraries.", "environment.", "nodes.kernel", "nodes.gpu_driver", "nodes.hostname", "commbench")
# Where a library lies says nothing that its version does not.
_PLACES = ("libraries.mpi_file",)


def unlike(baseline: Results, candidate: Results) -> list[Change]:
    """Facts that make the two sides unlike questions, also facts in which one side's own launches disagree."""
    sides = [facts_of(side.runs, side.records) for side in (baseline, candidate)]
    known = [{fact: side[fact] for fact in _MUST_AGREE if fact in side} for side in sides]
    both = known[0].keys() & known[1].keys()
    found = changes([{fact: side[fact] for fact in both} for side in known])
    mixed = [Change(fact, (known[0][fact], known[1][fact])) for fact in both if " | " in known[0][fact]]
    return list(dict.fromkeys([*found, *mixed, *_statistics(baseline.records, candidate.records)]))


def noteworthy(baseline: Results, candidate: Results) -> list[Change]:
    """Facts of library, environment and system that differ: what is under test, or what changed behind its back."""
    sides = [facts_of(side.runs, side.records) for side in (baseline, candidate)]
    return [
        change
        for change in changes(sides)
        if change.fact.startswith(_UNDER_TEST) and change.fact not in (*_MUST_AGREE, *_PLACES)
    ]


def nearest_difference(ours: Sequence[Point], theirs: Sequence[Point]) -> str:
    """In what the two most similar curves of two sides differ, in words: "mode is sync and pipe"."""
    pairs = [(_differing(a, b), a, b) for a in ours for b in theirs]
    if not pairs:
        return "one of them holds no curve"
    names, a, b = min(pairs, key=lambda pair: len(pair[0]))
    return ", ".join(f"{name} is {getattr(a, name)} and {getattr(b, name)}" for name in names)


def _differing(ours: Point, theirs: Point) -> list[str]:
    a, b = ours.key() | {"variant": ours.variant}, theirs.key() | {"variant": theirs.variant}
    return [name for name in a if a[name] != b[name]]


def _statistics(ours: Iterable[Record], theirs: Iterable[Record]) -> list[Change]:
    """A median and a mean do not compare."""
    known = [" | ".join(sorted({record.statistic for record in side})) for side in (ours, theirs)]
    return [Change("statistic", tuple(known))] if known[0] != known[1] or " | " in known[0] else []
