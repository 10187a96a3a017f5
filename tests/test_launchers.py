"""Ranks that somebody else's launcher starts, and launches through a launcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import (
    HERE,
    OPENMPI,
    SMALL,
    SMALL_SIZES,
    Bench,
    Environment,
    a_bench,
    free_port,
    needs_mpich,
    needs_openmpi,
    needs_torch,
    of_kind,
    records_of,
)

pytestmark = pytest.mark.launch

SWEEP = ("sweep", "--op", "allreduce", *[option for option in SMALL if option not in ("--runs", "1")])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


@pytest.mark.parametrize(
    ("at", "launcher", "backend"),
    [
        pytest.param(HERE, "mpiexec", "mpi", marks=needs_mpich, id="MPICH's mpiexec"),
        pytest.param(OPENMPI, "mpirun", "mpi", marks=needs_openmpi, id="Open MPI's mpirun"),
        pytest.param(HERE, "torchrun", "gloo", marks=needs_torch, id="torchrun"),
    ],
)
def test_ranks_of_a_launcher_measure_once_and_rank_0_alone_speaks(
    bench: Bench, tmp_path: Path, at: Environment, launcher: str, backend: str
) -> None:
    done = bench.run(*at.launcher(launcher, 2, at.commbench, *SWEEP, "--output", "one.jsonl"), limit=90)
    assert done.code == 0, done.err
    [run] = of_kind(tmp_path / "one.jsonl", "run")
    assert (run["backend"], run["ranks"], run["run"]) == (backend, 2, 1)
    assert sorted(record["bytes"] for record in records_of(tmp_path / "one.jsonl")) == SMALL_SIZES
    assert (done.out + done.err).count("allreduce sum · float32 · 2 ranks") == 1
    # Open MPI gives rank 0 a terminal; nobody sits at it.
    assert "\x1b" not in done.out


@pytest.mark.parametrize("backend", ["emulated", pytest.param("gloo", marks=needs_torch)])
def test_a_slurm_step_without_mpi_meets_at_its_first_host(bench: Bench, tmp_path: Path, backend: str) -> None:
    """Two processes with the variables of `srun -n2`; the real Slurm is tested with several hosts."""
    step = {
        "SLURM_JOB_ID": str(free_port()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    command = (HERE.commbench, *SWEEP, "--backend", backend, "--output", "slurm.jsonl")
    started = [
        bench.start(*command, environment=step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        for rank in range(2)
    ]
    outcomes = [one.wait(90) for one in started]
    assert [one.code for one in outcomes] == [0, 0], outcomes[0].err
    [run] = of_kind(tmp_path / "slurm.jsonl", "run")
    assert (run["launcher"], run["ranks"]) == ("slurm", 2)


@needs_mpich
def test_several_runs_asked_of_a_rank_are_refused_with_the_command_that_works(bench: Bench) -> None:
    done = bench.run(*HERE.launcher("mpiexec", 2, HERE.commbench, *SWEEP, "--runs", "3"))
    assert done.code == 2
    assert done.error == "--runs 3: this process is one rank of a launch, it cannot start others"
    assert done.hint.endswith("--runs 3 --launcher 'mpirun -n 2'")


@needs_mpich
def test_a_launcher_prefix_starts_every_run(bench: Bench, tmp_path: Path) -> None:
    prefix = " ".join(HERE.launcher("mpiexec", 2))
    done = bench.run(HERE.commbench, *SWEEP, "--runs", "2", "--launcher", prefix, "--output", "two.jsonl", limit=90)
    assert done.code == 0, done.err
    runs = of_kind(tmp_path / "two.jsonl", "run")
    assert [(run["run"], run["ranks"]) for run in runs] == [(1, 2), (2, 2)]
    assert len({run["session"] for run in runs}) == 1
    assert len({run["launch"] for run in runs}) == 2


@pytest.mark.parametrize(
    ("at", "launcher"),
    [
        pytest.param(HERE, "mpiexec", marks=needs_mpich, id="MPICH"),
        pytest.param(OPENMPI, "mpirun", marks=needs_openmpi, id="Open MPI"),
    ],
)
def test_a_usage_error_is_printed_once_for_all_ranks(bench: Bench, at: Environment, launcher: str) -> None:
    """Open MPI ends all ranks at the first that fails: the one that speaks must not be among those it ends."""
    done = bench.run(*at.launcher(launcher, 3, at.commbench, *SWEEP, "-f", "1"))
    assert done.code == 2
    assert done.error == "--factor 1 would never reach --max-bytes"
    assert done.hint == "use -f 2, or -i for a fixed step"


@needs_openmpi
@pytest.mark.skipif(
    any((OPENMPI.bin.parent / "lib").glob("python*/site-packages/torch")), reason="torch is in .venv-openmpi"
)
def test_a_missing_library_is_reported_once_a_host(bench: Bench) -> None:
    done = bench.run(*OPENMPI.launcher("mpirun", 2, OPENMPI.commbench, *SWEEP, "--backend", "gloo"))
    assert done.code == 1
    assert done.error == "--backend gloo: torch is not installed"
    assert done.hint == "pip install 'commbench[torch]'"


@needs_mpich
def test_an_output_that_only_rank_0_finds_to_be_there_does_not_keep_the_others_waiting(
    bench: Bench, tmp_path: Path
) -> None:
    """They would be in MPI_Init, where they wait for it for ever."""
    (tmp_path / "there.jsonl").write_text("precious\n")
    done = bench.run(*HERE.launcher("mpiexec", 2, HERE.commbench, *SWEEP, "--output", "there.jsonl"), limit=30)
    assert done.code == 1
    assert done.error == "there.jsonl: exists already"
    assert "--force" in done.hint
    assert (tmp_path / "there.jsonl").read_text() == "precious\n"


# -- terminals -----------------------------------------------------------------------------------------------------


def test_a_person_at_a_terminal_sees_the_table_fill(bench: Bench) -> None:
    options = (*SWEEP, "--backend", "emulated", "--runs", "1", "--total-budget", "10s")
    seen = bench.in_terminal(HERE.commbench, *options)
    assert seen.code == 0
    assert "\x1b[?25l" in seen.out  # the cursor goes,
    assert seen.out.rindex("\x1b[?25h") > seen.out.rindex("\x1b[?25l")  # and comes back
    assert "of 5 points" in seen.out
    assert seen.out.count("algbw") > 2  # the live table more than once, and the one that stays


def test_no_color_is_minded(bench: Bench) -> None:
    options = (*SWEEP, "--backend", "emulated", "--runs", "1")
    seen = bench.in_terminal(HERE.commbench, *options, environment={"NO_COLOR": "1"})
    assert seen.code == 0
    assert "\x1b[1;31m" not in seen.out
    assert "\x1b[33m" not in seen.out


@needs_torch
def test_ranks_that_a_script_starts_by_hand_meet_and_print_plain_lines_even_at_a_terminal(
    bench: Bench, tmp_path: Path
) -> None:
    """By their variables, as under torchrun, which hands its ranks the terminal that it has itself."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    command = (HERE.commbench, *SWEEP, "--output", "hand.jsonl")
    other = bench.start(*command, environment=where | {"RANK": "1", "LOCAL_RANK": "1"})
    seen = bench.in_terminal(*command, environment=where | {"RANK": "0", "LOCAL_RANK": "0"})
    silent = other.wait(30)
    assert (seen.code, silent.code) == (0, 0), seen.out
    assert silent.out + silent.err == ""
    assert "run 1 of 1: 5 points, 2 ranks" in seen.out
    assert "\x1b" not in seen.out
    [run] = of_kind(tmp_path / "hand.jsonl", "run")
    assert (run["backend"], run["ranks"]) == ("gloo", 2)
    wrong = bench.in_terminal(
        HERE.commbench, "sweep", "--op", "alreduce", environment=where | {"RANK": "0", "LOCAL_RANK": "0"}
    )
    assert wrong.out.startswith("error: --op: unknown operation 'alreduce'")
    assert "\x1b" not in wrong.out


