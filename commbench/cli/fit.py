"""`commbench fit`: alpha + D/B of every curve."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from commbench.cli.arguments import AsJson, AsMarkdown, Files
from commbench.errors import CannotTellError


class Segments(StrEnum):
    auto = "auto"
    one = "1"
    two = "2"
    three = "3"


HowMany = Annotated[
    Segments, typer.Option("--segments", help="Lines a curve: 1 is the plain alpha + D/B over all sizes.")
]


def fit(
    files: Files, segments: HowMany = Segments.auto, as_json: AsJson = False, as_markdown: AsMarkdown = False
) -> None:
    """Fit T = alpha + D/B to every curve: what a call costs, and what a byte does.

    A curve is cut into up to three lines where its times leave no doubt; alpha is then the first
    line's, B the last one's. Intervals are 95 %: Student's t over runs, or within the run where
    there is only one. Exits 4 when no curve can be fitted.
    """
    from commbench.analyze.datasets import curves_of
    from commbench.analyze.fit import fit_curves
    from commbench.cli.reading import print_json, read, warn
    from commbench.report.console import console
    from commbench.report.documents import fit_document
    from commbench.report.markdown import fits_markdown
    from commbench.report.tables import fits_view

    found = curves_of(read(files, as_json=as_json, as_markdown=as_markdown))
    fits, refusals = fit_curves(found, None if segments == Segments.auto else int(segments))
    if not fits:
        raise next(iter(refusals), CannotTellError("no record in these files", "`commbench show` says what went wrong"))
    for refusal in refusals:
        warn(f"no fit: {refusal.message}")
    if as_json:
        print_json(fit_document(fits))
    elif as_markdown:
        typer.echo(fits_markdown(fits))
    else:
        console().print(fits_view(fits))
