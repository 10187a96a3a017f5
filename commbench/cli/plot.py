"""`commbench plot`: the curves as pictures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from commbench.cli.arguments import AsJson, AsMarkdown, Files
from commbench.errors import UsageError


class Format(StrEnum):
    png = "png"
    svg = "svg"


_FORMATS = tuple(form.value for form in Format)


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        help="Where to; an ending .png or .svg chooses the format. Left out: plots/NAME, after the first file.",
        show_default=False,
    ),
]
OnlyFormat = Annotated[
    Format | None, typer.Option("--format", help="Write this format only, not both.", show_default=False)
]


def plot(
    files: Files,
    output: Output = None,
    only: OnlyFormat = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Draw time and bus bandwidth over size, with intervals and the fitted line, as PNG and SVG.

    Prints the names of the files written. Pictures can be made again from results, so they are overwritten.
    """
    from commbench.analyze.datasets import curves_of
    from commbench.cli.reading import print_json, read
    from commbench.report.plots import draw

    stem, formats = _target(files[0], output, only)
    written = draw(curves_of(read(files, as_json=as_json, as_markdown=as_markdown)), stem, formats)
    if as_json:
        print_json({"contract": False, "files": list(map(str, written))})
    else:
        typer.echo("\n".join(f"![{path.stem}](<{path}>)" if as_markdown else str(path) for path in written))


def _target(first: Path, output: Path | None, only: Format | None) -> tuple[Path, tuple[str, ...]]:
    """The name without its ending, and the formats to write."""
    formats = _FORMATS if only is None else (only.value,)
    if output is None:
        return Path("plots", first.stem), formats
    ending = output.suffix.removeprefix(".").lower()
    if ending not in _FORMATS:
        return output, formats
    if only not in (None, ending):
        raise UsageError(f"--output ends in .{ending} and --format says {only}", "leave --format out")
    return output.with_suffix(""), (ending,)
