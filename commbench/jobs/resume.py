"""What a results file still lacks: the points to measure when a sweep goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from commbench.errors import ResultsError, UsageError
from commbench.job import sweep_from_json
from commbench.records import Record
from commbench.results import Results
from commbench.spec import Point, Sweep

_MAY_DIFFER = frozenset({"runs", "total_budget", "budget", "timeout", "init_timeout", "on_hang"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a file is.

    Attributes:
        sweep: as the file says it was asked for.
        launches: run -> how many launches it has had.
        finished: (point, run) measured to the end, also those that failed in a way that would repeat.
        key: facts that a further launch must share.
    """

    sweep: Sweep
    launches: dict[int, int]
    finished: set[tuple[Point, int]]
    key: dict[str, Any]

    def missing(self, points: Iterable[Point], run: int) -> list[Point]:
        return [point for point in points if (point, run) not in self.finished]


def is_finished(record: Record) -> bool:
    """A wrong answer is an answer; a dead launch's point and a partial one are measured again."""
    return not record.partial and (record.status == "ok" or record.check == "wrong")


def progress_of(results: Results, asked: Sweep | None = None) -> Progress:
    """Read how far `results` is.

    Args:
        results: the file to complete.
        asked: what the command line asks for now; only budgets and the number of runs may differ.

    Raises:
        UsageError: the file holds another sweep.
        ResultsError: it does not say which sweep it holds.
    """
    try:
        sweep, key = sweep_from_json(results.header["sweep"]), dict(results.header["key"])
        key["ranks"] = int(key["ranks"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultsError(
            f"{results.path}: does not say what was asked for, so nothing can be missing",
            "write a new file with --output",
        ) from error
    if asked is not None:
        for name in sorted(_names(sweep) - _MAY_DIFFER):
            before, now = getattr(sweep, name), getattr(asked, name)
            if before != now and not (name == "ranks" and now is None):
                raise UsageError(
                    f"--resume: {results.path} was measured with {name} = {before!r}, now it is {now!r}",
                    "give the same options, or write a new file with --output",
                )
    launches: dict[int, int] = {}
    for header in results.runs:
        launches[header["run"]] = launches.get(header["run"], 0) + 1
    finished = {(record.point, record.run) for record in results.records if is_finished(record)}
    return Progress(asked or sweep, launches, finished, key)


def _names(sweep: Sweep) -> set[str]:
    return set(type(sweep).__dataclass_fields__)
