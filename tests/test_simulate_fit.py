"""The simulation behind the figures in docs/measuring.md, with few curves and wide bounds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    """The module benchmarks/simulate_fit.py, which is no package."""
    spec = importlib.util.spec_from_file_location("simulate_fit", ROOT / "benchmarks" / "simulate_fit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate_fit"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("truth", ["one_line", "switched"])
def test_alpha_and_b_are_unbiased_and_covered(simulation: ModuleType, truth: str) -> None:
    """60 curves: the standard error of a bias is 0.25 %, of a coverage 3 %."""
    found = simulation.accuracy(getattr(simulation, truth), simulation.Noise(), 60, 11)

    for figures in found["**commbench fit**"]:
        assert abs(figures.bias) < 0.01
        assert figures.coverage > 0.84
        assert figures.known == 1.0
    alpha, _ = found["least squares of T on D"]
    assert alpha.rmse > 10  # a thousand per cent: what the fit is measured against


def test_intervals_over_three_runs_cover_where_one_run_alone_does_not(simulation: ModuleType) -> None:
    found = simulation.accuracy(simulation.one_line, simulation.Noise(run=0.02, runs=3), 40, 11)

    assert min(figures.coverage for figures in found["**commbench fit**"]) > 0.85
    assert min(figures.coverage for figures in found["one of the runs alone"]) < 0.85


def test_a_curve_of_one_line_is_rarely_split(simulation: ModuleType) -> None:
    for sizes in (12, 31):
        spread = [round(8 * 2 ** (30 * i / (sizes - 1))) for i in range(sizes)]
        shares = list(simulation.false_switches(spread, 60, 11).values())

        assert shares[0] >= shares[1] >= shares[2]
        assert shares[2] <= 0.12


def test_the_whole_report_is_written(simulation: ModuleType) -> None:
    text = simulation.report(4, 1)

    assert text.count("| **commbench fit** |") == 4
    assert "nan" not in text
