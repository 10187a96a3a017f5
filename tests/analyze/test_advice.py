"""The names are the libraries' own: `mpivars` of MPICH 5, and the manuals of Open MPI, Intel MPI, UCX and NCCL."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.analyze.advice import another_algorithm, knob


@pytest.mark.parametrize(
    ("changes", "library", "name"),
    [
        ({"op": "allreduce"}, "MPICH 5.0.2", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"),
        ({"op": "broadcast"}, "MPICH 5.0.2", "MPIR_CVAR_BCAST_INTRA_ALGORITHM"),
        ({"op": "reduce_scatter"}, "MPICH 5.0.2", "MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM"),
        ({"op": "alltoall"}, "Open MPI v5.0.11", "OMPI_MCA_coll_tuned_alltoall_algorithm"),
        ({"op": "allgather"}, "Intel(R) MPI Library 2021.11", "I_MPI_ADJUST_ALLGATHER"),
        ({"op": "p2p"}, "MPICH 5.0.2", "UCX_RNDV_THRESH"),
        ({"backend": "nccl"}, "NCCL 2.27", "NCCL_ALGO and NCCL_PROTO"),
        ({"backend": "torch-nccl"}, "", "NCCL_ALGO and NCCL_PROTO"),
    ],
)
def test_each_library_has_its_own_variable(record: Any, changes: dict[str, Any], library: str, name: str) -> None:
    assert name in knob(record(**changes).point, library)


@pytest.mark.parametrize(("backend", "library"), [("gloo", "Gloo"), ("mpi", ""), ("emulated", "")])
def test_no_variable_is_invented(record: Any, backend: str, library: str) -> None:
    point = record(backend=backend).point

    assert knob(point, library) == ""
    assert another_algorithm(point, library) == "try another algorithm, if the library lets you choose"
