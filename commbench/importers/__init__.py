"""Files that other tools wrote, read as results: one module a tool, and `load`, the one door for all of them.

A file is known by what is in it, never by its name. Whoever adds a tool writes a module that has what
`Importer` asks for, and names it in `IMPORTERS`.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from commbench import results
from commbench.errors import ResultsError
from commbench.importers import csv_table
from commbench.results import Results

_HEAD = 64 << 10


class Importer(Protocol):
    """What a module in this package must have.

    Attributes:
        NAME: what such a file is called in a message.
    """

    NAME: str

    def recognises(self, head: str) -> bool:
        """Whether a file that begins with `head` (some 64 KiB) is this tool's."""

    def read(self, file: IO[str], path: str) -> Results:
        """The results in it; `path` is what the user called the file.

        Raises:
            ResultsError: naming line and column of what cannot be read.
        """


IMPORTERS: tuple[Importer, ...] = (csv_table,)
"""In the order they are asked: what recognises more comes later."""


def load(path: str | Path) -> Results:
    """Read a file, our own or one that an importer knows.

    Raises:
        ResultsError: it cannot be read, or nobody knows it.
    """
    try:
        with Path(path).open("rb") as raw:
            file, head = _opened(raw)
            with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
                return _read(text, head, str(path))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise ResultsError(f"{path}: not UTF-8 text, so no results", f"known are {_known()}") from error


def _opened(raw: BinaryIO) -> tuple[BinaryIO, str]:
    """The file, at its beginning, and what it begins with; a pipe cannot be begun again and is read whole."""
    head = raw.read(_HEAD)
    if b"\0" in head:
        raise UnicodeError
    if raw.seekable():
        raw.seek(0)
    else:
        raw = io.BytesIO(head + raw.read())
    return raw, head.decode("utf-8-sig", errors="replace")


def _read(text: IO[str], head: str, path: str) -> Results:
    importer = next((importer for importer in IMPORTERS if importer.recognises(head)), None)
    if importer is not None:
        return importer.read(text, path)
    if head.strip() and not head.lstrip().startswith("{"):
        raise ResultsError(f"{path}: not a file we know: it begins with {head.strip()!r:.40}", f"known are {_known()}")
    return results.read(text, path)


def _known() -> str:
    return " and ".join(("commbench results (JSON lines)", *(importer.NAME for importer in IMPORTERS)))
