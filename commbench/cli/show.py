"""`commbench show`: the table again, with the fit and what is odd."""

from __future__ import annotations

import typer

from commbench.cli.arguments import AsJson, AsMarkdown, Export, Files
from commbench.errors import UsageError


def show(files: Files, as_json: AsJson = False, as_markdown: AsMarkdown = False, export: Export = None) -> None:
    """Show results again: a table a curve, its fit, and what is odd about it.

    Files measured in the same setting (hosts, library, environment) are averaged as further runs; others
    get tables of their own.
    """
    from commbench.cli.reading import print_json, print_views, read
    from commbench.report.documents import show_document
    from commbench.report.exports import exported, series_of_results
    from commbench.report.markdown import datasets_markdown

    if export and (as_json or as_markdown):
        raise UsageError("--export prints one document, as --json and --markdown do", "leave one out")
    found = read(files, as_json=as_json, as_markdown=as_markdown)
    if export:
        print_json(exported(series_of_results(found), export))
    elif as_json:
        print_json(show_document(found))
    elif as_markdown:
        typer.echo(datasets_markdown(found))
    else:
        print_views(found)
