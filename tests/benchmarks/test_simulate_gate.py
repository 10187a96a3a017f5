"""The simulation in small, with loose bounds; `results/statistics-gate.md` has the figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "simulate_gate.py"
FEW = 300


@pytest.fixture(scope="module")
def simulated() -> Any:
    spec = importlib.util.spec_from_file_location("simulate_gate", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their types up
    spec.loader.exec_module(module)
    return module


def test_what_did_not_change_passes_and_is_hardly_ever_an_alarm(simulated: Any) -> None:
    share = simulated.interleaved(simulated.REFERENCE, simulated.NOTHING, FEW)

    assert share.regressions <= 0.02
    assert share.passes >= 0.9
    assert share.undecided <= 0.1


@pytest.mark.parametrize(
    ("what", "least"), [("5 % at all sizes", 0.9), ("5 % at the 9 largest", 0.9), ("10 % at one size", 0.9)]
)
def test_what_is_slower_is_found(simulated: Any, what: str, least: float) -> None:
    share = simulated.interleaved(simulated.REFERENCE, simulated.EFFECTS[what], FEW)

    assert share.regressions >= least


def test_a_rule_by_hand_cries_where_nothing_changed_or_misses_what_did(simulated: Any) -> None:
    quiet = simulated.interleaved(simulated.REFERENCE, simulated.NOTHING, FEW)
    slower = simulated.interleaved(simulated.REFERENCE, simulated.EFFECTS["5 % at all sizes"], FEW)

    assert quiet.naive5 >= 0.25
    assert slower.naive10 <= 0.7


def test_a_gate_of_twelve_curves_is_not_twelve_chances(simulated: Any) -> None:
    whole = simulated.whole_gate(simulated.REFERENCE, 50)
    slow = simulated.interleaved(simulated.REFERENCE, simulated.EFFECTS["5 % at all sizes"], FEW, 12)

    assert whole.regressions <= 0.04
    assert slow.regressions >= 0.75


def test_cores_that_change_state_do_not_keep_what_is_the_same_from_passing(simulated: Any) -> None:
    share = simulated.interleaved(simulated.Noise(flips=0.05), simulated.NOTHING, FEW)

    assert share.regressions <= 0.02
    assert share.passes >= 0.75
    assert share.naive10 >= 0.5


@pytest.mark.parametrize("what", ["5 % at all sizes", "5 % at the 9 largest"])
def test_a_noisy_machine_seldom_passes_what_is_slower(simulated: Any, what: str) -> None:
    assert simulated.interleaved(simulated.NOISY, simulated.EFFECTS[what], FEW).passes <= 0.12


def test_a_stored_baseline_is_no_alarm_where_the_spread_between_sessions_is_known(simulated: Any) -> None:
    ignored = simulated.two_files(simulated.REFERENCE, simulated.NOTHING, FEW, 0.0)
    allowed = simulated.two_files(simulated.REFERENCE, simulated.NOTHING, FEW, 0.02)
    several = simulated.many_sessions(simulated.REFERENCE, simulated.NOTHING, FEW, 6)

    assert ignored.regressions >= 0.05
    assert allowed.regressions <= 0.03
    assert several.regressions <= 0.03


def test_the_smallest_detectable_slowdown_is_found_in_four_of_five_cases(simulated: Any) -> None:
    named, found = simulated.found_at_the_smallest_detectable(simulated.REFERENCE, FEW)

    assert 0.05 < named < 0.12
    assert 0.7 <= found <= 0.9


def test_the_table_has_a_row_for_every_requirement(simulated: Any) -> None:
    text = simulated.report(20)

    assert "| reference: run 2 %, within 3 % | nothing |" in text
    assert "| 12 curves, the whole gate | nothing |" in text
    assert all(len(row.split("|")) == 10 for row in text.splitlines() if row.startswith("| "))
