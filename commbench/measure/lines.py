"""The lines of the results file as rank 0 writes them: what opens a launch, what a point came to, what closes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from commbench import __version__
from commbench.backends.base import Calibration
from commbench.errors import UsageError
from commbench.job import Job
from commbench.measure import machine
from commbench.measure.liveness import Fault
from commbench.measure.timing import Timed
from commbench.records import UNREAD, Check, Record, Seconds, Status
from commbench.results import SCHEMA
from commbench.spec import Point
from commbench.stats import oddities, precision_of

_LAST_TOO_OFTEN = 0.5


def run_line(
    job: Job, facts: Mapping[str, Any], libraries: Mapping[str, str], clock: Calibration, points: int, launcher: str
) -> dict[str, Any]:
    """The line that opens a launch: who measures, where, with what, and what was asked.

    Args:
        job: this launch.
        facts: "placement", one entry a rank, and "nodes", one a node.
        libraries: of the back end, as on rank 0.
        clock: what the loop itself costs.
        points: how many this launch measures.
        launcher: what started the ranks.

    Raises:
        UsageError: the launch completes a file that was measured with other libraries or on another machine.
    """
    hosts = [rank["host"] for rank in facts["placement"]]
    key: dict[str, Any] = {
        "backend": job.sweep.backend,
        "ranks": len(hosts),
        "ranks_per_node": [hosts.count(host) for host in dict.fromkeys(hosts)],
        **{
            name: libraries[name]
            for name in ("nccl", "mpi", "mpi_thread_level", "torch", "copies", "emulated")
            if name in libraries
        },
        **machine.key_facts(facts["nodes"][0]),
        **({"gpus": gpus} if (gpus := sorted({gpu["name"] for gpu in _gpus(facts["placement"])})) else {}),
    }
    if wrong := [name for name, value in job.expect.items() if key.get(name) != value]:
        first = wrong[0]
        raise UsageError(
            f"--resume: the file was measured with {first} = {job.expect[first]!r}, this is {key.get(first)!r}",
            "resume on the same machine with the same libraries, or write a new file with --output",
        )
    return {
        "kind": "run",
        "schema": SCHEMA,
        "commbench": __version__,
        "run": job.run,
        "launch": job.launch,
        "launches": job.launches,
        "session": job.session,
        "pair": job.pair,
        "side": job.side,
        "visits": job.visits,
        "started": _utc(),
        "command": list(job.command),
        "backend": job.sweep.backend,
        "path": job.sweep.path_label(job.path),
        "ranks": len(hosts),
        "launcher": launcher,
        "libraries": dict(libraries),
        "key": key,
        "calibration": asdict(clock),
        "sweep": asdict(job.sweep),
        "points": points,
        "environment": machine.environment_facts(),
        **facts,
    }


def _gpus(placement: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that ranks have one of, and those that one process has all of."""
    return [gpu for rank in placement for gpu in (rank.get("gpus") or [rank.get("gpu")]) if gpu]


def differences(libraries: Sequence[Mapping[str, str]]) -> list[str]:
    """Notes on libraries that are not the same on all ranks: one curve then mixes two programs."""
    notes = []
    for name in sorted({name for mine in libraries for name in mine}):
        values = [mine.get(name, "none") for mine in libraries]
        if other := next((rank for rank, value in enumerate(values) if value != values[0]), 0):
            notes.append(f"{name} differs between ranks: {values[0]} on rank 0, {values[other]} on rank {other}")
    return notes


def record_of(
    job: Job,
    timed: Timed,
    clock: Calibration,
    ranks: int,
    *,
    status: Status = "ok",
    reason: str = "",
    check: Check = "skipped",
    stop: str = "",
    flags: tuple[str, ...] = (),
    slowest: tuple[int, float] | None = None,
) -> Record:
    """The record of a point as it stands."""
    states = {str(state.get(when, "")) for state in timed.states for when in ("state", "after")} - {"", UNREAD}
    depth = timed.depth or 1
    found = list(oddities(timed.trace, clock.step / depth, clock.overhead / depth)) if timed.trace.count else []
    if timed.slowed:
        found.append("throttled")
    if slowest and ranks > 2 and slowest[1] > _LAST_TOO_OFTEN:  # noqa: PLR2004 - of two, one is last
        found.append("one_rank_last")
    if len(states) > 1:
        found.append("state_changed")
    if job.launches > 1:
        found.append("resumed")
    how = dict(timed.call.how) | {"visits": timed.visits, "depth": depth, "seconds": timed.measured}
    if timed.hertz:
        how["device_hertz"] = float(np.median(timed.hertz))
    if timed.discarded:
        how["discarded_chunks"] = timed.discarded
    return Record(
        point=timed.point,
        run=job.run,
        launch=job.launch,
        status=status,
        reason=reason,
        samples=timed.trace.count,
        seconds=_seconds(timed, clock) if timed.trace.count else None,
        slowest=slowest,
        states=tuple(timed.states),
        check=check,
        stop=stop,
        flags=(*found, *flags),
        how=how,
        histogram=timed.histogram.to_json() if timed.trace.count and "partial" not in flags else None,
    )


def refusal_of(job: Job, point: Point, reason: str) -> Record:
    """The record of a point that could not be tried."""
    return Record(point=point, run=job.run, launch=job.launch, status="failed", reason=reason)


def end_line(job: Job, fault: Fault | None, failed_points: str = "") -> dict[str, Any]:
    """The line that closes a launch: complete, or with what ended it, or with what failed in it."""
    status = "interrupted" if fault and fault.kind == "stopped" else "failed" if fault or failed_points else "complete"
    return {
        "kind": "end",
        "run": job.run,
        "launch": job.launch,
        "status": status,
        "fault": fault.kind if fault else "",
        "reason": fault.message if fault else failed_points,
        "exit_code": fault.exit_code if fault else 1 if failed_points else 0,
        "ended": _utc(),
    }


def _seconds(timed: Timed, clock: Calibration) -> Seconds:
    values = timed.trace.values
    known = precision_of(values)
    low, high = known.interval(clock.step / (timed.depth or 1))
    p5, p25, p75, p95, p99 = (float(q) for q in np.quantile(values, (0.05, 0.25, 0.75, 0.95, 0.99)))
    return Seconds(
        median=known.median, low=low, high=high, p5=p5, p25=p25, p75=p75, p95=p95, p99=p99,
        min=timed.trace.minimum, max=timed.trace.maximum,
    )  # fmt: skip


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
