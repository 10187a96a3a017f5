"""The gate on this machine: does it pass what is the same, and find what is known to be slower?

    python benchmarks/gate_real.py [--gates 20] [--percent 0,5,10] [--log results/gate-real.log]

Each gate compares an MPI all-reduce on two ranks with itself, slowed by a known percentage inside the timed call
(`slow_allreduce.c`, preloaded on both sides, with 0 % on the baseline's). One line a gate is appended to the log, and
gates that are in it already are not repeated: it can be stopped and started again. Then the table is written beside.
A gate takes one to three minutes on an idle machine, twice that where others use it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commbench.measure.machine import node_facts

HERE = Path(__file__).resolve().parent
SWEEP = ("--op", "allreduce", "--backend", "mpi", "--ranks", "2", "--max-bytes", "1M", "--total-budget", "120s")
VERDICTS = ("pass", "regression", "inconclusive", "refused")


def compile_shim(folder: Path) -> Path:
    """Build slow_allreduce.c with the system's compiler."""
    shim = folder / "slow_allreduce.so"
    source = str(HERE / "slow_allreduce.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", str(shim)], check=True)
    return shim


def one_gate(shim: Path, percent: float, seed: int, folder: Path) -> dict[str, Any]:
    """Run a gate; returns its JSON document."""
    sides = [f"LD_PRELOAD={shim} SLOW_PERCENT={slow:g}" for slow in (0, percent)]
    command = [sys.executable, "-m", "commbench", "gate", "--a", sides[0], "--b", sides[1], "--json"]
    command += ["--output", str(folder / "gate.jsonl"), "--force", "--", *SWEEP, "--seed", str(seed)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        sys.exit(f"the gate could not measure (exit {done.returncode})")
    return json.loads(done.stdout)


def summary_of(document: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a verdict."""
    curve = document["curves"][0] if document["curves"] else {}
    return {
        "verdict": document["verdict"],
        "stage": curve.get("stage"),
        "pairs": curve.get("pairs"),
        "level": curve.get("level_ratio"),
        "smallest_detectable": curve.get("smallest_detectable"),
        "hits": [f"{hit['family']} {hit['where']}" for hit in curve.get("hits", [])],
        "reasons": document["reasons"] + curve.get("reasons", []),
    }


def read_log(log: Path) -> list[dict[str, Any]]:
    """The gates so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Verdicts by percentage, and what they rest on."""
    rows = [
        f"| slowed by | gates | {' | '.join(VERDICTS)} | pairs | level found | seconds |",
        "|--:|--:|--:|--:|--:|--:|--:|:--|--:|",
    ]
    for percent in sorted({entry["percent"] for entry in entries}):
        mine = [entry for entry in entries if entry["percent"] == percent]
        counts = [str(sum(entry["verdict"] == verdict for entry in mine)) for verdict in VERDICTS]
        levels = sorted(entry["level"]["value"] for entry in mine if entry["level"] and entry["level"]["value"])
        ends = [f"{100 * (level - 1):+.1f} %" for level in (levels[0], levels[-1])] if levels else ["-", "-"]
        pairs = sum(entry["pairs"] or 0 for entry in mine) / len(mine)
        seconds = sum(entry["seconds"] for entry in mine) / len(mine)
        cells = [f"{percent:g} %", str(len(mine)), *counts, f"{pairs:.1f}", " to ".join(ends), f"{seconds:.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def report(entries: Sequence[dict[str, Any]]) -> str:
    """The document beside the log."""
    facts = node_facts()
    where = f"{facts['cpu_model']}, {facts['cpus']} cores, virtual: {facts['virtual']}, Linux {facts['kernel']}"
    return (
        "# The gate on a real machine\n\n"
        f"`python benchmarks/gate_real.py`: MPI all-reduce, 2 ranks, 8 B to 1 MiB; {where}.\n\n"
        "The candidate is slowed by a known percentage inside the timed call; 0 % is the same on both sides. Level is\n"
        "the ratio over all sizes, its smallest and largest value over the gates.\n\n"
        f"{table(entries)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=20)
    parser.add_argument("--percent", default="0,5,10")
    parser.add_argument("--log", type=Path, default=HERE.parent / "results" / "gate-real.log")
    asked = parser.parse_args()
    percents = [float(word) for word in asked.percent.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        shim = compile_shim(Path(folder))
        for number in range(1, asked.gates + 1):
            for percent in percents:
                done = {(entry["percent"], entry["gate"]) for entry in read_log(asked.log)}
                if (percent, number) in done:
                    continue
                begun, load = time.monotonic(), os.getloadavg()[0]
                entry = {"percent": percent, "gate": number, "started": datetime.now(UTC).isoformat(timespec="seconds")}
                entry |= summary_of(one_gate(shim, percent, number, Path(folder)))
                entry |= {"seconds": time.monotonic() - begun, "load": load}
                with asked.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(entry) + "\n")
                print(f"{percent:g} %, gate {number}: {entry['verdict']} ({entry['seconds']:.0f} s)", file=sys.stderr)
    text = report(read_log(asked.log))
    asked.log.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
