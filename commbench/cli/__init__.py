"""The commands, and the one place that turns an error into text and an exit code.

Commands import what they work with when they run: `--help` and completion are typed all day and must be quick.

0  fine, gate passed            3  the gate found a regression, and nothing else
1  could not do it              4  cannot tell
2  usage                      130  interrupted
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated

import typer

from commbench import __version__
from commbench.cli import compare, doctor, fit, gate, plot, show, sweep
from commbench.errors import CommbenchError, StoppedError, UnavailableError, UsageError

app = typer.Typer(
    name="commbench",
    help="Measure collective communication, fit alpha + D/B, and judge the curves.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command, panel in (
    (sweep.sweep, "Measure"),
    (doctor.doctor, "Measure"),
    (show.show, "Explain"),
    (fit.fit, "Explain"),
    (plot.plot, "Explain"),
    (compare.compare, "Explain"),
    (gate.gate, "Judge"),
):
    app.command(rich_help_panel=panel)(command)

_PATIENCE = 1.0
# The root of Typer's own usage errors. Typer exports a leaf only, and since 0.26 brings its own Click along.
_WrongUsage: type[Exception] = typer.BadParameter.__mro__[2]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"commbench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _commbench(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; what went wrong is one line and a hint on stderr.

    Returns:
        The exit code. An error that nobody foresaw is a bug and comes through as it is.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± gets a question mark, not a traceback
    try:
        code = app(args=list(arguments), prog_name="commbench", standalone_mode=False)
        if sys.stdout is not None:  # `>&-` closed it
            sys.stdout.flush()
    except CommbenchError as error:
        _explain(error)
        return error.stop_code if isinstance(error, StoppedError) else error.exit_code
    except _WrongUsage as error:
        _explain(_usage_error(error))
        return UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return StoppedError("").stop_code
    except OSError as error:
        # The reader went away, as `head` does, or the disk is full. Not 0: a verdict that nobody got must not
        # look like one that passed.
        _give_up_stdout()
        if not isinstance(error, BrokenPipeError):
            _explain(CommbenchError(f"{error.filename or 'the output'}: {error.strerror or error}"))
        return CommbenchError.exit_code
    return code if isinstance(code, int) else 0


def _give_up_stdout() -> None:
    """What Python still wants to flush at its end goes nowhere."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_error(error: Exception) -> UsageError:
    """Typer's error in our form."""
    say = getattr(error, "format_message", error.__str__)
    context = getattr(error, "ctx", None)
    return UsageError(say(), f"{context.command_path if context else 'commbench'} --help")


def _explain(error: CommbenchError) -> None:
    if _another_says_it(error):
        time.sleep(_PATIENCE)  # launchers end all ranks at the first that fails: that must be the one that speaks
        return
    from rich.text import Text

    from commbench.report.console import console
    from commbench.report.text import clean

    to = console(stderr=True, plain=_is_rank())
    to.print(Text.assemble(("error: ", "bold red"), clean(error.message, 1000)), soft_wrap=True)
    if error.hint:
        to.print(Text.assemble(("hint: ", "bold"), clean(error.hint, 1000)), soft_wrap=True)


def _another_says_it(error: CommbenchError) -> bool:
    """Every rank of an mpirun finds the same mistake, every rank of a host the same library missing."""
    from commbench.measure.ranks import speaks

    if isinstance(error, UsageError):
        return not speaks()
    return isinstance(error, UnavailableError) and not speaks(per_node=True)


def _is_rank() -> bool:
    from commbench.measure.ranks import from_environment

    return from_environment() is not None


__all__ = ["app", "main", "run"]
