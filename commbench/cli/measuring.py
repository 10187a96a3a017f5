"""What `sweep` does between the command line and the ranks: plan, file, view, launch, and show what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from commbench.analyze.datasets import curves_of, datasets
from commbench.analyze.expectations import Expectation, check
from commbench.analyze.fit import fit_curves
from commbench.analyze.pairs import curves_alone
from commbench.backends import about
from commbench.backends.base import World
from commbench.cli.reading import print_json, warn
from commbench.errors import CommbenchError, UsageError
from commbench.jobs.as_rank import leave_launch, measure_as_rank, refuse_many_launches
from commbench.jobs.plan import Plan, default_output, expectation, plan, plan_as_rank
from commbench.jobs.resume import Progress, progress_of
from commbench.jobs.runs import Desk, Parent, this_command
from commbench.measure.guard import stand_guard
from commbench.measure.ranks import from_environment
from commbench.report.console import console
from commbench.report.documents import fit_document, show_document
from commbench.report.gate import EXIT_CODES, gate_view
from commbench.report.gate_document import gate_document
from commbench.report.live import LogView, TerminalView
from commbench.report.tables import dataset_views
from commbench.report.text import clean
from commbench.results import Results, Writer, load
from commbench.spec import Sweep


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go and how they are shown."""

    file: Path | None
    append: Path | None
    resume: Path | None
    force: bool
    as_json: bool
    plot: bool
    limits: tuple[Expectation, ...] = ()

    def __post_init__(self) -> None:
        named = [
            flag
            for flag, file in (("--output", self.file), ("--append", self.append), ("--resume", self.resume))
            if file
        ]
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)} name two files", "give one of them")


def measure(given: Mapping[str, Any], output: Output, launcher: str | None) -> int:
    """Run the sweep that `given` (fields of Sweep) asks for, as a parent or as a rank of somebody's launcher.

    Returns:
        The exit code: 0, or what the limits come to.
    """
    world = None if launcher else from_environment()
    before = load(output.resume) if output.resume else None
    asked, named = _asked(given, before, world), None if before else frozenset(given)
    if world is not None:
        return _measure_as_rank(asked, world, output, named)
    return _measure_as_parent(asked, output, launcher, before, named)


def _asked(given: Mapping[str, Any], before: Results | None, world: World | None) -> Sweep:
    if before is not None:
        return replace(progress_of(before).sweep, **given)
    if "ops" not in given:
        raise UsageError("--op is missing", "commbench sweep --op allreduce, or --op all")
    defaults: dict[str, Any] = {"backend": "auto", "runs": 1 if world else 3}
    return Sweep(**(defaults | dict(given)))


def _measure_as_parent(
    asked: Sweep, output: Output, launcher: str | None, before: Results | None, named: frozenset[str] | None
) -> int:
    settled = plan(asked, launcher=launcher, given=named)
    progress = progress_of(before, settled.sweep) if before else None
    writer, first_run = _open(settled, output)
    _announce(settled, progress)
    parent = Parent(settled.sweep, this_command(), launcher=launcher, mpi=settled.mpi, first_run=first_run)
    to = console(stderr=True)
    last_run = first_run - 1 + settled.sweep.runs
    view = TerminalView(last_run, to) if to.is_terminal else LogView(last_run, to)
    try:
        with view:
            parent.measure(Desk(writer, view), progress)
    except (CommbenchError, KeyboardInterrupt) as error:
        writer.close()
        if not isinstance(error, UsageError):  # refused: nothing was measured
            with suppress(CommbenchError, OSError):  # why it ended matters more than what cannot be shown of it
                _conclude(writer.path, output)
        raise
    writer.close()
    return _conclude(writer.path, output)


