"""MPI on GPUs as a user meets it: real MPIs, which are not CUDA-aware, on the machine of `tests.doubles`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import doubles
from tests.launching import (
    HERE,
    OPENMPI,
    Bench,
    Environment,
    Outcome,
    a_bench,
    needs_mpich,
    needs_openmpi,
    of_kind,
    records_of,
)

pytestmark = [pytest.mark.launch, doubles.needs_compiler]

FEW = ("--total-budget", "300ms", "--runs", "1", "--no-plot", "-b", "8", "-e", "4K", "-f", "64")
ON_GPUS = ("--backend", "mpi", "--device", "cuda", "--ranks", "2", "--output", "it.jsonl", *FEW)
MPIS = [
    pytest.param(HERE, id="MPICH", marks=needs_mpich),
    pytest.param(OPENMPI, id="Open MPI", marks=needs_openmpi),
]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


def machine(*, aware: bool = False, gpus: int = 2, **knobs: Any) -> dict[str, str]:
    folder = doubles.built()
    found = doubles.machine(folder, gpus, around={}, **knobs)
    return found | ({"LD_PRELOAD": str(folder / "aware/libaware.so")} if aware else {})


def sweep(bench: Bench, *options: str, at: Environment = HERE, limit: float = 60, **knobs: Any) -> Outcome:
    return bench.sweep(*options, environment=machine(**knobs), at=at, limit=limit)


@pytest.mark.parametrize("at", MPIS)
def test_an_mpi_that_is_not_cuda_aware_is_refused_before_it_crashes(bench: Bench, at: Environment) -> None:
    done = sweep(bench, "--op", "allreduce", *ON_GPUS, at=at)
    assert done.code == 1
    assert "is not CUDA-aware here" in done.error
    assert "--staged" in done.error
    assert "Traceback" not in done.err


@needs_openmpi
def test_cuda_that_is_built_in_and_switched_off_is_told_how_to_be_switched_on(bench: Bench) -> None:
    done = sweep(bench, "--op", "allreduce", *ON_GPUS, at=OPENMPI, aware=True, mpi_cuda=0)
    assert done.code == 1
    assert "has CUDA built in, but switched off (export OMPI_MCA_opal_cuda_support=true" in done.error


@needs_mpich
def test_a_rank_a_gpu_in_the_way_that_is_usual_there(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, "--op", "allreduce,p2p", *ON_GPUS, aware=True)
    assert done.code == 0, done.err
    assert "mpi on GPUs (--backend): 2 ranks" in done.err
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert [rank["gpu"]["index"] for rank in run["placement"]] == [0, 1]
    assert run["libraries"]["cupy"] == "14.2.0"
    assert "mpi" in run["libraries"]
    for record in records_of(tmp_path / "it.jsonl"):
        assert (record["device"], record["mode"], record["cache"]) == ("cuda", "pipe", "rotated")
        assert (record["check"], record["how"]["loop"]) == ("ok", "compiled")
        assert record["how"]["device_hertz"] == 1755e6
        assert record["how"]["slices"] > 1


@needs_mpich
def test_mpi4pys_own_methods_take_cupys_arrays_too(bench: Bench, tmp_path: Path) -> None:
    options = ("--op", "all", "--in-place", "both", "--loop", "python", "--cache", "hot", *ON_GPUS)
    done = sweep(bench, *options, aware=True)
    assert done.code == 0, done.err
    records = records_of(tmp_path / "it.jsonl")
    assert {(record["how"]["loop"], record["check"]) for record in records} == {("python", "ok")}
    assert len({record["op"] for record in records}) == 11


@pytest.mark.parametrize("at", MPIS)
def test_staged_works_with_any_mpi_and_its_points_say_so(bench: Bench, tmp_path: Path, at: Environment) -> None:
    done = sweep(bench, "--op", "allreduce,p2p", "--mode", "sync", "--staged", *ON_GPUS, at=at)
    assert done.code == 0, done.err
    found = {(record["op"], record["variant"], record["check"]) for record in records_of(tmp_path / "it.jsonl")}
    assert found == {("allreduce", "staged", "ok"), ("p2p", "pair=0,1;staged", "ok")}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--op", "allreduce", "--backend", "nccl", "--staged"), "--staged copies GPU memory through the host"),
        (("--op", "allreduce", "--backend", "mpi", "--staged"), "--staged copies GPU memory through the host"),
        (("--op", "p2p", "--staged", *ON_GPUS), "a p2p message waits for its copies"),
        (("--op", "allreduce", "--mode", "graph", *ON_GPUS), "--mode: mpi can do sync, pipe"),
        (("--op", "allreduce", "--backend", "gloo", "--device", "cuda"), "--device cuda: gloo works on cpu"),
    ],
)
@needs_mpich
def test_what_makes_no_sense_is_refused_before_any_rank_exists(
    bench: Bench, options: tuple[str, ...], said: str
) -> None:
    done = sweep(bench, *options)
    assert done.code == 2
    assert said in done.error


@needs_mpich
@pytest.mark.parametrize(
    ("knobs", "options", "said"),
    [
        ({"cuda": False}, (), "no NVIDIA driver here"),
        ({"cupy": False}, (), "CuPy cannot be imported"),
        ({"gpus": 0}, (), "no GPU is visible"),
        ({"driver": 11040}, (), "the driver is too old"),
        ({"nvrtc": "missing"}, (), "CuPy cannot compile its kernels"),
        ({}, ("--staged", "--loop", "python"), "--staged: its copies are steps of the compiled loop"),
    ],
    ids=["no driver", "no CuPy", "no GPU", "old driver", "no NVRTC", "no compiled loop"],
)
def test_what_it_needs_and_is_not_there_is_named(
    bench: Bench, knobs: dict[str, Any], options: tuple[str, ...], said: str
) -> None:
    done = sweep(bench, "--op", "allreduce", *ON_GPUS, *options, aware=True, **knobs)
    assert done.code == 1
    assert said in done.error
    assert "Traceback" not in done.err


@needs_mpich
def test_a_size_that_does_not_fit_fails_alone(bench: Bench, tmp_path: Path) -> None:
    options = ("--op", "allreduce", *ON_GPUS, "-b", "2M", "-e", "128M", "-f", "64")
    done = sweep(bench, *options, aware=True, gpu_memory=700_000_000)
    assert done.code == 1
    assert {record["bytes"]: record["status"] for record in records_of(tmp_path / "it.jsonl")} == {
        2 << 20: "ok", 128 << 20: "failed",
    }  # fmt: skip
    assert "allreduce at 128M: needs 256M of GPU memory" in done.err


@needs_mpich
def test_a_launcher_that_hides_the_place_on_the_node_is_noted(bench: Bench, tmp_path: Path) -> None:
    # MPI_Init comes before the ranks can tell each other where they are.
    hidden = ("env", "-u", "MPI_LOCALRANKID", HERE.commbench, "sweep", "--op", "allreduce")
    options = [option for option in ON_GPUS if option not in ("--ranks", "2")]
    done = bench.run(*HERE.launcher("mpiexec", 2, *hidden, *options), environment=machine(aware=True))
    assert done.code == 0, done.err
    assert "1 of 2 ranks started MPI on another GPU than they measure" in done.err
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert [rank["gpu"]["index"] for rank in run["placement"]] == [0, 1]
