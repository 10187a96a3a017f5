"""Whose turn it is, and two launches that take turns: programs of the shell in the place of ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from commbench.errors import LaunchError
from commbench.job import Job
from commbench.jobs.launch import CommandLine, Launch, command_lines
from commbench.jobs.probe import Mpi, probe_mpi
from commbench.jobs.together import Turns, run_together
from commbench.spec import Sweep
from tests.launching import needs_mpich

# -- turns ---------------------------------------------------------------------------------------------------------


def test_nobody_begins_before_both_are_ready() -> None:
    turns = Turns(first=1)

    assert turns.wants(0) is None
    assert turns.wants(1) == 1


def test_they_alternate_from_the_first_on() -> None:
    turns = Turns(first=0)
    turns.wants(1)

    assert turns.wants(0) == 0
    assert turns.wants(0) == 1
    assert turns.wants(1) == 0
    assert turns.wants(0) == 1


def test_the_one_whose_turn_it_is_is_waited_for() -> None:
    """Side 0 came back at once; it is side 1's turn, which is not ready."""
    turns = Turns(first=0)
    turns.wants(0)
    turns.wants(1)  # 0 goes
    turns.wants(0)  # 1 goes

    assert turns.wants(1) == 0
    assert turns.is_over(1) is None  # 0 has its turn
    assert turns.wants(0) == 0


def test_one_that_is_over_is_left_out() -> None:
    turns = Turns(first=0)
    turns.wants(0)
    turns.wants(1)  # 0 goes
    turns.wants(0)  # 1 goes

    assert turns.is_over(1) == 0
    assert turns.wants(0) == 0
    assert turns.is_over(0) is None


def test_the_end_of_the_one_that_has_the_turn_hands_it_on() -> None:
    turns = Turns(first=0)
    turns.wants(1)
    turns.wants(0)

    assert turns.is_over(0) == 1


# -- launches ------------------------------------------------------------------------------------------------------

RANK = """
import json, sys
def say(kind, **more):
    print(chr(30) + json.dumps({"kind": kind, **more}), flush=True)
for number in range(3):
    say("turn")
    assert sys.stdin.readline()
    say("record", number=number)
    if number == 1 and "dies" in sys.argv:
        sys.exit(7)
say("turn")
sys.stdin.readline()
say("end", fault="", reason="", exit_code=0)
"""


def launch(*arguments: str) -> Launch:
    job = Job(
        sweep=Sweep(ops=("allreduce",), backend="emulated", ranks=1, init_timeout=20.0),
        run=1, seconds=1.0, session="s", launch="l", visits=3,
    )  # fmt: skip
    return Launch(job, [CommandLine((sys.executable, "-c", RANK, *arguments), {})])


def told(first: int, *dies: int) -> tuple[list[tuple[int, Any]], dict[int, Any]]:
    """(side, number) in the order of visits, and how both ended."""
    lines: list[tuple[int, Any]] = []

    def take(side: int) -> Any:
        def one(line: Mapping[str, Any]) -> None:
            if line["kind"] == "record":
                lines.append((side, line["number"]))

        return one

    with launch(*["dies"][: 0 in dies]) as a, launch(*["dies"][: 1 in dies]) as b:
        ends = run_together([a, b], [take(0), take(1)], first)
    return lines, ends


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_each_visit_of_one_side_is_followed_by_the_same_of_the_other(first: int, second: int) -> None:
    lines, ends = told(first)

    assert lines == [(side, number) for number in range(3) for side in (first, second)]
    assert [(side, end["kind"]) for side, end in ends.items()] == [(first, "end"), (second, "end")]


def test_when_one_side_dies_the_other_goes_on_alone() -> None:
    lines, ends = told(0, 1)

    assert [number for side, number in lines if side == 0] == [0, 1, 2]
    assert isinstance(ends[1], LaunchError)
    assert ends[0]["kind"] == "end"


def test_when_one_side_does_not_start_the_other_is_not_waited_for() -> None:
    nothing = CommandLine((sys.executable, "-c", "import sys; sys.exit(3)"), {})
    with launch() as a, Launch(a.job, [nothing]) as b:
        ends = run_together([a, b], [lambda _: None] * 2, 0)

    assert list(ends) == [1]
    assert "exit status 3" in ends[1].message


@pytest.mark.launch
@needs_mpich
def test_ranks_of_a_real_library_take_turns() -> None:
    """Both have loaded MPI and lie still while the other one measures."""
    sweep = Sweep(ops=("allreduce",), backend="mpi", ranks=2, max_bytes=16)
    mpi = probe_mpi()
    assert isinstance(mpi, Mpi)
    lines: list[tuple[int, str]] = []
    with contextlib.ExitStack() as stack:
        launches = []
        for side in "ab":
            job = Job(sweep=sweep, run=1, seconds=0.2, session="s", launch=f"gate-test-{side}", side=side, visits=3)
            launches.append(stack.enter_context(Launch(job, command_lines(job, launcher=None, mpi=mpi))))
        takes: list[Any] = [lambda line, side=side: lines.append((side, line["kind"])) for side in (0, 1)]
        ends = run_together(launches, takes, 1)

    assert list(ends) == [1, 0]
    assert [end["exit_code"] for end in ends.values()] == [0, 0]
    assert [side for side, kind in lines if kind == "record"] == [1, 0] * 2  # the third visit of each of two sizes
