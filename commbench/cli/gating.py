"""How `gate` judges, and every way in which it tells the verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from commbench.analyze.datasets import curves_of
from commbench.analyze.expectations import check, parse_expectation
from commbench.analyze.gate import judge
from commbench.analyze.verdicts import GateReport
from commbench.cli.reading import load_all, print_json, read
from commbench.errors import ResultsError, UsageError
from commbench.report.console import console
from commbench.report.exports import exported, series_of_verdict
from commbench.report.gate import EXIT_CODES, gate_view
from commbench.report.gate_ci import github_annotations, junit
from commbench.report.gate_document import gate_document
from commbench.report.gate_markdown import gate_markdown


@dataclass(frozen=True, slots=True)
class Telling:
    """How the verdict is told."""

    as_json: bool
    as_markdown: bool
    export: str | None
    junit: Path | None
    inconclusive_passes: bool

    def __post_init__(self) -> None:
        forms = {"--json": self.as_json, "--markdown": self.as_markdown, "--export": self.export}
        asked = [flag for flag, given in forms.items() if given]
        if len(asked) > 1:
            raise UsageError(
                f"{' and '.join(asked)} exclude each other",
                "leave one out: `commbench gate FILE-a FILE-b` tells the same verdict again, in any form",
            )
        if self.export:
            exported([], self.export)


def exit_code(report: GateReport, telling: Telling) -> int:
    if report.verdict == "inconclusive" and telling.inconclusive_passes:
        return 0
    return EXIT_CODES[report.verdict]


def tell(report: GateReport, telling: Telling, files: Sequence[Path] = ()) -> int:
    """Print the verdict in the form asked for, write files, annotate; returns the exit code."""
    code = exit_code(report, telling)
    if telling.junit:
        _write(telling.junit, junit(report))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_annotations(report):
            # The runner reads commands from either stream, and stdout is the verdict's.
            typer.echo(line, err=True)
    if telling.as_json:
        print_json(gate_document(report, code))
    elif telling.export:
        print_json(exported(series_of_verdict(report), telling.export))
    elif telling.as_markdown:
        typer.echo(gate_markdown(report))
    else:
        out = console()
        out.print(gate_view(report))
        if files:
            out.print(f"files   {', '.join(map(str, files))}", soft_wrap=True)
    return code


def judge_files(files: Sequence[Path], *, session_spread: float, margin: float) -> GateReport:
    """The verdict on two files."""
    return judged(*files, session_spread=session_spread, margin=margin)


def check_limits(files: Sequence[Path], limits: Sequence[str]) -> GateReport:
    """The verdict on one measurement against limits."""
    expectations = [parse_expectation(text) for text in limits]
    found = read(list(files), as_json=False, as_markdown=False)
    return check(expectations, curves_of(found))


def judged(*files: Path, **options: Any) -> GateReport:
    """The verdict on a baseline's and a candidate's file; `options` as of `analyze.gate.judge`."""
    baseline, candidate = load_all(list(files), as_json=False, as_markdown=False)
    return judge(baseline, candidate, **options)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(
            f"{path}: cannot be written: {error.strerror}", "choose another file with --junit"
        ) from error
