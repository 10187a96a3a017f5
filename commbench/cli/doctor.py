"""`commbench doctor`: what works here, and the line that installs what does not."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from commbench.errors import UnavailableError

if TYPE_CHECKING:
    from commbench.jobs.check import Check, State

# Sign, the sign for terminals without Unicode, colour.
_MARKS: dict[State, tuple[str, str, str]] = {
    "works": ("✓", "+", "green"),
    "missing": ("✗", "x", "red"),
    "broken": ("✗", "x", "red"),
    "warning": ("!", "!", "yellow"),
    "note": ("·", "-", "dim"),
}


def doctor(
    json_: Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")] = False,
) -> None:
    """Say what works on this machine, and the line that installs what does not.

    Exits 1 when no real back end works; the emulated one does not count.
    """
    from commbench.jobs.checkup import checkup, has_real_backend

    checks = checkup()
    works = has_real_backend(checks)
    if json_:
        typer.echo(json.dumps({"contract": False, "works": works, "checks": [asdict(check) for check in checks]}))
    else:
        _print(checks)
    if not works:
        fixes = (check.fix for check in checks if check.section == "back ends" and check.fix)
        raise UnavailableError("no real back end works here", next(fixes, ""))


def _print(checks: list[Check]) -> None:
    from rich.text import Text

    from commbench.report.console import console

    out = console()
    width = max(len(check.name) for check in checks)
    for section, members in groupby(checks, key=lambda check: check.section):
        out.print(Text(section, style="bold"))
        for check in members:
            sign, plain, colour = _MARKS[check.state]
            mark = plain if out.options.ascii_only else sign
            # Never wrapped, so that a path or an install line can be copied.
            out.print(Text.assemble("  ", (mark, colour), f" {check.name:<{width}}  {check.finding}"), soft_wrap=True)
            if check.fix:
                out.print(Text(f"    {'':<{width}}  {check.fix}", style="bold"), soft_wrap=True)