@needs_mpich
@needs_openmpi
@pytest.mark.parametrize(("launcher", "library"), [(HERE, OPENMPI), (OPENMPI, HERE)], ids=["MPICH's", "Open MPI's"])
def test_a_launcher_of_another_mpi_is_named_before_mpi_starts(
    bench: Bench, launcher: Environment, library: Environment
) -> None:
    done = bench.run(*launcher.launcher("mpirun", 2, library.commbench, *SWEEP, "--output", "m.jsonl"), limit=30)
    assert done.code != 0
    assert not (bench.folder / "m.jsonl").exists()
    flavour = "MPICH" if launcher is HERE else "Open MPI"
    assert f"the launcher is {flavour}'s, but mpi4py loads" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("prefix", "says"),
    [("no-such-launcher -n 2", "cannot be started"), ("false", "exit status 1"), ("echo", "exit status 0")],
)
def test_a_launcher_that_starts_nothing_is_one_line(bench: Bench, prefix: str, says: str) -> None:
    done = bench.sweep("--op", "allreduce", "--backend", "emulated", *SMALL, "--launcher", prefix)
    assert done.code == 1
    assert says in done.error
    assert "doctor" in done.hint


@needs_mpich
@needs_openmpi
def test_a_launcher_prefix_of_another_mpi_is_named_and_nothing_is_said_to_be_kept(bench: Bench) -> None:
    prefix = " ".join(OPENMPI.launcher("mpirun", 2))
    done = bench.sweep("--op", "allreduce", "--backend", "mpi", *SMALL, "--launcher", prefix, "--output", "m.jsonl")
    assert done.code == 1
    assert done.error.startswith("the launcher is Open MPI's, but mpi4py loads MPICH")
    assert "kept" not in done.err
    assert not (bench.folder / "m.jsonl").exists()
