"""The commands on a machine with GPUs, which is made of C and Python: `tests.doubles` says what that cannot show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import doubles
from tests.launching import HERE, Bench, Outcome, a_bench, needs_mpich, needs_torch, of_kind, records_of

pytestmark = [pytest.mark.launch, doubles.needs_compiler]

# Calibrating takes 1,024 calls of NCCL: faults come after them.
FEW = ("--total-budget", "300ms", "--runs", "1", "--no-plot", "-b", "8", "-e", "4K", "-f", "64")
ALLREDUCE = ("--op", "allreduce", "--ranks", "2", "--output", "it.jsonl", *FEW)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


def sweep(bench: Bench, *options: str, gpus: int = 2, limit: float = 60, **knobs: Any) -> Outcome:
    machine = doubles.machine(doubles.built(), gpus, around={}, **knobs)
    return bench.sweep(*options, environment=machine, limit=limit)


def test_a_machine_with_gpus_is_measured_through_nccl_a_rank_a_gpu(bench: Bench, tmp_path: Path) -> None:
    done = sweep(
        bench, "--op", "allreduce", "--output", "it.jsonl", "--total-budget", "300ms", "--runs", "1", "-e", "64"
    )
    assert done.code == 0, done.err
    assert "nccl on GPUs (2 GPUs here): 2 ranks" in done.err
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert run["libraries"] | {
        "nccl": "NCCL 2.30.7", "nccl_built": "2.30.7+cuda12.9", "cuda_driver": "12.9", "cuda_runtime": "12.9",
    } == run["libraries"]  # fmt: skip
    assert run["libraries"]["nccl_file"] == str(doubles.library(doubles.built()))
    gpus = [rank["gpu"] for rank in run["placement"]]
    assert [gpu["index"] for gpu in gpus] == [0, 1]
    assert len({gpu["uuid"] for gpu in gpus}) == 2
    assert "AMD" in done.out or "NVIDIA H100 80GB HBM3" in done.out
    record = records_of(tmp_path / "it.jsonl")[0]
    # What is usual on GPUs: nccl-tests' way.
    assert (record["device"], record["mode"], record["cache"], record["in_place"]) == ("cuda", "pipe", "rotated", False)
    assert (record["check"], record["how"]["loop"], record["how"]["calls"]) == ("ok", "compiled", "native")
    assert record["how"]["host_seconds"] > 0
    assert record["how"]["device_hertz"] == 1755e6


def test_every_operation_goes_through_all_modes(bench: Bench, tmp_path: Path) -> None:
    done = sweep(
        bench, "--op", "all", "--mode", "sync,pipe,graph", "--ranks", "2", "--output", "it.jsonl", *FEW, limit=120
    )
    assert done.code == 0, done.err
    records = records_of(tmp_path / "it.jsonl")
    assert {record["op"] for record in records} >= {"allreduce", "alltoallv", "gather", "p2p", "sendrecv"}
    assert {record["check"] for record in records} == {"ok"}
    assert len(records) == 11 * 3 * 2


def test_collectives_that_an_older_nccl_lacks_are_messages_and_the_record_says_so(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, "--op", "alltoall,gather,scatter,allgather", "--ranks", "2", "--output", "it.jsonl", *FEW,
                 nccl="old")  # fmt: skip
    assert done.code == 0, done.err
    assert {(record["op"], record["how"]["calls"]) for record in records_of(tmp_path / "it.jsonl")} == {
        ("alltoall", "grouped send/recv"), ("gather", "grouped send/recv"), ("scatter", "grouped send/recv"),
        ("allgather", "native"),
    }  # fmt: skip


def test_another_build_of_nccl_is_measured_and_named(bench: Bench, tmp_path: Path) -> None:
    other = doubles.library(doubles.built(), "old")
    done = sweep(bench, *ALLREDUCE, "--nccl-lib", str(other))
    assert done.code == 0, done.err
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert (run["libraries"]["nccl"], run["libraries"]["nccl_file"]) == ("NCCL 2.27.3", str(other))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("missing.so", "no such file"),
        (".", "no such file"),
        ("text.so", "libnccl cannot be loaded"),
        ("elf32.so", "wrong ELF class: ELFCLASS32"),
        ("another.so", "is not NCCL: it has no ncclCommInitRank"),
    ],
)
@pytest.mark.parametrize("backend", ["nccl", pytest.param("torch-nccl", marks=needs_torch)])
def test_what_is_no_nccl_is_refused_in_one_line(
    bench: Bench, tmp_path: Path, backend: str, file: str, said: str
) -> None:
    (tmp_path / "text.so").write_text("not a library")
    (tmp_path / "elf32.so").write_bytes(b"\x7fELF\x01\x01\x01".ljust(64, b"\0"))
    (tmp_path / "another.so").symlink_to(doubles.built() / "aware/libaware.so")
    done = sweep(bench, *ALLREDUCE, "--backend", backend, "--nccl-lib", file)
    assert done.code == 1
    assert said in done.error
    assert "Traceback" not in done.err


@needs_mpich
def test_under_a_launcher_each_rank_refuses_it_in_a_line_of_its_own(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    options = ("--op", "allreduce", "--backend", "nccl", "--nccl-lib", "text.so", "--output", "it.jsonl", *FEW)
    done = bench.run(
        *HERE.launcher("mpiexec", 2, HERE.commbench, "sweep", *options),
        environment=doubles.machine(doubles.built(), 2, around={}),
    )
    assert done.code == 1
    said = [line for line in done.err.splitlines() if "libnccl cannot be loaded" in line]
    assert 1 <= len(said) <= 2, done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("knobs", "said", "advice"),
    [
        ({"gpus": 1}, "--ranks 2: there is only 1 GPU", "--allow-shared-gpu"),
        ({"gpus": 0}, "no GPU is visible", "CUDA_VISIBLE_DEVICES"),
        ({"cuda": False}, "no NVIDIA driver here", "--gpus all"),
        ({"driver": 11040}, "the driver is too old", "update NVIDIA's driver"),
        ({"cupy": False}, "cupy is not installed", "commbench[cuda12]"),
        ({"nccl": ""}, "libnccl cannot be loaded", "--nccl-lib"),
        ({"nvrtc": "missing"}, "CuPy cannot compile its kernels", "[ctk]"),
    ],
    ids=["too few GPUs", "no GPU", "no driver", "old driver", "no CuPy", "no NCCL", "no NVRTC"],
)
def test_what_a_gpu_needs_and_is_not_there_is_named_with_its_fix(
    bench: Bench, knobs: dict[str, Any], said: str, advice: str
) -> None:
    done = sweep(bench, *ALLREDUCE, "--backend", "nccl", **knobs)
    assert done.code in (1, 2)
    assert said in done.err
    assert advice in done.err
    assert "Traceback" not in done.err


def test_ranks_on_one_gpu_are_labelled_so_and_never_without_being_asked(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, *ALLREDUCE, "--allow-shared-gpu", gpus=1)
    assert done.code == 0, done.err
    assert {record["path"] for record in records_of(tmp_path / "it.jsonl")} == {"same-gpu"}
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert len({rank["gpu"]["uuid"] for rank in run["placement"]}) == 1

    again = sweep(bench, *ALLREDUCE, "--allow-shared-gpu", "--force")
    assert again.code == 2
    assert "every rank has a GPU of its own here" in again.err


def test_an_older_nccl_shares_a_gpu_as_if_between_hosts(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, *ALLREDUCE, "--allow-shared-gpu", gpus=1, nccl="old")
    assert done.code == 0, done.err
    assert {record["check"] for record in records_of(tmp_path / "it.jsonl")} == {"ok"}


def test_different_models_in_one_run_are_listed(bench: Bench) -> None:
    done = sweep(bench, *ALLREDUCE, gpu_models="NVIDIA L4,NVIDIA H100")
    assert done.code == 0, done.err
    assert "different GPUs in one run: 1 x NVIDIA L4, 1 x NVIDIA H100" in done.err


def test_a_size_that_does_not_fit_fails_alone(bench: Bench, tmp_path: Path) -> None:
    # Two buffers of 128 MiB in what 700 MB leave beside the margin of 512 MiB.
    done = sweep(bench, "--op", "allreduce", "--ranks", "2", "--output", "it.jsonl", "--total-budget", "1s", "--runs",
                 "1", "--no-plot", "-b", "2M", "-e", "128M", "-f", "8", gpu_memory=700_000_000)  # fmt: skip
    assert done.code == 1
    assert {record["bytes"]: record["status"] for record in records_of(tmp_path / "it.jsonl")} == {
        2 << 20: "ok", 16 << 20: "ok", 128 << 20: "failed",
    }  # fmt: skip
    assert "allreduce at 128M: needs 256M of GPU memory" in done.err


def test_a_wrong_answer_fails_its_point(bench: Bench) -> None:
    done = sweep(bench, *ALLREDUCE, nccl_wrong="1:3")
    assert done.code == 1
    assert "rank 1: element 0 is" in done.err


def test_an_error_of_nccls_own_threads_ends_the_run_with_its_words(bench: Bench) -> None:
    done = sweep(bench, *ALLREDUCE, nccl_error="1:1100")
    assert done.code == 1
    assert "NCCL: remote process exited or there was a network error" in done.err


def test_an_error_while_graphs_hold_the_communicator_ends_the_run_too(bench: Bench) -> None:
    # ncclCommAbort waits until they are gone, in the double for ten seconds at most.
    done = sweep(bench, *ALLREDUCE, "--mode", "graph", "--budget", "1s", "--total-budget", "5s", nccl_error="1:2500",
                 patience=10, limit=30)  # fmt: skip
    assert done.code == 1
    assert "NCCL: remote process exited or there was a network error" in done.err


def test_a_rank_that_dies_inside_nccl_is_named(bench: Bench) -> None:
    done = sweep(bench, *ALLREDUCE, nccl_die="1:1100")
    assert done.code == 1
    assert "rank 1 on" in done.err
    assert "died while rank 0 was" in done.err


def test_a_collective_that_never_ends_is_ended_by_the_time_out(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, *ALLREDUCE, "--timeout", "3s", nccl_hang="1:1100")
    assert done.code == 1
    assert "no progress for 3 s" in done.err
    assert "hung" in {record["status"] for record in records_of(tmp_path / "it.jsonl")}


def test_chunks_of_a_gpu_that_protects_itself_are_not_counted(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, *ALLREDUCE, "--total-budget", "3s", nvml_reasons=0x40, nvml_reasons_first=2)
    assert done.code == 0, done.err
    records = records_of(tmp_path / "it.jsonl")
    assert sum(record["how"].get("discarded_chunks", 0) for record in records) == 2
    assert not any("throttled" in record["flags"] for record in records)


def test_a_gpu_that_does_not_recover_is_measured_and_flagged(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, *ALLREDUCE, nvml_reasons=0x08)
    assert done.code == 0, done.err
    records = records_of(tmp_path / "it.jsonl")
    assert all("throttled" in record["flags"] and record["seconds"] for record in records)


@needs_mpich
def test_under_mpirun_the_id_travels_over_mpi(bench: Bench, tmp_path: Path) -> None:
    machine = doubles.machine(doubles.built(), 2, around={})
    done = bench.run(
        *HERE.launcher("mpiexec", 2, HERE.commbench, "sweep", "--op", "allreduce", "--output", "it.jsonl", *FEW),
        environment=machine,
    )
    assert done.code == 0, done.err
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert (run["backend"], run["launcher"], run["ranks"]) == ("nccl", "mpi", 2)


@needs_mpich
def test_ranks_of_a_launcher_end_though_graphs_held_the_communicator(bench: Bench, tmp_path: Path) -> None:
    # ncclCommDestroy waits for the graphs, in the double for a minute: there is no parent here to end it sooner.
    options = ("--op", "allreduce", "--mode", "graph", "--output", "it.jsonl", *FEW)
    done = bench.run(
        *HERE.launcher("mpiexec", 2, HERE.commbench, "sweep", *options),
        environment=doubles.machine(doubles.built(), 2, around={}),
        limit=45,
    )
    assert done.code == 0, done.err
    assert {record["mode"] for record in records_of(tmp_path / "it.jsonl")} == {"graph"}


def test_a_launcher_that_shows_each_rank_one_gpu_is_understood(bench: Bench, tmp_path: Path) -> None:
    # As srun --gpus-per-task=1 does: a shell stands in for it, once per rank.
    machine = doubles.machine(doubles.built(), 2, around={})
    where = machine | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617", "SLURM_STEP_NUM_TASKS": "2",
                       "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}  # fmt: skip
    started = [
        bench.start(HERE.commbench, "sweep", "--op", "allreduce", "--backend", "nccl", "--output", "it.jsonl", *FEW,
                    environment=where | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
                                         "CUDA_VISIBLE_DEVICES": str(rank)})
        for rank in range(2)
    ]  # fmt: skip
    done = [one.wait(60) for one in started]
    assert [one.code for one in done] == [0, 0], done[0].err
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert [rank["gpu"]["index"] for rank in run["placement"]] == [0, 0]
    assert len({rank["gpu"]["uuid"] for rank in run["placement"]}) == 2


def test_reading_results_of_gpus_loads_neither_cupy_nor_torch(bench: Bench, tmp_path: Path) -> None:
    assert sweep(bench, *ALLREDUCE).code == 0
    code = (
        "import sys; from commbench.cli import main; sys.argv = ['commbench', 'show', 'it.jsonl', '--json']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "import json; print(json.dumps([name for name in ('cupy', 'torch', 'numba', 'mpi4py') if name in sys.modules]))"
    )
    done = bench.run(HERE.python, "-c", code, environment=doubles.machine(doubles.built(), around={}))
    assert json.loads(done.out.splitlines()[-1]) == []
