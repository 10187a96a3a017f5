"""Reading /proc and /sys: what is missing, unreadable or malformed is None, never an error.

Every reader of facts takes a `root`, so that tests read the tree of a machine they do not run on.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")


def text(path: Path) -> str | None:
    """A file's text without blanks and NULs at its ends, None when it cannot be read or is empty."""
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return content.strip(" \t\n\0") or None


def integer(path: Path) -> int | None:
    """The decimal number that is all of a file, None for anything else ("max", nothing, no file)."""
    content = text(path)
    return int(content) if content and re.fullmatch(r"-?\d+", content) else None


def fields(content: str | None) -> dict[str, str]:
    """The lines "name: value" of /proc/meminfo, /proc/self/status and the like; the first of a name counts."""
    found: dict[str, str] = {}
    for line in (content or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def kilobytes(value: str | None) -> int | None:
    """Bytes of "16384 kB"."""
    match = re.fullmatch(r"(\d+) kB", value or "")
    return int(match[1]) << 10 if match else None


def numbers(ranges: str | None) -> list[int]:
    """The numbers of a kernel list: "0-3,8" is 0, 1, 2, 3, 8. Unknown is empty."""
    found: list[int] = []
    for part in (ranges or "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match:
            found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found
