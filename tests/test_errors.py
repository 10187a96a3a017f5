"""One tree, and what each branch of it ends the command with."""

from __future__ import annotations

import inspect
import re

import pytest

from commbench import errors
from commbench.errors import (
    CannotTellError,
    CommbenchError,
    LaunchError,
    MeasurementError,
    ResultsError,
    StoppedError,
    UnavailableError,
    UsageError,
)

ALL = [error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, Exception)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommbenchError, 1),
        (UnavailableError, 1),
        (LaunchError, 1),
        (MeasurementError, 1),
        (ResultsError, 1),
        (UsageError, 2),
        (CannotTellError, 4),
    ],
)
def test_a_class_of_errors_has_one_exit_code(error: type[CommbenchError], code: int) -> None:
    assert error("x").exit_code == code


def test_what_was_stopped_says_itself_what_stopped_it() -> None:
    assert StoppedError("by Ctrl-C").stop_code == 130
    assert StoppedError("by SIGTERM", exit_code=1).stop_code == 1


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_message_and_a_hint(error: type[CommbenchError]) -> None:
    raised = error("mpi4py is not installed", "pip install 'commbench[mpich]'")

    assert isinstance(raised, CommbenchError)
    assert (raised.message, raised.hint) == ("mpi4py is not installed", "pip install 'commbench[mpich]'")
    assert str(raised) == raised.message
    assert error("x").hint == ""


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = dict(re.findall(r"(\w+Error) +(\d+)  ", errors.__doc__ or ""))

    assert {name: int(code) for name, code in drawn.items()} == {
        error.__name__: error("x").stop_code if error is StoppedError else error.exit_code for error in ALL
    }
