"""What reading costs: results files, CSV, and a fit of two thousand curves.

    python benchmarks/reading.py [--records 1000000] [--curves 2000] [--output results/reading.md]

Writes files of records as a sweep leaves them (ten times, three visits, a histogram of sixty bins; no traces) to a
temporary folder, about 1.4 GB for a million, and reads them in processes of their own. The reference is json.loads of
every line and nothing else, measured in the same run: the ratio says more than the seconds, which are this machine's.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commbench.analyze.datasets import curves_of, datasets
from commbench.analyze.fit import fit_curve
from commbench.importers import load
from commbench.measure.machine import node_facts
from commbench.records import Record, Seconds
from commbench.results import SCHEMA, dump_line
from commbench.spec import Point

SIZES = tuple(8 << i for i in range(31))
# What is timed in a process of its own, without its start and its end.
TIMED = """
import json, os, sys, time
from commbench.importers import load
def alone(path):
    for line in open(path):
        json.loads(line)
begun = time.monotonic(), time.process_time()
kept = {work}(sys.argv[1])
print(time.monotonic() - begun[0], time.process_time() - begun[1], flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Cost:
    """Of one process: seconds on the wall and on the processor, the most memory it held in bytes."""

    wall: float
    processor: float
    memory: int


def write_results(path: Path, curves: int, runs: int, most: int) -> int:
    """A results file of so many curves and runs, cut off after `most` records; returns how many there are."""
    random = np.random.default_rng(1)
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for run in range(1, runs + 1):
            launch = f"{run:012x}"
            head = {"kind": "run", "schema": SCHEMA, "run": run, "launch": launch, "backend": "mpi"}
            file.write(dump_line(head) + "\n")
            for curve in range(curves):
                noise = np.exp(0.03 * random.standard_normal((len(SIZES), 2)))
                for size, (first, second) in zip(SIZES, noise.tolist(), strict=True):
                    if count == most:
                        return count
                    time_of_one = ((4 + curve % 7) * 1e-6 + size / 1e10) * first
                    file.write(
                        dump_line(_record(size, f"path{curve}", run, launch, time_of_one, second).to_json()) + "\n"
                    )
                    count += 1
            file.write(dump_line({"kind": "end", "run": run, "launch": launch, "status": "complete"}) + "\n")
    return count


def _record(size: int, path: str, run: int, launch: str, median: float, wobble: float) -> Record:
    spread = {
        "low": 0.99,
        "high": 1.01,
        "p5": 0.94,
        "p25": 0.98,
        "p75": 1.03,
        "p95": 1.2,
        "p99": 1.7,
        "min": 0.9,
        "max": 9.0,
    }
    return Record(
        point=Point(
            op="allreduce", in_place=False, dtype="float32", redop="sum", root=None, bytes=size, ranks=8, backend="mpi",
            device="cpu", path=path, mode="sync", cache="hot",
        ),
        run=run,
        launch=launch,
        samples=4096,
        seconds=Seconds(median=median, **{name: median * factor * wobble for name, factor in spread.items()}),
        slowest=(3, 0.31),
        states=tuple({"seconds": 7.5e-8 * wobble, "state": "near"} for _ in range(3)),
        check="ok",
        stop="precision",
        how={"loop": "compiled", "slices": 1, "visits": 3, "depth": 1, "seconds": 0.31},
        histogram={"base": 1e-9, "step": 0.01, "bins": list(range(800, 860)), "counts": list(range(1, 61))},
    )  # fmt: skip


def write_csv(path: Path, rows: int) -> int:
    """A CSV file of so many rows, 31 sizes a curve."""
    with path.open("w", encoding="utf-8") as file:
        file.write("op,ranks,path,run,bytes,seconds\n")
        for number in range(rows):
            size = SIZES[number % 31]
            file.write(f"allreduce,8,path{number // 31},1,{size},{5e-6 + size / 1e10:.6g}\n")
    return rows


def cost(words: list[str], *, timed: bool = False) -> Cost:
    """Run a program and see what it took; `timed` ones say themselves how long their work took."""
    begun = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.PIPE if timed else subprocess.DEVNULL, text=True)
    said = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(words)} failed")
    memory = usage.ru_maxrss << 10
    if timed:
        wall, processor = map(float, said.split())
        return Cost(wall, processor, memory)
    return Cost(time.monotonic() - begun, usage.ru_utime + usage.ru_stime, memory)


def reading(work: str, path: Path) -> Cost:
    return cost([sys.executable, "-c", TIMED.format(work=work), str(path)], timed=True)


def row(what: str, count: int, of: str, spent: Cost, reference: Cost | None = None) -> str:
    each = 1e6 * spent.processor / count
    ratio = "" if reference is None else f"{spent.processor / reference.processor:.2f}"
    unit = f"{each / 1000:.1f} ms" if each > 1000 else f"{each:.1f} us"
    return f"| {what} | {spent.wall:.1f} s | {unit} / {of} | {ratio} | {spent.memory / 1e6:.0f} MB |"


def one_fit(folder: Path) -> str:
    """The row of one fit over three runs, without reading: the fastest of twenty, since others use the machine too."""
    file = folder / "one.jsonl"
    write_results(file, 1, 3, sys.maxsize)
    [curve] = curves_of(datasets([load(file)]))
    fastest = math.inf
    for _ in range(20):
        begun = time.process_time()
        fit_curve(curve)
        fastest = min(fastest, time.process_time() - begun)
    return f"| one fit of 31 sizes over 3 runs, without reading | | {1e3 * fastest:.1f} ms at best | | |"


def measure(folder: Path, records: int, curves: int) -> list[str]:
    """The rows of the table."""
    rows = ["| | wall | processor | / json.loads alone | memory |", "|---|---|---|---|---|"]
    large = folder / "large.jsonl"
    count = write_results(large, curves, -(-records // (curves * len(SIZES))), records)
    reference = reading("alone", large)
    rows += [
        row(f"json.loads of {count:,} lines, nothing kept", count, "record", reference),
        row(f"commbench: {count:,} records", count, "record", reading("load", large), reference),
    ]
    large.unlink()
    table = folder / "large.csv"
    count = write_csv(table, records)
    rows.append(row(f"commbench: CSV of {count:,} rows", count, "row", reading("load", table)))
    rows.append(one_fit(folder))
    for runs in (1, 3):
        many = folder / f"many{runs}.jsonl"
        write_results(many, curves, runs, sys.maxsize)
        spent = cost([sys.executable, "-m", "commbench", "fit", str(many), "--json"])
        what = f"`commbench fit`: {curves:,} curves of 31 sizes, {runs} run{'s' * (runs > 1)}"
        rows.append(row(what, curves, "curve", spent))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--curves", type=int, default=2000)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), asked.records, asked.curves)
    facts = node_facts()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    command = f"python benchmarks/reading.py --records {asked.records} --curves {asked.curves}"
    where = f"`{command}` on {facts['cpu_model']}, {os.cpu_count()} cores, load {load}.\n"
    text = "\n".join(["# What reading costs\n", where, *rows])
    if asked.output is None:
        print(text)
    else:
        asked.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
