"""The doctor as a user meets it: its text, its JSON, its exit code, and that it loads no library itself."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from commbench.cli.doctor import doctor
from commbench.errors import UnavailableError
from commbench.jobs.check import Check

INSTALL = "pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI and pip install 'commbench[mpi]'"
MISSING = Check("back ends", "mpi", "missing", "mpi4py is not installed", INSTALL)
WORKING = Check("back ends", "gloo", "works", "torch 2.13.0+cpu")
EMULATED = Check("back ends", "emulated", "works", "needs no library")
BUSY = Check("machine", "load", "warning", "3.1: something else runs", "wait, or find it with top")

app = typer.Typer()
app.command()(doctor)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    checks = [MISSING, WORKING, EMULATED, BUSY]
    monkeypatch.setattr("commbench.jobs.checkup.checkup", lambda: checks)
    return checks


@pytest.mark.usefixtures("machine")
def test_each_line_is_a_mark_a_name_and_a_finding_and_below_it_the_fix() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "back ends",
        "  ✗ mpi       mpi4py is not installed",
        f"              {INSTALL}",
        "  ✓ gloo      torch 2.13.0+cpu",
        "  ✓ emulated  needs no library",
        "machine",
        "  ! load      3.1: something else runs",
        "              wait, or find it with top",
    ]


@pytest.mark.usefixtures("machine")
def test_json_is_one_document_that_says_it_is_no_contract() -> None:
    result = CliRunner().invoke(app, ["--json"])
    document = json.loads(result.stdout)

    assert result.exit_code == 0
    assert document["contract"] is False
    assert document["works"] is True
    assert document["checks"][0] == {
        "section": "back ends",
        "name": "mpi",
        "state": "missing",
        "finding": "mpi4py is not installed",
        "fix": INSTALL,
    }


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_when_no_real_back_end_works_the_install_line_is_the_hint(machine: list[Check], arguments: list[str]) -> None:
    machine.remove(WORKING)
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 1
    assert isinstance(result.exception, UnavailableError)
    assert result.exception.message == "no real back end works here"
    assert result.exception.hint == INSTALL
    assert "mpi4py is not installed" in result.stdout


RUN = "import sys, typer; from commbench.cli.doctor import doctor; app = typer.Typer(); app.command()(doctor);"


def run_doctor(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "COLUMNS": "60", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [sys.executable, "-c", code], env=plain | environment, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py")
def test_in_this_environment_mpi_works_and_no_library_is_loaded_here() -> None:
    code = RUN + (
        "app(['--json'], standalone_mode=False);"
        "heavy = {'mpi4py', 'torch', 'numba', 'cupy', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    result = run_doctor(code)
    assert result.returncode == 0, result.stderr
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["mpi"]["state"] == "works"
    assert checks["emulated"]["state"] == "works"


def test_broken_libraries_are_reported_and_end_in_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("class rc: pass\n")
    (tmp_path / "mpi4py/MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    (tmp_path / "torch.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
    (tmp_path / "numba.py").write_text("__version__ = '0.60.0'\n")
    result = run_doctor(RUN + "app()", PYTHONPATH=str(tmp_path))

    assert result.returncode == 1
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "✗ mpi loading mpi4py: cannot load MPI library" in lines
    assert "pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI module" in lines
    assert "✗ gloo loading torch: killed by signal 11 (Segmentation fault)" in lines
    assert "\x1b" not in result.stdout


def test_a_terminal_without_unicode_gets_plain_marks(tmp_path: Path) -> None:
    for name in ("mpi4py", "torch", "numba"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no')\n")
    result = run_doctor(RUN + "app()", PYTHONPATH=str(tmp_path), PYTHONIOENCODING="ascii")
    assert "x mpi loading mpi4py: no" in [" ".join(line.split()) for line in result.stdout.splitlines()]
