"""What all importers share: results without a launch of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commbench.records import Record
from commbench.results import SCHEMA, Results


def results_of(
    path: str, tool: str, records: Sequence[Record], warnings: Iterable[str], facts: Mapping[int, Mapping[str, Any]]
) -> Results:
    """Results of records that nobody launched here: a "run" and an "end" line for each of their runs.

    Args:
        path: what the user called the file.
        tool: which importer read it.
        records: one per point and run, `launch` being `launch_of(run)`.
        warnings: what was odd about the file.
        facts: by run what else its "run" line says, as "session", "pair", "libraries", "nodes".
    """
    runs = sorted({record.run for record in records})
    common = {"schema": SCHEMA, "session": None, "pair": None, "importer": tool, "source": path}
    return Results(
        path,
        [{"kind": "run", "run": run, "launch": launch_of(run), **common, **facts.get(run, {})} for run in runs],
        list(records),
        [{"kind": "end", "run": run, "launch": launch_of(run), "status": "complete"} for run in runs],
        list(warnings),
    )


def launch_of(run: int) -> str:
    """The id of the launch of a run."""
    return f"run{run}"
