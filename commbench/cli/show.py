"""`commbench show`: the table again, with the fit and what is odd."""

from __future__ import annotations

import typer

from commbench.cli.arguments import AsJson, AsMarkdown, Files


def show(files: Files, as_json: AsJson = False, as_markdown: AsMarkdown = False) -> None:
    """Show results again: a table a curve, its fit, and what is odd about it.

    Files measured in the same setting (hosts, library, environment) are averaged as further runs; others
    get tables of their own.
    """
    from commbench.cli.reading import print_json, print_views, read
    from commbench.report.documents import show_document
    from commbench.report.markdown import datasets_markdown

    found = read(files, as_json=as_json, as_markdown=as_markdown)
    if as_json:
        print_json(show_document(found))
    elif as_markdown:
        typer.echo(datasets_markdown(found))
    else:
        print_views(found)