def _measure_as_rank(asked: Sweep, world: World, output: Output, named: frozenset[str] | None) -> int:
    if output.resume:
        raise UsageError("--resume: a rank cannot tell what is missing", "start it once, with --launcher")
    refuse_many_launches(asked, world, this_command())
    stand_guard()
    settled = plan_as_rank(asked, world, given=named)
    if world.rank:
        code = measure_as_rank(settled.sweep, world, None, run=1, command=this_command(), complain=_complain)
        raise SystemExit(code)
    try:
        writer, first_run = _open(settled, output)
    except CommbenchError as error:
        _complain(error.message, error.hint)
        leave_launch(settled.sweep, world)
        raise SystemExit(error.exit_code) from error
    _announce(settled, None, plain=True)
    # Some launchers give their ranks a terminal of their own; a person's is not at its other end.
    desk = Desk(writer, LogView(first_run, console(stderr=True, plain=True)))
    measure_as_rank(settled.sweep, world, desk, run=first_run, command=this_command(), complain=_complain)
    writer.close()
    code = _conclude(writer.path, output, plain=True)
    desk.raise_problems()
    return code


def _complain(reason: str, hint: str = "") -> None:
    for word, text in (("error", reason), ("hint", hint)):
        if text:
            console(stderr=True, plain=True).print(f"{word}: {clean(text, 1000)}", soft_wrap=True)


def _open(settled: Plan, output: Output) -> tuple[Writer, int]:
    """The results file, opened before anything is measured, and the number of the next run in it."""
    if output.resume:
        return Writer(output.resume, append=True), 1
    if output.append:
        there = output.append.exists() and output.append.stat().st_size > 0
        last = max((int(run["run"]) for run in load(output.append).runs), default=0) if there else 0
        return Writer(output.append, append=True), last + 1
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    file = output.file or default_output(settled.sweep, settled.sweep.ranks, stamp)
    return Writer(file, force=output.force), 1


def _announce(settled: Plan, progress: Progress | None, *, plain: bool = False) -> None:
    """On stderr, before the first launch: what, by which back end and why, and for how long at most."""
    sweep, to = settled.sweep, console(stderr=True, plain=plain)
    where = "GPUs" if sweep.device == "cuda" else "host memory"
    parts = [f"{sweep.backend} on {where} ({settled.why})"]
    if sweep.ranks is not None:
        points, _ = sweep.points(sweep.ranks, about(sweep.backend).capabilities)
        alone = about(sweep.backend).one_process
        ranks = "one process" if alone else f"{sweep.ranks} rank{'s' if sweep.ranks > 1 else ''}"
        parts += [ranks, expectation(sweep, len(points))]
        if progress is not None:
            left = sum(len(progress.missing(points, run)) for run in range(1, sweep.runs + 1))
            parts.append(f"{left} of {len(points) * sweep.runs} still missing")
    to.print(": ".join((parts[0], ", ".join(parts[1:]))) if parts[1:] else parts[0], style="dim", soft_wrap=True)
    for note in settled.notes:
        warn(note, plain=plain)


def _conclude(file: Path, output: Output, *, plain: bool = False) -> int:
    """Tables, fits, plots and file names of what is in the results file, and how it keeps the limits; the exit code."""
    if not file.exists():
        return 0
    found = datasets([load(file)])
    curves = curves_of(found)
    verdict = check(output.limits, curves) if output.limits else None
    code = 0 if verdict is None else EXIT_CODES[verdict.verdict]
    if output.as_json:
        fits, _ = fit_curves(curves)
        document = {"file": str(file), "show": show_document(found), "fit": fit_document(fits)}
        print_json(document | ({} if verdict is None else {"gate": gate_document(verdict, code)}))
        return code
    out = console(plain=plain)
    for number, view in enumerate(dataset_views(found)):
        out.print(*([""] if number else []), view, sep="\n")
    written = [str(file)]
    drawn = [curve for dataset in found for curve in curves_alone(dataset)]
    if output.plot and any(point.seconds is not None for curve in drawn for point in curve.points):
        from commbench.report.plots import draw

        written += [str(picture) for picture in draw(drawn, _beside(file))]
    out.print(f"files   {', '.join(written)}", soft_wrap=True)
    if verdict is not None:
        out.print(gate_view(verdict))
    return code


def _beside(file: Path) -> Path:
    """plots/NAME beside a results/ directory, else NAME beside the file: pictures lie where the results do."""
    folder = file.parent.parent / "plots" if file.parent.name == "results" else file.parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder / file.stem
