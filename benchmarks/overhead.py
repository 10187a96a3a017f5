"""What commbench's timed loop adds to MPI, beside a plain C program of the same definition.

    python benchmarks/overhead.py [--rounds 12] [--seconds 0.3]

Each round launches, in turn and with the same MPI library: the C program (`overhead.c`, compiled with the MPI's
own mpicc), commbench's compiled loop, mpi4py's methods in a Python loop, and the compiled loop at the thread level
that mpi4py asks for by default. Virtual machines change the state of their cores within seconds, so every number
comes with a hand-over probe of its own, and only numbers of one state are divided. The machine must be idle.

Prints a Markdown table: microseconds, medians over rounds in the state seen most; the ratio is to the C program.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from commbench.backends import about
from commbench.job import Job
from commbench.jobs.probe import Mpi, probe_mpi
from commbench.measure.__main__ import LINE_MARK
from commbench.measure.handover import name_of
from commbench.measure.machine import node_facts
from commbench.spec import Point, Sweep
from commbench.units import format_size

HERE = Path(__file__).resolve().parent
CELLS = (("allreduce", 8), ("allreduce", 64 << 10), ("allreduce", 4 << 20), ("p2p", 8))
SIDES = {
    "C program": None,
    "commbench": {"loop": "compiled"},
    "mpi4py loop": {"loop": "python"},
    "thread multiple": {"loop": "compiled", "thread_level": "multiple"},
}
Numbers = dict[tuple[str, str, int, str], list[float]]


def compile_peer(folder: Path) -> Path:
    """Build overhead.c with the mpicc beside this interpreter."""
    compiler = Path(sysconfig.get_path("scripts"), "mpicc")
    mpicc = str(compiler) if compiler.exists() else shutil.which("mpicc")
    if mpicc is None:
        sys.exit("no mpicc beside this interpreter or on PATH: install commbench[mpich]")
    peer = folder / "overhead"
    subprocess.run([mpicc, "-O2", str(HERE / "overhead.c"), "-o", str(peer)], check=True)
    return peer


def points() -> list[Point]:
    """The cells as points of commbench."""
    sweep = Sweep(ops=("allreduce",), backend="mpi", min_bytes=8, max_bytes=8)
    able = about("mpi").capabilities
    return [replace(sweep, ops=(op,), min_bytes=size, max_bytes=size).points(2, able)[0][0] for op, size in CELLS]


def run_peer(mpi: Mpi, peer: Path, seconds: float) -> list[tuple[str, int, str, float]]:
    """(operation, bytes, state, median seconds) of the C program; a state that changed meanwhile is ""."""
    command = [str(mpi.mpiexec), "-n", "2", str(peer), str(seconds)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    found = []
    for line in filter(None, lines):
        op, size, median, *probes = line.split()
        states = {name_of(float(probe)) if float(probe) > 0 else "" for probe in probes}
        found.append((op, int(size), states.pop() if len(states) == 1 else "", float(median)))
    return found


def run_commbench(mpi: Mpi, seconds: float, options: dict[str, str]) -> list[tuple[str, int, str, float]]:
    """The same of commbench's rank program; cells whose state changed between visits have no state."""
    cells = tuple(points())
    # A precision that is never reached: every cell takes its three visits, as long as the C program in all.
    sweep = Sweep(ops=("allreduce", "p2p"), backend="mpi", ranks=2, runs=1, budget=seconds, precision=1e-9, **options)
    job = Job(sweep=sweep, run=1, seconds=len(cells) * seconds, session="", launch="overhead", only=cells)
    command = [str(mpi.mpiexec), "-n", "2", sys.executable, "-m", "commbench.measure", job.encode()]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    found = []
    for text in lines:
        if not text.startswith(LINE_MARK):
            continue
        line = json.loads(text.removeprefix(LINE_MARK))
        if line["kind"] == "record" and "partial" not in line["flags"]:
            states = {state["state"] for state in line["states"]}
            state = states.pop() if len(states) == 1 else ""
            found.append((line["op"], line["bytes"], state, line["seconds"]["median"]))
    return found


def measure(mpi: Mpi, peer: Path, rounds: int, seconds: float) -> Numbers:
    """Medians by (side, operation, bytes, state), one a round."""
    numbers: Numbers = defaultdict(list)
    order = list(SIDES)
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for side in order:
            options = SIDES[side]
            cells = run_peer(mpi, peer, seconds) if options is None else run_commbench(mpi, seconds, options)
            for op, size, state, median in cells:
                if state:
                    numbers[side, op, size, state].append(median)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return numbers


def table(numbers: Numbers) -> str:
    """One row a cell and state that both the C program and commbench met at least three times."""
    rows = ["| us | state | " + " | ".join(SIDES) + " | commbench / C |", "|---" * (len(SIDES) + 3) + "|"]
    for op, size in CELLS:
        for state in ("same core", "near", "far", "apart"):
            by_side = {side: numbers.get((side, op, size, state), []) for side in SIDES}
            if min(len(by_side["C program"]), len(by_side["commbench"])) < 3:
                continue
            middle = {side: statistics.median(values) * 1e6 for side, values in by_side.items() if values}
            cells = [f"{middle[side]:.4g} (n={len(by_side[side])})" if side in middle else "-" for side in SIDES]
            ratio = middle["commbench"] / middle["C program"]
            rows.append(f"| {op} {format_size(size)} | {state} | " + " | ".join(cells) + f" | {ratio:.3f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.3)
    asked = parser.parse_args()
    mpi = probe_mpi()
    if not isinstance(mpi, Mpi):
        sys.exit(f"{mpi.reason}: {mpi.hint}")
    with tempfile.TemporaryDirectory() as folder:
        peer = compile_peer(Path(folder))
        numbers = measure(mpi, peer, asked.rounds, asked.seconds)
    facts = node_facts()
    print(f"{mpi.version}, 2 ranks, {facts['cpu_model']}, Linux {facts['kernel']}\n")
    print(table(numbers))


if __name__ == "__main__":
    main()
