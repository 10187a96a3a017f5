"""Run by the contract test under a launcher: every operation of one back end once, answers only, no timing.

    python -m tests.backends.every_operation BACKEND LOOP [cuda|staged]

Rank 0 prints one JSON line: how many answers were checked, and what was wrong on any rank.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from commbench.backends import about, before_meeting, open_backend
from commbench.measure import ranks
from commbench.measure.control import open_control
from commbench.ops import OPERATIONS
from commbench.spec import Point, Sweep

# Each type and reduction appears, and each operation with several; the product of all would take minutes.
_KINDS = (
    ("float32", "sum"), ("bfloat16", "sum"), ("int8", "prod"), ("float16", "max"), ("float64", "min"),
    ("uint8", "min"), ("int32", "sum"), ("int64", "prod"), ("float32", "avg"), ("bfloat16", "avg"),
)  # fmt: skip
# Rotation moves addresses and knows no types: three widths are enough.
_ROTATED_KINDS = 3
_ROTATED_CACHE = 64 << 10


def points(backend: str, count: int, where: dict[str, Any]) -> Iterator[Point]:
    """Every operation, form, type and reduction that the back end has, at odd sizes, most with hot buffers only."""
    able = about(backend).capabilities
    for number, (dtype, redop) in enumerate(_KINDS):
        for name, row in OPERATIONS.items():
            if dtype not in (able.reduces.get(redop, ()) if row.reduces else able.moves):
                continue
            if count == 1 and name in ("sendrecv", "p2p"):
                continue
            for cache in ("hot", "rotated") if number < _ROTATED_KINDS else ("hot",):
                for both in (False, True) if name == "p2p" else (False,):
                    sweep = Sweep(
                        ops=(name,), backend=backend, dtype=dtype, redop=redop, in_place="both", root=count - 1,
                        min_bytes=8, max_bytes=300_000, factor=190, cache=cache, bidirectional=both, **where,
                    )  # fmt: skip
                    yield from sweep.points(count, able)[0]


def is_timed(point: Point) -> bool:
    """Whether the loops of both modes run too.

    Loops know no sizes, so the middle one is left out; and a barrier of Gloo takes a millisecond on two cores,
    so of its large ones only those that could block each other run.
    """
    small, large = point.bytes < 1000, point.bytes > 100_000
    return small or (large and (point.backend != "gloo" or point.op in ("p2p", "sendrecv")))


def main() -> None:
    backend_name, loop, *place = sys.argv[1:]
    where: dict[str, Any] = {"device": "cuda", "staged": place == ["staged"]} if place else {}
    world = ranks.from_environment()
    assert world is not None
    sweep = Sweep(ops=("allreduce",), backend=backend_name, loop=loop, init_timeout=60, **where)
    before_meeting(sweep, world)
    control = open_control(about(backend_name).control, world, "single", 60, "contract")
    backend = open_backend(sweep, world, control, 1, _ROTATED_CACHE)
    able = about(backend_name).capabilities
    everything = list(points(backend_name, world.size, where))
    backend.reserve(everything)
    wrong: list[str] = []
    checked = 0
    for point in everything:
        call = backend.prepare(point)
        # Twice, with both modes between: another slice is used, and the loops must leave the call in order.
        for again in (False, True):
            call.refill()
            call.once()
            mismatch = call.check()
            checked += 1
            if mismatch is not None:
                wrong.append(f"{point}: {mismatch}")
            call.settle()
            if again or not is_timed(point):
                continue
            out = [np.full(2, -1.0)]
            call.sync(out[0], 0)
            if not (sweep.staged and point.op == "p2p"):
                out.append(np.full(1, -1.0))
                call.pipe(2, out[-1], 1)
            if "graph" in able.modes:
                out.append(np.full(1, -1.0))
                call.graph(3, out[-1], 0)
            if min(map(np.min, out)) < 0:
                wrong.append(f"{point}: not every duration was written: {out}")
    found = control.gather(wrong)
    control.barrier()
    if found is not None:
        everywhere = [problem for mine in found for problem in mine]
        said = {"checked": checked, "points": len(everything), "wrong": everywhere}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    backend.close()


if __name__ == "__main__":
    main()
