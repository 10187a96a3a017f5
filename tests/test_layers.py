"""The import rule of docs/architecture.md, enforced by plain `pytest`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytest.importorskip("importlinter", reason="import-linter comes with the extra [dev]")


def test_every_module_imports_only_what_its_layer_may() -> None:
    """The contracts are in pyproject.toml; a new top-level module must be given a layer there."""
    linter = "import importlinter.cli as cli; cli.lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 broken" in done.stdout


def test_whoever_reads_results_loads_no_library_that_measures() -> None:
    """Also not inside of functions that run at import, which the contracts cannot see."""
    code = (
        "import sys, commbench.cli, commbench.records, commbench.importers, commbench.analyze.fit;"
        "import commbench.report.documents;"
        "heavy = {'torch', 'cupy', 'mpi4py', 'numba', 'scipy', 'pandas', 'matplotlib'} & set(sys.modules);"
        "print(*sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == ("", "")
