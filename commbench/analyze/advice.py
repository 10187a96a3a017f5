"""Which knob of a library chooses its algorithms, for the sentence "what to try"."""

from __future__ import annotations

from commbench.spec import Point

# The functions that carry these operations, as libraries spell them in variables.
_MPI_NAMES = {"broadcast": "bcast", "reduce_scatter": "reduce_scatter_block"}
_POINT_TO_POINT = ("p2p", "sendrecv")


def knob(key: Point, library: str) -> str:
    """The environment variables that choose the algorithm of `key`'s operation, "" where none is known.

    `library` is the version text of the results file: MPICH, Open MPI and Intel MPI have different ones.
    """
    if "nccl" in key.backend:
        return "NCCL_ALGO and NCCL_PROTO"
    if key.backend != "mpi":
        return ""
    if key.op in _POINT_TO_POINT:
        return "UCX_RNDV_THRESH, where UCX carries the messages"
    name = _MPI_NAMES.get(key.op, key.op)
    spellings = {
        "MPICH": f"MPIR_CVAR_{name.upper()}_INTRA_ALGORITHM",
        "Open MPI": f"OMPI_MCA_coll_tuned_use_dynamic_rules=1 and OMPI_MCA_coll_tuned_{name}_algorithm",
        "Intel": f"I_MPI_ADJUST_{name.upper()}",
    }
    return next((spelling for start, spelling in spellings.items() if library.startswith(start)), "")


def another_algorithm(key: Point, library: str) -> str:
    """The words "try another algorithm (VARIABLE)", without the bracket where no variable is known."""
    found = knob(key, library)
    return f"try another algorithm ({found})" if found else "try another algorithm, if the library lets you choose"
