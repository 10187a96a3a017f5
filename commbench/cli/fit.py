"""`commbench fit`: alpha + D/B of every curve."""

from __future__ import annotations

import typer

from commbench.cli.arguments import AsJson, AsMarkdown, Files
from commbench.errors import CannotTellError


def fit(files: Files, as_json: AsJson = False, as_markdown: AsMarkdown = False) -> None:
    """Fit T = alpha + D/B to every curve: what a call costs, and what a byte does.

    Intervals are 95 %: Student's t over runs, or within the run where there is only one. Exits 4 when no
    curve can be fitted.
    """
    from commbench.analyze.datasets import curves_of
    from commbench.analyze.fit import fit_curves
    from commbench.cli.reading import print_json, read, warn
    from commbench.report.console import console
    from commbench.report.documents import fit_document
    from commbench.report.markdown import fits_markdown
    from commbench.report.tables import fits_view

    fits, refusals = fit_curves(curves_of(read(files, as_json=as_json, as_markdown=as_markdown)))
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
