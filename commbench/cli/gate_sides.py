"""What `gate --a ... --b ...` does before the verdict: two sides, their plans and files, and pairs of launches."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from commbench.analyze.comparable import nearest_difference
from commbench.analyze.gate_rule import more_pairs
from commbench.analyze.gate_scores import FEWEST_CELLS
from commbench.analyze.verdicts import GateReport
from commbench.backends import about
from commbench.cli.gating import judged
from commbench.cli.reading import warn
from commbench.cli.sweep import sweep
from commbench.errors import UnavailableError, UsageError
from commbench.jobs.pairs import Pairs, Side
from commbench.jobs.plan import Plan, default_output, plan
from commbench.jobs.probe import Absent, Mpi, probe_mpi
from commbench.jobs.runs import Desk, this_command
from commbench.measure.ranks import from_environment
from commbench.report.console import console
from commbench.report.gate_live import GateView
from commbench.results import Writer
from commbench.spec import Point, Sweep

# With its starts, a gate of one operation then ends within ten minutes, also where the first pairs leave doubt.
SECONDS_A_CURVE = 240.0
_SECONDS_TO_START = 5.0
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_NOT_OF_A_SIDE = {
    "output": "--output belongs before the --: it names the gate's own files",
    "force": "--force belongs before the --",
    "as_json": "--json belongs before the --",
    "runs": "a gate counts --pairs, not --runs",
    "quick": "a gate's length is --pairs and --total-budget, not --quick",
    "append": "a gate writes files of its own, without --append",
    "resume": "a gate is started anew, without --resume",
    "expect": "--expect judges one measurement: commbench sweep --expect, or gate RESULTS --expect",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for.

    Attributes:
        sides: the texts of --a and --b.
        options: of `sweep`, for both.
        turns: the sides alternate visit by visit; None: unless a launcher of the user's starts them.
        output: names both files.
    """

    sides: tuple[str, str]
    options: tuple[str, ...]
    pairs: int
    turns: bool | None
    output: Path | None
    force: bool
    margin: float


@dataclass(frozen=True, slots=True)
class Spelled:
    """One side as typed: variables, the words that start its Python, and options of `sweep`."""

    environment: Mapping[str, str]
    python: tuple[str, ...]
    options: tuple[str, ...]


