"""Every error that commbench raises on purpose, with its exit code.

    CommbenchError              1   could not do it
    ├── UsageError              2   the question makes no sense; the hint names the flag
    ├── UnavailableError        1   a back end, library or launcher that is not here; the hint installs it
    ├── LaunchError             1   the ranks could not be started, or did not come
    ├── MeasurementError        1   ranks ran, but a point failed, hung, or gave a wrong answer
    ├── ResultsError            1   a results file that cannot be read or written
    ├── CannotTellError         4   the data do not answer the question
    └── StoppedError          130   Ctrl-C (1 when it was SIGTERM)

`cli.main` alone turns an error into text and an exit code; everything else raises.
"""

from __future__ import annotations

from typing import ClassVar


class CommbenchError(Exception):
    """What went wrong in one line, and a hint that names the flag or the command that helps."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CommbenchError):
    exit_code = 2


class UnavailableError(CommbenchError):
    pass


class LaunchError(CommbenchError):
    pass


class MeasurementError(CommbenchError):
    pass


class ResultsError(CommbenchError):
    pass


class CannotTellError(CommbenchError):
    exit_code = 4


class StoppedError(CommbenchError):
    """The user (SIGINT, 130) or the system (SIGTERM, 1) ended the command; finished records are kept."""

    def __init__(self, message: str, hint: str = "", *, exit_code: int = 130) -> None:
        super().__init__(message, hint)
        self.stop_code = exit_code
