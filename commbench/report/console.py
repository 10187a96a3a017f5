"""The two consoles: data on stdout, everything else on stderr.

Text is never parsed for markup, and escape codes appear only on a terminal (Rich also minds NO_COLOR and
TERM=dumb). In a pipe or a file lines are 80 wide, whatever the terminal around it.
"""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 80


def console(*, stderr: bool = False, plain: bool = False) -> Console:
    """A console for stdout, or for stderr; `plain` for ranks, whose terminal is nobody's."""
    terminal = False if plain else None
    found = Console(stderr=stderr, markup=False, highlight=False, emoji=False, force_terminal=terminal)
    if not found.is_terminal:
        found.width = PLAIN_WIDTH
    return found
