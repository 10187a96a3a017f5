"""What every command shares: errors become one line, a hint and an exit code; nothing heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import commbench.cli
from commbench import __version__
from commbench.cli import run
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


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """A function: the exit code of a command line whose command raises this."""

    def fail(error: BaseException) -> int:
        def app(**_: Any) -> None:
            raise error

        monkeypatch.setattr(commbench.cli, "app", app)
        return run(["show", "x"])

    return fail


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommbenchError("x"), 1),
        (UnavailableError("x"), 1),
        (LaunchError("x"), 1),
        (MeasurementError("x"), 1),
        (ResultsError("x"), 1),
        (UsageError("x"), 2),
        (CannotTellError("x"), 4),
        (StoppedError("x"), 130),
        (StoppedError("x", exit_code=1), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
    ],
)
def test_every_error_has_its_exit_code(failing: Any, error: BaseException, code: int) -> None:
    assert failing(error) == code


def test_an_error_is_one_line_and_a_hint_on_stderr(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(UnavailableError("mpi4py is not installed", "pip install 'commbench[mpich]'"))

    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: mpi4py is not installed\nhint: pip install 'commbench[mpich]'\n"


def test_a_long_message_is_not_broken_and_a_hostile_one_is_harmless(
    failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ResultsError("written by \x1b[2J\n" + "x" * 300))

    assert capsys.readouterr().err == "error: written by [2J " + "x" * 300 + "\n"


def test_a_command_may_end_with_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def gate() -> None:
        raise typer.Exit(3)

    monkeypatch.setattr(commbench.cli, "app", app)

    assert run([]) == 3


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["shw"], "No such command 'shw'", "commbench --help"),
        (["show"], "Missing argument", "commbench show --help"),
        (["fit", "--jsn", "x"], "No such option", "commbench fit --help"),
        (["plot", "x", "--format", "pdf"], "pdf", "commbench plot --help"),
    ],
)
def test_usage_errors_look_like_all_others_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    assert run(arguments) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second == f"hint: {hint}"


@pytest.mark.parametrize(("rank", "lines"), [("0", 2), ("3", 0)])
def test_of_all_ranks_the_lowest_one_prints_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, lines: int
) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": "4", "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, value)

    assert run(["shw"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: commbench" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "fit", "plot"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "-h"]) == 0
    assert f"Usage: commbench {command}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"commbench {__version__}\n"


BAD_FILES = {
    "missing": (None, "No such file"),
    "empty": (b"", "the file is empty"),
    "binary": (bytes(range(256)) * 40, "not"),
    "text": (b"hello\n", "not a file we know"),
    "other JSON": (b'{"hello": "world"}\n', "no run in it"),
    "a list": (b"[1, 2]\n", "not a file we know"),
    "newer": (b'{"kind":"run","schema":99,"commbench":"9.0"}\n', "schema 99 by commbench 9.0"),
    "nested": (b"[" * 100_000 + b"\n", "not a file we know"),
}


@pytest.mark.parametrize("command", ["show", "fit", "plot"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str
) -> None:
    content, message = BAD_FILES[kind]
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_bytes(content)

    assert run([command, str(path)]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[0]
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    "damage",
    [
        ('"bytes":8,', '"bytes":"8",'),
        ('"bytes":8,', '"bytes":0,'),
        ('"bytes":8,', f'"bytes":{10**400},'),
        ('"median":5.0', '"median":NaN,"x":5.0'),
        ('"median":5.0', '"median":null,"x":5.0'),
        ('"op":"allreduce"', '"op":"telepathy"'),
        ('"dtype":"float32"', '"dtype":["float32"]'),
        ('"flags":[]', '"flags":"drift"'),
        ('"status":"ok"', '"status":"splendid"'),
        ('"run":1,"launch"', '"run":"one","launch"'),
    ],
)
def test_a_value_of_another_type_is_one_line_and_exit_1(
    records_of: Any, capsys: pytest.CaptureFixture[str], damage: tuple[str, str]
) -> None:
    path = records_of(alpha=5.0, sizes=[8])
    head, *rest = path.read_text().splitlines(keepends=True)
    assert damage[0] in rest[0]
    path.write_text(head + rest[0].replace(*damage) + "".join(rest[1:]))

    assert run(["show", str(path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_damage_in_the_middle_is_an_error_and_a_cut_end_a_warning(
    records_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = records_of().read_text()
    path = records_of(name="cut.jsonl", records=[])
    path.write_text(whole[: len(whole) // 2])

    assert run(["show", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "allreduce" in out
    assert err.startswith("warning: ")
    assert len(err.splitlines()) == 1

    lines = whole.splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:40] + "\n", *lines[4:]]))
    assert run(["show", str(path)]) == 1
    assert "line 4 is damaged" in capsys.readouterr().err


HEAVY = ("torch", "mpi4py", "numba", "pandas", "scipy", "matplotlib", "cupy")


@pytest.mark.parametrize("command", ["show", "fit"])
def test_reading_loads_none_of_the_heavy_libraries(records_of: Any, command: str) -> None:
    code = (
        "import sys; from commbench.cli import run;"
        f"code = run([{command!r}, {str(records_of())!r}]);"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == "[]\n"


def test_a_reader_that_goes_away_is_no_traceback(records_of: Any) -> None:
    """As in `commbench show FILE | head -1`."""
    path = records_of(runs=3)
    for arguments in (["show", path], ["show", path, "--json"], ["fit", path]):
        process = subprocess.Popen(
            [sys.executable, "-m", "commbench", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        process.stderr.close()

        assert (process.wait(), errors) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_is_one_line(records_of: Any) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "commbench", "show", records_of()], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert (done.returncode, done.stderr) == (1, b"error: the output: No space left on device\n")


def test_a_terminal_that_has_no_plus_minus_gets_a_question_mark(records_of: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "commbench", "show", records_of()],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )

    assert done.stderr == b""
    assert done.stdout.isascii()
    assert b"time(us)" in done.stdout


def test_color_appears_when_it_is_asked_for_and_never_in_a_pipe(records_of: Any) -> None:
    path = records_of()
    plain, forced = (
        subprocess.run(
            [sys.executable, "-m", "commbench", "show", path], capture_output=True, check=True, env={"PATH": ""} | extra
        ).stdout
        for extra in ({}, {"FORCE_COLOR": "1", "TERM": "xterm"})
    )

    assert b"\x1b" not in plain
    assert b"\x1b" in forced


def test_json_is_one_document(records_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(records_of()), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"records", "points", "findings"}


def test_a_closed_stdout_is_no_traceback() -> None:
    command = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "commbench", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
