"""The arguments that all reading commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Files = Annotated[
    list[Path],
    typer.Argument(help="Results of `commbench sweep`, or CSV: bytes,seconds[,op,ranks,run,...].", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document, in base units.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Markdown, for an issue or a pull request.")]
Export = Annotated[
    str | None,
    typer.Option("--export", help="JSON for a tracker: github-action-benchmark or bencher.", metavar="FORMAT"),
]
