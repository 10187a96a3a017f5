"""Results with a known truth: what the explaining half is tested with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from commbench.analyze.summary import Curve, curves, points
from commbench.records import Record, Seconds
from commbench.results import Writer
from commbench.spec import Point

# The same examples in every run, and no deadline: a red test means a change, not a busy machine.
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("steady")

POWERS = tuple(8 << i for i in range(24))  # 8 B to 64 MiB


def point_of(size: int = 8, **changes: Any) -> Point:
    """A point of an all-reduce on four ranks, with changes."""
    usual: dict[str, Any] = {
        "op": "allreduce",
        "in_place": True,
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "bytes": size,
        "ranks": 4,
        "backend": "mpi",
        "device": "cpu",
        "path": "auto",
        "mode": "sync",
        "cache": "hot",
    }
    return Point(**usual | changes)


def record_of(size: int = 8, median: float | None = 1e-5, run: int = 1, **changes: Any) -> Record:
    """A record with an interval of ±10 % and p95 at +20 %; keys of the point may be changed as well."""
    point = {name: changes.pop(name) for name in list(changes) if name in Point.__dataclass_fields__}
    seconds = None
    if median is not None:
        factors = {"low": 0.9, "high": 1.1, "p5": 0.95, "p95": 1.2, "min": 0.8, "max": 3.0}
        seconds = Seconds(median=median, **{name: median * factor for name, factor in factors.items()})
    usual: dict[str, Any] = {"seconds": seconds, "launch": f"launch{run}", "samples": 100, "check": "ok"}
    return Record(point=point_of(size, **point), run=run, **usual | changes)


def modelled(
    *,
    alpha: float = 5e-6,
    bandwidth: float = 1e10,
    sizes: Iterable[int] = POWERS,
    runs: int = 1,
    noise: float = 0.0,
    run_noise: float = 0.0,
    seed: int = 1,
    **changes: Any,
) -> list[Record]:
    """Records of T = alpha + D/B, with lognormal noise of each time and of each run as a whole."""
    draw = random.Random(seed)
    found = []
    for run in range(1, runs + 1):
        factor = math.exp(run_noise * draw.gauss(0, 1))
        for size in sizes:
            median = (alpha + size / bandwidth) * factor * math.exp(noise * draw.gauss(0, 1))
            found.append(record_of(size, median, run, **changes))
    return found


@pytest.fixture
def point() -> Callable[..., Point]:
    """The function `point_of`."""
    return point_of


@pytest.fixture
def record() -> Callable[..., Record]:
    """The function `record_of`."""
    return record_of


@pytest.fixture
def curve_of() -> Callable[..., Curve]:
    """A function: the arguments of `modelled`, or `records`, to their one curve."""

    def build(records: Iterable[Record] | None = None, **changes: Any) -> Curve:
        [curve] = curves(points(modelled(**changes) if records is None else records))
        return curve

    return build


@pytest.fixture
def records_of(tmp_path: Path) -> Callable[..., Path]:
    """A function: the arguments of `modelled`, or `records`, to a results file.

    `name` is the file's; `header` changes keys of its "run" lines; `status` is what its launches end with,
    None for a launch that was killed.
    """

    def write(
        records: Iterable[Record] | None = None,
        *,
        name: str = "results.jsonl",
        header: Mapping[str, Any] | None = None,
        status: str | None = "complete",
        **changes: Any,
    ) -> Path:
        records = list(modelled(**changes) if records is None else records)
        writer = Writer(tmp_path / name)
        for run in sorted({record.run for record in records} or {1}):
            writer.write(run_line(run) | dict(header or {}))
            for record in records:
                if record.run == run:
                    writer.write(record.to_json())
            if status:
                writer.write({"kind": "end", "run": run, "launch": f"launch{run}", "status": status, "reason": "why"})
        writer.close()
        return tmp_path / name

    return write


def run_line(run: int) -> dict[str, Any]:
    return {
        "kind": "run",
        "schema": 1,
        "commbench": "0.1.0",
        "run": run,
        "launch": f"launch{run}",
        "backend": "mpi",
        "libraries": {"mpi": "MPICH 5.0.1", "mpi4py": "4.1.2"},
        "environment": {},
        "placement": [{"host": "node1"}] * 4,
        "nodes": [{"hostname": "node1", "cpu_model": "AMD EPYC 9354", "sockets": 2, "gpus": []}],
    }
