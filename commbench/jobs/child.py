"""Programs and Python code run in a child process with a time limit; nothing that happens there is raised here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

# Runs the code that is its argument. The answer is the last line: libraries print banners when they are loaded.
_EVALUATE = """
import json, sys
names = {}
try:
    exec(sys.argv[1], names)
    said = {"answer": names["answer"]}
except Exception as error:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    said = {"error": (str(error).splitlines() or [type(error).__name__])[0], "missing": missing}
print("\\n" + json.dumps(said))
"""


class Output(NamedTuple):
    """What a program printed; `complaint` is "" when it ended well."""

    text: str
    complaint: str


def run(argv: Sequence[str], limit: float) -> Output:
    """Standard output of a program that has `limit` seconds; then it and what it started are killed."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Output("", f"{argv[0]} cannot be started: {error.strerror}")
    try:
        text, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Output("", f"no answer within {limit:g} s")
    except BaseException:  # Ctrl-C reaches this process only: the child has a session of its own
        _kill(process)
        raise
    if process.returncode < 0:
        return Output("", f"killed by signal {-process.returncode} ({signal.strsignal(-process.returncode)})")
    if process.returncode:
        # Of what was said: C programs name the cause first, Python last.
        lines = errors.strip().splitlines()
        cause = " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
        return Output("", f"exit status {process.returncode}" + (f": {cause}" if cause else ""))
    return Output(text, "")


class Answer(NamedTuple):
    """The dict that code in a child set, or why there is none.

    Attributes:
        missing: the module that is not installed, when that is why.
    """

    value: dict[str, Any]
    complaint: str
    missing: str | None = None


def evaluate(code: str, python: str, limit: float) -> Answer:
    """Run `code` in `python` and return the dict, of JSON values, that it assigns to `answer`."""
    output = run([python, "-P", "-c", _EVALUATE, code], limit)
    if output.complaint:
        return Answer({}, output.complaint)
    last = output.text.strip().rpartition("\n")[2]
    try:
        said = json.loads(last)
        if "error" in said:
            return Answer({}, str(said["error"]), said.get("missing"))
        return Answer(dict(said["answer"]), "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return Answer({}, f"the answer is garbage: {last[:80]!r}")


def _kill(process: subprocess.Popen[str]) -> None:
    """End a child and what it started, without waiting for one that even SIGKILL cannot wake."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)
