"""`commbench compare`: curves side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commbench.cli.arguments import AsJson, AsMarkdown
from commbench.errors import ResultsError, UsageError

if TYPE_CHECKING:
    from commbench.analyze.compare import Compared
    from commbench.analyze.matching import Side

Sides = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        help="Results files, or folders of files that are further runs of each other. The first is the one that "
        "the others are measured by. A single one: the curves in it.",
        show_default=False,
    ),
]
Across = Annotated[
    list[str] | None,
    typer.Option(
        "--across",
        metavar="KEY",
        help="Compare although KEY differs: mode, op, ranks, cache, ... Repeatable.",
        show_default=False,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Also draw curves and ratios: FILE.png or .svg.", show_default=False),
]


def compare(
    sides: Sides,
    across: Across = None,
    plot: Plot = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Put curves side by side: before and after, paths, back ends, machines, modes, rank counts.

    Says what differs between them, how many times longer each size takes, with a 95 % interval, where the curves
    cross, how alpha and B compare, and what changed in the environment. Like is compared with like; exits 4 where
    there is none. Ratios only: the verdict is `commbench gate`'s.
    """
    from commbench.analyze.compare import compare as compare_sides
    from commbench.analyze.matching import parse_keys
    from commbench.cli.reading import print_json
    from commbench.report.compare_document import compare_document
    from commbench.report.compare_markdown import compared_markdown
    from commbench.report.compare_view import compared_view
    from commbench.report.console import console

    keys = parse_keys(across or [])
    compared = compare_sides(_read(sides, as_json=as_json, as_markdown=as_markdown), keys)
    pictures = _draw(compared, plot) if plot else []
    if as_json:
        print_json(compare_document(compared))
    elif as_markdown:
        typer.echo(compared_markdown(compared))
    else:
        console().print(compared_view(compared))
    for path in pictures:
        typer.echo(f"\n![{path.stem}](<{path}>)" if as_markdown else str(path), err=as_json)


def _draw(compared: Compared, plot: Path) -> list[Path]:
    """The pictures; matplotlib is loaded for them alone."""
    from commbench.report.compare_plot import draw_comparisons

    return draw_comparisons(compared.comparisons, plot)


def _read(paths: list[Path], *, as_json: bool, as_markdown: bool) -> list[Side]:
    """One side a path.

    Raises:
        UsageError: the same path twice, or both formats.
        ResultsError: a file cannot be read, or a folder has none.
    """
    from commbench.analyze.matching import Side
    from commbench.cli.reading import load_all

    seen: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in seen:
            raise UsageError(f"{path}: named twice, and nothing differs from itself", "name two different files")
        seen[path.resolve()] = path
    return [
        Side(name, tuple(load_all(_files(path), as_json=as_json, as_markdown=as_markdown)))
        for name, path in zip(_names(paths), paths, strict=True)
    ]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in (".jsonl", ".csv"))
    if not found:
        raise ResultsError(f"{path}: no results file (*.jsonl, *.csv) in this folder", "name a file, or another folder")
    return found


def _names(paths: list[Path]) -> list[str]:
    """What sides are called: the file's own name where that tells them apart, else the whole path."""
    stems = [path.name.removesuffix(".jsonl") or str(path) for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
