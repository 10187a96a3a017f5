"""One suite over all back ends: every operation, form, type and reduction gives the exact answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from commbench.measure.devices import nvidia_gpus
from tests import doubles
from tests.launching import (
    HERE,
    OPENMPI,
    ROOT,
    Bench,
    Environment,
    a_bench,
    free_port,
    needs_mpich,
    needs_openmpi,
    needs_torch,
)

pytestmark = pytest.mark.launch

# By hand from `every_operation`: three sizes; ten kinds with hot buffers, of which the first three rotated too.
#
#           forms that move                            forms that reduce
# MPI       2 allgather 2 alltoall 1 alltoallv         2 allreduce 2 reduce_scatter 2 reduce = 6,
#           1 broadcast 2 gather 2 scatter             for 7 kinds (no bfloat16, no avg), 2 of the rotated
#           1 sendrecv 2 p2p = 13
# Gloo      2 1 1 1 1 1 1 2 = 10                       1 1 1 = 3, for all 10
# NCCL      2 1 1 2 2 2 1 2 = 13                       2 2 2 = 6, for all 10
# emulated  2 2 2 2 2 2 2 4 = 18                       2 2 2 = 6, for all 10
MPI_POINTS = 3 * (10 * 13 + 7 * 6) + 3 * (3 * 13 + 2 * 6)
GLOO_POINTS = 3 * 10 * (10 + 3) + 3 * 3 * (10 + 3)
NCCL_POINTS = 3 * 10 * (13 + 6) + 3 * 3 * (13 + 6)
EMULATED_POINTS = 3 * 10 * (18 + 6) + 3 * 3 * (18 + 6)

# More ranks than cores take turns, and MPICH spins on shared memory while it waits: six seconds a message. Through
# sockets, as between hosts, a waiting rank sleeps.
TAKING_TURNS = {"MPIR_CVAR_NOLOCAL": "1"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


def program(at: Environment, *options: str, module: str = "every_operation") -> list[str]:
    return [at.python, "-W", "error", "-m", f"tests.backends.{module}", *options]


def answers_of_mpi(
    bench: Bench, at: Environment, loop: str, ranks: int, *where: str, **environment: str
) -> tuple[int, list[str]]:
    """(points, what was wrong with them on any rank)."""
    launcher = at.launcher("mpiexec", ranks)
    environment["PYTHONPATH"] = os.pathsep.join([*filter(None, [environment.get("PYTHONPATH")]), str(ROOT)])
    done = bench.run(*launcher, *program(at, "mpi", loop, *where), environment=environment, limit=150)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    return said["points"], said["wrong"]


def answers(
    bench: Bench,
    backend: str,
    ranks: int,
    loop: str = "auto",
    around: Mapping[str, str] = MappingProxyType({}),
    module: str = "every_operation",
) -> tuple[int, list[str]]:
    """Likewise of a back end whose ranks are children with RANK and WORLD_SIZE, in an environment."""
    where = dict(around) | {
        "PYTHONPATH": os.pathsep.join([*filter(None, [around.get("PYTHONPATH")]), str(ROOT)]),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks), "COMMBENCH_PARENT": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    started = [
        bench.start(
            *program(HERE, backend, loop, module=module),
            environment=where | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    outcomes = [one.wait(150) for one in started]
    assert [one.code for one in outcomes] == [0] * ranks, outcomes[0].err
    said = json.loads(outcomes[0].out)
    return said["points"], said["wrong"]


@needs_mpich
@pytest.mark.parametrize("loop", ["compiled", "python"])
def test_mpich_is_right_with_two_ranks(bench: Bench, loop: str) -> None:
    assert answers_of_mpi(bench, HERE, loop, 2) == (MPI_POINTS, [])


@needs_mpich
def test_mpich_is_right_with_more_ranks_than_cores(bench: Bench) -> None:
    assert answers_of_mpi(bench, HERE, "compiled", 3, **TAKING_TURNS) == (MPI_POINTS, [])


@needs_openmpi
@pytest.mark.parametrize(("loop", "ranks"), [("compiled", 2), ("compiled", 3), ("python", 3)])
def test_open_mpi_is_right(bench: Bench, loop: str, ranks: int) -> None:
    assert answers_of_mpi(bench, OPENMPI, loop, ranks) == (MPI_POINTS, [])


def a_machine_whose_mpi_is_aware() -> dict[str, str]:
    """MPI's own code moves what the doubles call a GPU's memory, which is the host's."""
    folder = doubles.built()
    return doubles.machine(folder, 2, around={}) | {"LD_PRELOAD": str(folder / "aware/libaware.so")}


@needs_mpich
@doubles.needs_compiler
@pytest.mark.parametrize("where", ["cuda", "staged"])
def test_mpich_is_right_on_the_memory_of_gpus(bench: Bench, where: str) -> None:
    found = answers_of_mpi(bench, HERE, "compiled", 2, where, **a_machine_whose_mpi_is_aware())
    assert found == (MPI_POINTS, [])


@needs_openmpi
@doubles.needs_compiler
@pytest.mark.parametrize("where", ["cuda", "staged"])
def test_open_mpi_is_right_on_the_memory_of_gpus(bench: Bench, where: str) -> None:
    found = answers_of_mpi(bench, OPENMPI, "compiled", 2, where, **a_machine_whose_mpi_is_aware())
    assert found == (MPI_POINTS, [])


@needs_torch
@pytest.mark.parametrize("ranks", [2, 3])
def test_gloo_is_right(bench: Bench, ranks: int) -> None:
    assert answers(bench, "gloo", ranks) == (GLOO_POINTS, [])


@doubles.needs_compiler
@pytest.mark.parametrize(
    ("nccl", "loop", "ranks"), [("new", "compiled", 2), ("new", "python", 3), ("old", "compiled", 3)]
)
def test_the_calls_of_nccl_are_right_by_its_header(bench: Bench, nccl: str, loop: str, ranks: int) -> None:
    machine = doubles.machine(doubles.built(), ranks, nccl=nccl, around={})
    assert answers(bench, "nccl", ranks, loop, machine) == (NCCL_POINTS, [])


@needs_torch
@doubles.needs_compiler
def test_what_torch_puts_around_nccl_is_right_as_far_as_gloo_can_show(bench: Bench) -> None:
    machine = doubles.machine(doubles.built(), 2, around={})
    found = answers(bench, "torch-nccl", 2, around=machine, module="torch_on_gloo")
    assert found == (GLOO_POINTS, [])


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_emulated_back_end_keeps_the_contract(bench: Bench, ranks: int) -> None:
    assert answers(bench, "emulated", ranks) == (EMULATED_POINTS, [])


needs_gpu = pytest.mark.skipif(not nvidia_gpus(), reason="no NVIDIA GPU here: the doubles above stand in")


@needs_gpu
@pytest.mark.parametrize("backend", ["nccl", "torch-nccl"])
def test_a_real_gpu_gives_the_same_answers(bench: Bench, backend: str) -> None:
    done = answers(bench, backend, len(nvidia_gpus()))
    assert done[1] == []
