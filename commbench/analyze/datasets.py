"""Results files to datasets: what was measured in one setting, over all its launches and files.

Launches in the same setting (hosts, hardware, library) are replicates of each other, also from several files:
a shell loop of `mpirun commbench sweep` writes one file a run. Launches in different settings are never
averaged; they make datasets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from commbench.analyze.setting import Setting
from commbench.analyze.summary import Curve, PointSummary, curves, points
from commbench.records import Record
from commbench.results import Results


@dataclass(frozen=True)
class Dataset:
    """All that was measured in one setting.

    Attributes:
        files: where it comes from.
        records: one per point and run; runs of several files are numbered on, so that no two share a number.
        notices: what its launches noted, and those that did not end as they should.
        connecting: what each launch took to connect its ranks, the slowest of them, where the library told (seconds).
    """

    setting: Setting
    files: tuple[str, ...]
    records: tuple[Record, ...]
    notices: tuple[str, ...] = ()
    connecting: tuple[float, ...] = ()

    @cached_property
    def points(self) -> list[PointSummary]:
        return points(self.records)

    @cached_property
    def curves(self) -> list[Curve]:
        return curves(self.points, self.setting)


def curves_of(found: Iterable[Dataset]) -> list[Curve]:
    """Every curve of some datasets."""
    return [curve for dataset in found for curve in dataset.curves]


def datasets(files: Sequence[Results]) -> list[Dataset]:
    """The datasets of some results files, in the order their settings first appear."""
    found: dict[Setting, Dataset] = {}
    for results in files:
        settings = {str(run.get("launch", "")): Setting.of(run) for run in results.runs}
        first = Setting.of(results.header)
        for setting in dict.fromkeys([*settings.values()] or [first]):
            records = [r for r in results.records if settings.get(r.launch, first) == setting]
            mine = [run for run in results.runs if Setting.of(run) == setting]
            so_far = found.get(setting, Dataset(setting, (), ()))
            found[setting] = Dataset(
                setting,
                (*so_far.files, results.path),
                (*so_far.records, *_numbered_on(so_far.records, records)),
                (*so_far.notices, *_notices(results, mine)),
                (*so_far.connecting, *_connecting(mine)),
            )
    return [dataset for dataset in found.values() if dataset.records or dataset.notices]


def _numbered_on(before: Sequence[Record], records: Iterable[Record]) -> list[Record]:
    last = max((record.run for record in before), default=0)
    return [replace(record, run=record.run + last) if last else record for record in records]


def _connecting(runs: Iterable[Mapping[str, Any]]) -> list[float]:
    found = []
    for run in runs:
        ranks = run.get("placement")
        told = (
            [rank.get("communicator_seconds") for rank in ranks if isinstance(rank, dict)]
            if isinstance(ranks, list)
            else []
        )
        if known := [float(value) for value in told if isinstance(value, int | float)]:
            found.append(max(known))
    return found


def _notices(results: Results, runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the launches noted, once, and what each that is not complete has to say for itself."""
    runs = list(runs)
    ends = {str(end.get("launch", "")): end for end in results.ends}
    resumed = {run.get("run"): str(run.get("launch", "")) for run in results.runs}
    notes = [note for run in runs if isinstance(run.get("notes"), list) for note in run["notes"]]
    notices = list(dict.fromkeys(map(str, notes)))
    for run in runs:
        launch, number = str(run.get("launch", "")), run.get("run")
        if resumed.get(number) != launch:
            continue  # a later launch went on with this run
        end = ends.get(launch)
        if end is None:
            notices.append(f"run {number} has not ended: it is still going on, or was killed")
        elif end.get("status") != "complete":
            notices.append(f"run {number} {end.get('status', 'ended')}: {end.get('reason') or 'no reason given'}")
    return notices
