"""The simulation in small, with loose bounds; `results/statistics-findings.md` has the figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "simulate_findings.py"


@pytest.fixture(scope="module")
def simulated() -> Any:
    spec = importlib.util.spec_from_file_location("simulate_findings", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their types up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "law",
    ["alpha + D/B", "protocol switch at 256 KiB", "protocol switch, up to 16 times too early", "NCCL's mid-size dip"],
)
def test_nothing_is_cried_about_on_clean_curves(simulated: Any, law: str) -> None:
    """5 % noise and no intervals; below 1 % of 2000, so at most 4 of 100."""
    noise, sizes = simulated.NOISES["5 %, no intervals"], simulated.GRIDS["24 sizes, 8 B to 64 MiB"]

    assert simulated.false_findings(simulated.LAWS[law], noise, sizes, 100, 3) <= 0.04


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ("one size x 2, three or more sizes above it", 0.75),
        ("the largest 3 to 5 sizes lose 30 % of bandwidth", 0.9),
        ("step x 1.5 where bandwidth counts (slope > 0.8)", 0.7),
        ("time falls by a third over one gap", 0.8),
    ],
)
def test_faults_are_found(simulated: Any, fault: str, least: float) -> None:
    noise, sizes = simulated.NOISES["5 %, no intervals"], simulated.GRIDS["31 sizes, 8 B to 8 GiB"]

    found, also = simulated.power(simulated.FAULTS[fault], simulated.line, noise, sizes, 60, 3)

    assert found >= least
    assert also <= 0.05
