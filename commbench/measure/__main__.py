"""`python -m commbench.measure JOB`: what the parent starts through the launcher, once per rank."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from commbench.errors import CommbenchError, LaunchError
from commbench.job import Job
from commbench.measure.guard import stand_guard
from commbench.results import dump_line

LINE_MARK = "\x1e"
"""Begins every line for the parent (ASCII record separator, RFC 7464): whatever a launcher or library prints
between is told apart from it. Careful: `str.splitlines` takes it for a line's end."""


def main() -> int:
    """Be a rank; the exit code is the process'."""
    stand_guard(module="commbench.measure")
    job = Job.decode(sys.argv[1])
    # Before any library loads: NCCL, UCX and MPI read their environment once.
    os.environ.update(job.environment)
    from commbench.backends.base import World  # noqa: PLC0415
    from commbench.measure import engine, ranks  # noqa: PLC0415

    world = ranks.from_environment() or World(0, 1, 0, 1, "alone")
    # Standard output belongs to rank 0's lines alone; what libraries print goes to standard error.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def emit(line: Mapping[str, Any]) -> None:
        with lock:
            lines.write(LINE_MARK + dump_line(line) + "\n")
            lines.flush()

    def turn() -> None:
        emit({"kind": "turn"})
        if not sys.stdin.buffer.readline():
            raise LaunchError("whoever gives rank 0 its turns is gone")

    try:
        return engine.run_rank(job, world, emit, turn)
    except CommbenchError as error:
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
