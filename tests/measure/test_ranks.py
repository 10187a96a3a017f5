"""Who this process is, from the variables that launchers set; each block is what the real one sets."""

from __future__ import annotations

import pytest

from commbench.backends.base import World
from commbench.measure.ranks import PARENT_MARK, first_host, from_environment, speaks

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "PMI_FD": "7", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
# srun of two nodes with two tasks each, the third of them.
SLURM = {
    "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
# sbatch: the variables of a task, though the script is none; everything it starts inherits them.
BATCH_SCRIPT = {"SLURM_JOB_ID": "1000", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
# srun --pty bash: a step of one task, whose shell hands its variables to whatever is typed.
SHELL = SLURM | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}


def test_without_a_launcher_nobody_is_a_rank() -> None:
    assert from_environment({}) is None
    assert from_environment({"PATH": "/bin", "HOME": "/root"}) is None


def test_torchrun_says_everything() -> None:
    assert from_environment(TORCHRUN) == World(5, 8, 1, 4, "torchrun", "node1", 29500)


def test_our_own_children_are_not_taken_for_torchruns() -> None:
    assert from_environment(TORCHRUN | {PARENT_MARK: "1"}) == World(5, 8, 1, 4, "parent", "node1", 29500)


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_a_rank_without_world_or_place_is_not_torchruns(missing: str) -> None:
    """Training pods number their nodes by RANK alone."""
    assert from_environment({name: value for name, value in TORCHRUN.items() if name != missing}) is None
    assert from_environment(TORCHRUN | {missing: "all"}) is None


def test_open_mpi_says_world_and_node() -> None:
    assert from_environment(OPEN_MPI) == World(3, 4, 1, 2, "mpi")


def test_mpich_says_world_and_node() -> None:
    assert from_environment(MPICH) == World(2, 4, 2, 4, "mpi")


def test_slurm_with_pmi_starts_ranks_of_mpi() -> None:
    assert from_environment(SLURM | {"PMI_RANK": "2", "PMI_SIZE": "4"}) == World(2, 4, 0, 0, "mpi")
    assert from_environment(SLURM | {"PMIX_RANK": "2"}) == World(2, 4, 0, 0, "mpi")


def test_the_place_on_the_node_is_told_by_whoever_knows_it() -> None:
    # A GPU is chosen by it before MPI_Init, so before the ranks can ask each other.
    pals = {"PMI_RANK": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "4"}
    slurm = SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_LOCALID": "1"}
    for environment, rank in ((pals, 5), (slurm, 3)):
        world = from_environment(environment)
        assert world is not None
        assert (world.launcher, world.rank, world.local_rank) == ("mpi", rank, 1)


def test_slurm_alone_gives_a_meeting_place_that_all_tasks_find() -> None:
    """Port: 20000 + (31 · job + step) mod 20000 = 20000 + 31003 mod 20000."""
    assert from_environment(SLURM) == World(2, 4, 0, 0, "slurm", "gpu03", 31003)
    assert from_environment(SLURM | {"SLURM_PROCID": "0"}) == World(0, 4, 0, 0, "slurm", "gpu03", 31003)


def test_two_steps_of_a_job_meet_at_different_ports() -> None:
    ports = {world.port for step in "0123" if (world := from_environment(SLURM | {"SLURM_STEP_ID": step}))}

    assert len(ports) == 4


def test_the_user_may_choose_the_meeting_place_under_slurm() -> None:
    world = from_environment(SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"})

    assert world is not None
    assert (world.address, world.port) == ("10.0.0.1", 5000)


def test_torchrun_comes_before_mpi_and_mpi_before_slurm() -> None:
    def launcher(*environments: dict[str, str]) -> str:
        merged: dict[str, str] = {}
        for environment in environments:
            merged |= environment
        world = from_environment(merged)
        assert world is not None
        return world.launcher

    assert launcher(SLURM, OPEN_MPI, TORCHRUN) == "torchrun"
    assert launcher(SLURM, MPICH) == "mpi"
    assert launcher(SLURM, OPEN_MPI) == "mpi"
    assert launcher(SLURM) == "slurm"


def test_a_batch_script_is_not_a_rank() -> None:
    assert from_environment(BATCH_SCRIPT) is None


def test_a_shell_that_srun_opened_is_not_a_rank() -> None:
    """Also where the cluster's srun speaks PMI by default."""
    assert from_environment(SHELL) is None
    assert from_environment(SHELL | {"PMIX_RANK": "0"}) is None
    assert from_environment(SHELL | {"PMI_RANK": "0", "PMI_SIZE": "1"}) is None


def test_ranks_of_mpiexec_inside_a_batch_script_or_a_shell_are_ranks() -> None:
    for around in (BATCH_SCRIPT, SHELL):
        assert from_environment(around | MPICH) == World(2, 4, 2, 4, "mpi")
        assert from_environment(around | OPEN_MPI) == World(3, 4, 1, 2, "mpi")


def test_one_rank_of_mpiexec_is_a_rank() -> None:
    one = {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}

    assert from_environment(one) == from_environment(SHELL | one) == World(0, 1, 0, 1, "mpi")


def test_the_lowest_rank_speaks_and_so_does_who_is_alone() -> None:
    assert speaks({})
    assert speaks(TORCHRUN | {"RANK": "0"})
    assert not speaks(TORCHRUN)
    assert not speaks(MPICH)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu03", "gpu03"),
        ("gpu03,login", "gpu03"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("rack1-gpu[1-2]", "rack1-gpu1"),
        ("node-a,node-b", "node-a"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_node_list_is_found(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
