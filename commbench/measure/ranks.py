"""Is this process a rank, and which? Read from the environment, in one stated order.

1. torchrun and our own children: RANK, WORLD_SIZE and LOCAL_RANK, all three (some training pods use RANK alone
   for the node);
2. MPI launchers: OMPI_COMM_WORLD_*, PMI_*, PMIX_* ;
3. Slurm.

What Slurm itself says, by its own PMI too, counts inside a step of two tasks or more: a batch script and the shell
of `srun --pty bash` carry SLURM_PROCID=0 and hand it to all they start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from commbench.backends.base import World

PARENT_MARK = "COMMBENCH_PARENT"
"""Set by our own launch, so that its children are not taken for torchrun's."""

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_SLURM_PORTS = 20_000, 40_000


def from_environment(environment: Mapping[str, str] = os.environ) -> World | None:
    """This process as a rank of somebody's launcher, or None: it was started alone."""
    return _from_torchrun(environment) or _from_mpi(environment) or _from_slurm(environment)


def speaks(environment: Mapping[str, str] = os.environ, *, per_node: bool = False) -> bool:
    """Whether this process may print errors: alone, or the lowest rank, of all or `per_node`."""
    world = from_environment(environment)
    return world is None or (world.local_rank if per_node else world.rank) == 0


def _from_torchrun(env: Mapping[str, str]) -> World | None:
    if not all(env.get(name, "").isdigit() for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return None
    return World(
        rank=int(env["RANK"]),
        size=int(env["WORLD_SIZE"]),
        local_rank=int(env["LOCAL_RANK"]),
        local_size=_number(env, "LOCAL_WORLD_SIZE"),
        launcher="parent" if PARENT_MARK in env else "torchrun",
        address=env.get("MASTER_ADDR", ""),
        port=_number(env, "MASTER_PORT"),
    )


def _from_mpi(env: Mapping[str, str]) -> World | None:
    tasks = _number(env, "SLURM_STEP_NUM_TASKS")
    if "OMPI_COMM_WORLD_RANK" in env:
        names = (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        )
    elif "PMI_RANK" in env and "PMI_SIZE" in env and ("MPI_LOCALNRANKS" in env or tasks != 1):
        # Hydra's; HPE's PALS and Slurm have PMI too, and their own words for the place on the node.
        place = ("MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID")
        names = "PMI_RANK", "PMI_SIZE", next((name for name in place if name in env), place[0]), "MPI_LOCALNRANKS"
    elif "PMIX_RANK" in env and tasks > 1:
        names = "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""
    else:
        return None
    rank, size, local_rank, local_size = (_number(env, name) for name in names)
    return World(rank, size, local_rank, local_size, "mpi")


def _from_slurm(env: Mapping[str, str]) -> World | None:
    size = _number(env, "SLURM_STEP_NUM_TASKS")
    if "SLURM_PROCID" not in env or not env.get("SLURM_STEP_ID", "").isdigit() or size < 2:  # noqa: PLR2004
        return None
    low, high = _SLURM_PORTS
    return World(
        rank=int(env["SLURM_PROCID"]),
        size=size,
        local_rank=_number(env, "SLURM_LOCALID"),
        local_size=0,
        launcher="slurm",
        address=env.get("MASTER_ADDR") or first_host(env.get("SLURM_STEP_NODELIST", "")),
        # Every rank must come to the same port without a word between them; steps of one job differ in the id.
        port=_number(env, "MASTER_PORT")
        or low + (_number(env, "SLURM_JOB_ID") * 31 + _number(env, "SLURM_STEP_ID")) % (high - low),
    )


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list: "gpu[03-05,9],login" begins with "gpu03"."""
    match = re.match(r"([^\[,]+)(?:\[([0-9]+))?", nodes)
    return match[1] + (match[2] or "") if match else ""


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else 0