def spelled(text: str, flag: str) -> Spelled:
    """The side in "[NAME=VALUE ...] [COMMAND [--]] [SWEEP OPTIONS]".

    COMMAND starts a Python that has commbench: another interpreter, or one in a container. Where it has options of its
    own, " -- " ends it.

    Raises:
        UsageError: it cannot be split into words.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r} cannot be split into words: {error}", "check its quotes") from error
    count = next((n for n, word in enumerate(words) if not _VARIABLE.fullmatch(word)), len(words))
    environment = dict(word.split("=", 1) for word in words[:count])
    rest = tuple(words[count:])
    if "--" in rest:
        end = rest.index("--")
        return Spelled(environment, rest[:end], rest[end + 1 :])
    end = next((n for n, word in enumerate(rest) if word.startswith("-")), len(rest))
    return Spelled(environment, rest[:end], rest[end:])


def measure_pairs(asked: Asked) -> tuple[GateReport, tuple[Path, Path]]:
    """Measure both sides and judge them; returns the two files too.

    Raises:
        UsageError, UnavailableError: before anything is measured.
        LaunchError, StoppedError: what had been measured is in the files.
    """
    if from_environment() is not None:
        raise UsageError(
            "gate: this process is one rank of a launch, it cannot start others",
            "start it once: commbench gate --a ... --b ... -- --launcher 'mpirun -n 4' --op allreduce",
        )
    if asked.pairs < FEWEST_CELLS:
        raise UsageError(f"--pairs {asked.pairs}: at least {FEWEST_CELLS}", "use --pairs 5")
    plans, sides = _sides(asked)
    files = _files(asked, sides[0].sweep)
    with (
        closing(Writer(files[0], force=asked.force)) as a,
        closing(Writer(files[1], force=asked.force)) as b,
        GateView(console(stderr=True)) as view,
    ):
        desks = [Desk(writer, view.side(side.name)) for writer, side in zip((a, b), sides, strict=True)]
        gate = _pairs(asked, sides, desks, view)
        view.say(_expectation(plans[0], gate))
        for note in dict.fromkeys(note for one in plans for note in one.notes):
            warn(note)
        settled = gate.measure()
    return judged(*files, margin=asked.margin, settled=settled), files


def _sides(asked: Asked) -> tuple[list[Plan], list[Side]]:
    """Both sides, settled; refused when they measure different things."""
    common = _given(asked.options)
    plans, sides = [], []
    for name, text in zip("ab", asked.sides, strict=True):
        how = spelled(text, f"--{name}")
        given = common | _given(how.options)
        launcher = given.pop("launcher", None)
        if "ops" not in given:
            raise UsageError("--op is missing", "behind the --: commbench gate --a ... --b ... -- --op allreduce")
        one = plan(Sweep(**{"backend": "auto"} | given, runs=1), launcher=launcher, given=frozenset(given))
        mpi = _mpi_of(name, how.python, one, launcher)
        plans.append(one)
        sides.append(Side(name, one.sweep, launcher, mpi, how.environment, how.python or (sys.executable,)))
    ours, theirs = (_points(side.sweep) for side in sides)
    if ours != theirs:
        difference = nearest_difference([point.curve for point in ours], [point.curve for point in theirs])
        raise UsageError(
            f"--a and --b measure different things: {difference or 'other sizes'}",
            "a gate compares like with like; `commbench compare` shows unlike curves side by side",
        )
    return plans, sides


def _given(options: Sequence[str]) -> dict[str, Any]:
    """Fields of `Sweep`, and the launcher, as options of `sweep` give them.

    Raises:
        UsageError: an option that makes no sense in a gate.
    """
    parser = typer.Typer()
    parser.command()(sweep)
    command = typer.main.get_command(parser)
    with command.make_context("commbench gate ... --", list(options)) as context:
        given = {name: value for name, value in context.params.items() if value is not None}
    known = {field.name for field in fields(Sweep)} - {"runs"} | {"launcher"}
    for name, value in given.items():
        if value and name not in known and name != "no_plot":
            flag = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} has no place behind the --", _NOT_OF_A_SIDE.get(name, "leave it out"))
    return {name: value for name, value in given.items() if name in known}


def _mpi_of(name: str, python: Sequence[str], one: Plan, launcher: str | None) -> Mpi | None:
    """The MPI of the interpreter that a side names: its mpiexec must start its ranks."""
    if one.mpi is None or len(python) != 1:
        return one.mpi
    found = probe_mpi(python[0], launcher=launcher is None)
    if isinstance(found, Absent):
        raise UnavailableError(f"--{name}: {python[0]}: {found.reason}", found.hint)
    return found


def _points(sweep: Sweep) -> list[Point]:
    """All points; where a launcher decides about ranks, of two."""
    return sweep.points(sweep.ranks or 2, about(sweep.backend).capabilities)[0]


def _files(asked: Asked, sweep: Sweep) -> tuple[Path, Path]:
    """NAME-a.jsonl and NAME-b.jsonl."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ-gate")
    name = asked.output or default_output(sweep, sweep.ranks, stamp)
    suffix = name.suffix or ".jsonl"
    return name.with_name(f"{name.stem}-a{suffix}"), name.with_name(f"{name.stem}-b{suffix}")


def _pairs(asked: Asked, sides: Sequence[Side], desks: Sequence[Desk], view: GateView) -> Pairs:
    sweep = sides[0].sweep
    curves = len({point.curve for point in _points(sweep)})
    named = "--total-budget" in asked.options
    total = sweep.total_budget if named else SECONDS_A_CURVE * curves
    turns = sides[0].launcher is None if asked.turns is None else asked.turns
    # Half of it for the first look, half for the second.
    seconds = total / 2 / (2 * asked.pairs)
    return Pairs(sides, desks, this_command(), view, asked.pairs, seconds, turns, asked.margin)


def _expectation(one: Plan, gate: Pairs) -> str:
    """What is about to be measured and how long it takes, for the first line."""
    sweep = one.sweep
    points = _points(sweep)
    curves = len({point.curve for point in points})
    first = gate.pairs * (2 * gate.seconds + _SECONDS_TO_START * (1 if gate.turns else 2))
    second = gate.pairs + more_pairs(gate.pairs, curves)
    how = "taking turns" if gate.turns else "one launch after the other"
    ranks = f"{sweep.ranks} ranks, " if sweep.ranks else ""
    return (
        f"{sweep.backend} ({one.why}): {ranks}{len(points)} points x {gate.pairs} pairs of launches, {how}: about "
        f"{_minutes(first)}; up to {second} pairs and {_minutes(2 * first)} where the first leave doubt"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - as one says it
