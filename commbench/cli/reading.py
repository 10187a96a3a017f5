"""What the reading commands share: the way from files to datasets, and to standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from commbench.analyze.datasets import Dataset, datasets
from commbench.errors import UsageError
from commbench.importers import load
from commbench.report.console import console
from commbench.report.tables import dataset_views
from commbench.report.text import clean
from commbench.results import Results


def read(files: list[Path], *, as_json: bool, as_markdown: bool) -> list[Dataset]:
    """The datasets of the files, as `load_all` reads them."""
    return datasets(load_all(files, as_json=as_json, as_markdown=as_markdown))


def load_all(files: list[Path], *, as_json: bool, as_markdown: bool) -> list[Results]:
    """The files; what was wrong with one but did not stop the reading goes to stderr.

    Raises:
        UsageError: both formats are asked for.
        ResultsError: a file cannot be read.
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other", "leave one out")
    results = [load(file) for file in files]
    for warning in (text for one in results for text in one.warnings):
        warn(warning)
    return results


def warn(text: str, *, plain: bool = False) -> None:
    """One line on stderr; `plain` from a rank."""
    console(stderr=True, plain=plain).print(f"warning: {clean(text, 400)}", style="yellow", soft_wrap=True)


def print_views(found: list[Dataset]) -> None:
    """Every curve with its table and fit on stdout, an empty line between them."""
    out = console()
    for number, view in enumerate(dataset_views(found)):
        out.print(*([""] if number else []), view, sep="\n")


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))
