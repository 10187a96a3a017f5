"""The program that tries a peer copy, on a machine of doubles: it must survive what it is there to find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests import doubles
from tests.launching import ROOT

pytestmark = [pytest.mark.launch, doubles.needs_compiler]

TRY = (
    "import json, sys; from commbench.backends import peer_probe;"
    "found = peer_probe.ask([tuple(pair) for pair in json.loads(sys.argv[1])], 30, float(sys.argv[2]));"
    "print(json.dumps([[*pair, reason] for pair, reason in found.items()]))"
)


def ask(pairs: list[tuple[int, int]], limit: float = 20, **knobs: Any) -> dict[tuple[int, int], str]:
    """What `peer_probe.ask` finds on a machine with these knobs."""
    around = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    machine = doubles.machine(doubles.built(), around={"PYTHONPATH": str(ROOT)}, **knobs)
    done = subprocess.run(
        [sys.executable, "-c", TRY, json.dumps(pairs), str(limit)],
        env=around | machine, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {(a, b): reason for a, b, reason in json.loads(done.stdout)}


def test_nothing_is_said_of_pairs_whose_copies_arrive() -> None:
    assert ask([(0, 1), (0, 2), (1, 2)], gpus=3) == {}
    assert ask([]) == {}


def test_wrong_bytes_are_counted() -> None:
    assert ask([(0, 1)], copy_faults="peer=wrong") == {
        (0, 1): "a peer copy from GPU 0 to 1 arrives wrong: 1 of 1048576 bytes, the first at 1048575; "
        "an IOMMU or PCIe ACS in the way can do that"
    }


def test_a_copy_that_never_ends_is_given_up_and_no_other_is_tried() -> None:
    assert ask([(0, 1), (1, 2)], limit=2, gpus=3, copy_faults="peer=hang") == {
        (0, 1): "peer copy between GPU 0 and 1: no answer within 2 s; an IOMMU or PCIe ACS in the way can do that",
        (1, 2): "not tried, after the peer copy between GPU 0 and 1 failed",
    }


def test_a_program_that_dies_is_told_by_its_signal() -> None:
    [reason] = ask([(0, 1)], copy_faults="peer=die").values()

    assert reason.startswith("peer copy between GPU 0 and 1: the program that tried it ended with signal 11;")


def test_the_drivers_refusal_is_told_in_its_words() -> None:
    [reason] = ask([(0, 1)], peer_access=0).values()

    assert reason == (
        "peer copy between GPU 0 and 1: cudaErrorPeerAccessUnsupported: peer access is not supported between these "
        "two devices"
    )


def test_a_program_that_cannot_start_is_told_for_all_pairs() -> None:
    found = ask([(0, 1), (1, 2)], gpus=3, cupy=False)

    assert list(found) == [(0, 1), (1, 2)]
    [reason] = set(found.values())
    assert reason.startswith("the program that tries a peer copy did not start: it ended with exit status 1: ")
    assert "cupy" in reason
