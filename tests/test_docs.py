"""The README is true: its commands run, its output is what they print, and every command is in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import typer.main

from commbench.cli import app
from tests import doubles

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent

# These say the same on every machine, since what they read lies in results/: their output is compared.
_SAME_EVERYWHERE = ("show", "fit", "plot", "--version")
_SHORT = ("--total-budget", "1s", "--runs", "1", "--max-bytes", "64K", "--no-plot", "--timeout", "30s")
_NOT_HERE = {"srun": "no Slurm in this test", "pip": "would change this environment", "make": "CI is this very thing"}


def _sessions() -> Iterator[tuple[str, str]]:
    """(command, output) of every "$ " line in the README's console blocks."""
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command.strip(), output.rstrip()


SESSIONS = list(_sessions())


def _run(words: list[str], folder: Path, machine: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | machine | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    return subprocess.run(words, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.launch
@pytest.mark.parametrize(("command", "output"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_the_readme_command_runs_as_shown(command: str, output: str, tmp_path: Path) -> None:
    """A comment "# exit N" at the end of a command is the exit code it must have."""
    shutil.copytree(ROOT / "results", tmp_path / "results")
    command, _, expected = command.partition("# exit ")
    words = shlex.split(command, comments=True)
    if "# on two nodes" in command:
        pytest.skip("there is one node")
    machine = {}
    if "# on GPUs" in command:
        if not shutil.which("cc"):
            pytest.skip("no C compiler for the doubles of GPUs")
        machine = doubles.machine(doubles.built(), 2)
    if words[0] in _NOT_HERE:
        pytest.skip(_NOT_HERE[words[0]])
    if "sweep" in words:
        words += _SHORT
    done = _run(words, tmp_path, machine)
    assert done.returncode == int(expected or 0), done.stderr
    if words[0] == "commbench" and words[1] in _SAME_EVERYWHERE and output:
        assert [line.rstrip() for line in done.stdout.rstrip().splitlines()] == output.splitlines()


def test_the_readme_has_examples_with_output() -> None:
    assert sum(bool(output) for _, output in SESSIONS) >= 2


@pytest.mark.parametrize("name", sorted(typer.main.get_group(app).commands))
def test_every_command_has_help_and_is_in_the_readme(name: str) -> None:
    command = typer.main.get_group(app).commands[name]
    assert (command.help or "").strip()
    assert f"commbench {name}" in README


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_every_file_the_readme_points_to_exists(target: str) -> None:
    assert (ROOT / target).exists()
