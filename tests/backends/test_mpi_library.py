"""Whose MPI it is, from texts and variables; MPI itself is not loaded here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from commbench.backends import BACKENDS, about
from commbench.backends.mpi_call import _signed
from commbench.backends.mpi_library import _version, flavour, launcher_flavour
from commbench.errors import UsageError


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: x\n", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11\0", "Open MPI v5.0.11"),
        ("MVAPICH2 Version      :\t2.3.7\n", "MVAPICH2 Version : 2.3.7"),
    ],
)
def test_a_library_names_itself_in_one_line(library: str, line: str) -> None:
    assert _version(SimpleNamespace(Get_library_version=lambda: library)) == line


@pytest.mark.parametrize(
    ("version", "whose"),
    [
        ("MPICH 5.0.2", "MPICH"),
        ("Open MPI v5.0.11", "Open MPI"),
        ("Intel(R) MPI Library 2021.11", "MPICH"),
        ("MVAPICH2 2.3.7", "MPICH"),
        ("MPI VERSION    : CRAY MPICH version 8.1", "MPICH"),
        ("HPE MPT 2.28", ""),
    ],
)
def test_libraries_that_start_alike_have_one_flavour(version: str, whose: str) -> None:
    assert flavour(version) == whose


@pytest.mark.parametrize(
    ("environment", "whose"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, "Open MPI"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, "MPICH"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "HYDI_CONTROL_FD": "7"}, "MPICH"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "0"}, ""),  # srun --mpi=pmi2 starts any of them
        ({}, ""),
    ],
)
def test_a_launcher_is_known_by_the_variables_that_only_it_sets(environment: dict[str, str], whose: str) -> None:
    assert launcher_flavour(environment) == whose


def test_a_handle_is_passed_on_as_the_64_bits_it_is() -> None:
    """MPICH's handles are numbers and MPI_IN_PLACE is -1 there; Open MPI's are addresses, which may look negative."""
    assert _signed((1 << 64) - 1) == _signed(-1) == -1
    assert _signed(1 << 63) == -(1 << 63)
    assert _signed(0x4C000430) == 0x4C000430


def test_an_unknown_back_end_is_answered_with_the_list() -> None:
    with pytest.raises(UsageError, match="unknown back end 'nvlink'") as caught:
        about("nvlink")
    assert caught.value.hint == f"one of: auto, {', '.join(BACKENDS)}"
