"""`sweep --backend copies` from end to end on a machine of doubles: `tests.doubles` says what that cannot show.

Copies there are done when they are enqueued and by memcpy, so what holds is: which functions are called with which
pointers and sizes, that wrong bytes are found, that a sample lasts from before the first to after the last of its
copies, when peer access is on and off, and what a person is told. Not: that anything overlaps, or how fast it is.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import doubles
from tests.launching import ROOT, Bench, Outcome, a_bench, lines_of, of_kind

pytestmark = [pytest.mark.launch, doubles.needs_compiler]

COMMBENCH = (sys.executable, "-m", "commbench")
HERE = {"PYTHONPATH": str(ROOT)}
FEW = ("--runs", "1", "-n", "3", "-w", "1", "-b", "8", "-e", "32K", "-f", "64", "--no-plot")
PAIRS = ("0,1", "1,0")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one
        assert one.left() == []


def sweep(
    bench: Bench, *options: str, gpus: int = 2, limit: float = 90, output: str = "it.jsonl", **knobs: Any
) -> Outcome:
    machine = doubles.machine(doubles.built(), gpus, around=HERE, kernels=doubles.HERE / "kernels.py", **knobs)
    file = () if "--resume" in options else ("--output", output)
    what = ("--op", "p2p", "--backend", "copies")
    return bench.sweep(*what, *FEW, *file, *options, environment=machine, limit=limit)


def final(file: Path) -> dict[tuple[str, str, str, int], dict[str, Any]]:
    """(path, pair, mode, bytes) -> the last record of that point."""
    found = {}
    for line in of_kind(file, "record"):
        found[line["path"], line["variant"].removeprefix("pair="), line["mode"], line["bytes"]] = line
    return found


def copied(folder: Path, size: int) -> Counter[str]:
    """The kinds of copies of so many bytes that the measuring process made, in its log."""
    [log] = [file for file in folder.glob("log-*") if "cuEventRecord" in file.read_text()]
    return Counter(call["name"].removeprefix("copy_") for call in doubles.calls(log) if call.get("bytes") == size)


def test_every_way_between_two_gpus_and_the_host_is_measured_and_right(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, log=tmp_path / "log-%p")
    assert done.code == 0, done.err
    assert "copies on GPUs (--backend): one process, 46 points x 1 run" in done.err

    # By hand: three sizes on 2 peer, 2 staged, 2 local, 4 pinned and 4 pageable routes, one on 4 of read.
    records = final(tmp_path / "it.jsonl")
    assert len(records) == 3 * (2 + 2 + 2 + 4 + 4) + 4
    assert {record["check"] for record in records.values()} == {"ok"}
    assert {(record["ranks"], record["device"]) for record in records.values()} == {(2, "cuda")}
    calls = {(path, pair): record["how"]["calls"] for (path, pair, _, _), record in records.items()}
    assert calls == {
        **{("peer", pair): "cuMemcpyPeerAsync" for pair in PAIRS},
        **{("staged", pair): "cuMemcpyPeerAsync" for pair in PAIRS},
        **{("read", pair): "kernel" for pair in ("0,0", *PAIRS, "1,1")},
        **{("local", pair): "cuMemcpyDtoDAsync" for pair in ("0,0", "1,1")},
        **{(kind, f"host,{gpu}"): "cuMemcpyHtoDAsync" for kind in ("pinned", "pageable") for gpu in (0, 1)},
        **{(kind, f"{gpu},host"): "cuMemcpyDtoHAsync" for kind in ("pinned", "pageable") for gpu in (0, 1)},
    }
    clocks = {path: record["how"]["clock"] for (path, *_), record in records.items()}
    assert clocks == dict.fromkeys(("peer", "staged", "read", "local", "pinned"), "cuda events") | {"pageable": "host"}
    assert {record["how"]["depth"] for (path, *_), record in records.items() if path == "read"} == {4096}
    # What was copied by which way of the machine: as many on and off, in both directions, from both kinds of memory.
    kinds = copied(tmp_path, 32 << 10)
    assert set(kinds) == {"peer", "staged", "d2d", "h2d", "d2h", "pageable_h2d", "pageable_d2h"}

    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert [gpu["index"] for gpu in run["placement"][0]["gpus"]] == [0, 1]
    assert run["placement"][0]["without_peer_access"] == []
    assert (run["key"]["gpus"], run["libraries"]["copies"]) == (["NVIDIA H100 80GB HBM3"], "CUDA driver 12.9")
    assert "2 x NVIDIA H100 80GB HBM3" in done.out
    for title in ("peer (peer access on) · GB/s at 32K", "pageable (ordinary host memory) · us at 8", "read (a kernel"):
        assert title in done.out
    shown = json.loads(bench.run(*COMMBENCH, "show", "--json", "it.jsonl", environment=HERE).out)
    assert len(shown["matrices"]) == 2 * 5 + 1


@pytest.mark.parametrize(
    "options", [("--cache", "hot", "--loop", "python"), ("--cache", "rotated", "--mode", "sync,pipe")]
)
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_answers_are_exact_for_any_width_and_loop(
    bench: Bench, tmp_path: Path, dtype: str, options: tuple[str, ...]
) -> None:
    done = sweep(bench, "-d", dtype, "--path", "peer,staged,local,pinned,pageable", "-b", "10", *options)
    assert done.code == 0, done.err
    assert {record["check"] for record in final(tmp_path / "it.jsonl").values()} == {"ok"}


def test_peer_access_is_on_for_peer_copies_and_off_for_staged_ones(bench: Bench, tmp_path: Path) -> None:
    """In an order that changes between them: every staged copy is made wrong, and no peer copy is."""
    done = sweep(bench, "--path", "peer,staged", "--runs", "2", gpus=3, copy_faults="staged=wrong")

    assert done.code == 1
    records = final(tmp_path / "it.jsonl")
    assert {(path, record["check"]) for (path, *_), record in records.items()} == {("peer", "ok"), ("staged", "wrong")}
    assert len(records) == 2 * 6 * 3
    assert done.error.startswith("p2p at 8: GPU 1: element 1 is ")


@pytest.mark.parametrize("path", ["peer", "staged", "pinned"])
def test_both_ways_a_sample_lasts_until_both_are_done(bench: Bench, tmp_path: Path, path: str) -> None:
    """The double makes one copy after the other: 32 KiB take 0.33 ms at 100 MB/s and 0.16 ms at 200."""
    done = sweep(
        bench, "--bidirectional", "--path", path, "-b", "32K", "--mode", "sync,pipe",
        rates="peer=1e8,staged=1e8,h2d=1e8,d2h=2e8",
    )  # fmt: skip
    assert done.code == 0, done.err

    back = 2e8 if path == "pinned" else 1e8
    records = final(tmp_path / "it.jsonl")
    assert len(records) == (4 if path == "pinned" else 2)
    for record in records.values():
        assert record["check"] == "ok"
        assert record["seconds"]["min"] >= (32 << 10) * (1 / 1e8 + 1 / back)
        assert record["variant"].endswith(";bidirectional")


def test_a_sample_is_not_shorter_than_its_copy_on_either_clock(bench: Bench, tmp_path: Path) -> None:
    rates = {"peer": 2e8, "h2d": 1e8, "pageable_d2h": 5e7}
    done = sweep(
        bench, "--path", "peer,pinned,pageable", "-b", "32K", "--mode", "sync,pipe",
        rates=",".join(f"{kind}={rate:g}" for kind, rate in rates.items()),
    )  # fmt: skip
    assert done.code == 0, done.err

    records = final(tmp_path / "it.jsonl")
    for mode in ("sync", "pipe"):
        for route, kind in (
            (("peer", "0,1"), "peer"),
            (("pinned", "host,0"), "h2d"),
            (("pageable", "1,host"), "pageable_d2h"),
        ):
            assert records[*route, mode, 32 << 10]["seconds"]["min"] >= (32 << 10) / rates[kind]


def test_wrong_bytes_are_found_where_they_arrived(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, "--path", "pinned", "--pair", "0,host", copy_faults="d2h=wrong")

    assert done.code == 1
    assert done.error.startswith("p2p at 8: pinned host memory: element 1 is ")
    assert {record["check"] for record in final(tmp_path / "it.jsonl").values()} == {"wrong"}


# -- does P2P work, and what does it cost? -----------------------------------------------------------------------

SENTENCE = "peer access: not offered by this driver for GPU 0 and 1; NCCL will stage through host memory"


def test_two_gpus_without_peer_access_are_measured_without_and_told_so(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, "--path", "peer,staged,read", peer_access=0, gpu_models="NVIDIA GeForce RTX 4090")

    assert done.code == 0, done.err
    assert f"note: {SENTENCE}" in done.err
    assert SENTENCE in done.out.replace("\n", " ")
    assert {(path, pair) for path, pair, _, _ in final(tmp_path / "it.jsonl")} == {
        ("staged", "0,1"), ("staged", "1,0"), ("read", "0,0"), ("read", "1,1"),
    }  # fmt: skip
    [run] = of_kind(tmp_path / "it.jsonl", "run")
    assert (run["notes"], run["placement"][0]["without_peer_access"]) == ([SENTENCE], [[0, 1]])

    refused = sweep(bench, "--path", "peer", peer_access=0, output="none.jsonl")
    assert (refused.code, refused.error) == (1, SENTENCE)
    assert not (tmp_path / "none.jsonl").exists()


def test_a_peer_copy_that_hangs_is_found_before_anything_is_measured(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, "--path", "peer,staged", "--timeout", "3s", copy_faults="peer=hang")

    assert done.code == 1
    reason = "peer copy between GPU 0 and 1: no answer within 3 s; an IOMMU or PCIe ACS in the way can do that"
    assert done.error == f"p2p at 8: {reason} (and 5 more)"
    records = final(tmp_path / "it.jsonl")
    assert {(path, r["status"], r["reason"], r["samples"]) for (path, *_), r in records.items()} == {
        ("peer", "failed", reason, 0), ("staged", "ok", "", 3),
    }  # fmt: skip
    assert "      0        -   failed\n" in done.out


@pytest.mark.parametrize(
    ("fault", "words"),
    [("wrong", "arrives wrong: 1 of 1048576 bytes"), ("die", "the program that tried it ended with signal 11")],
)
def test_a_peer_copy_that_goes_wrong_otherwise_is_refused_with_what_happened(
    bench: Bench, fault: str, words: str
) -> None:
    done = sweep(bench, "--path", "peer", copy_faults=f"peer={fault}")

    assert done.code == 1
    assert words in done.error
    assert "6 of 6 points failed" in done.out


def test_peer_and_staged_copies_are_compared_in_one_file(bench: Bench) -> None:
    done = sweep(bench, "--path", "peer,staged", "--pair", "0,1", rates="peer=1e9,staged=2.5e8", output="it.jsonl")
    assert done.code == 0, done.err
    said = bench.run(*COMMBENCH, "compare", "--across", "path", "it.jsonl", environment=HERE)

    assert said.code == 0, said.err
    assert "path staged is " in said.out
    assert "slower than path peer" in said.out.replace("\n", " ")


# -- other machines and faults -----------------------------------------------------------------------------------


def test_one_gpu_is_measured_against_the_host_and_itself(bench: Bench, tmp_path: Path) -> None:
    done = sweep(bench, gpus=1)

    assert done.code == 0, done.err
    assert {(path, pair) for path, pair, _, _ in final(tmp_path / "it.jsonl")} == {
        ("read", "0,0"), ("local", "0,0"), ("pinned", "host,0"), ("pinned", "0,host"), ("pageable", "host,0"),
        ("pageable", "0,host"),
    }  # fmt: skip
    assert "p2p pair 0,0 · float32" in done.out


def test_no_gpu_no_driver_and_no_cupy_are_one_line_each(bench: Bench, tmp_path: Path) -> None:
    assert sweep(bench, gpus=0).error == "no GPU is visible (driver error 100)"
    assert sweep(bench, cuda=False).error == "--backend copies: no NVIDIA driver here"
    assert sweep(bench, cupy=False).error == "--backend copies: cupy is not installed"
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_size_that_does_not_fit_on_a_gpu_fails_alone(bench: Bench, tmp_path: Path) -> None:
    """600 MB less what is left for others, 512 MiB: 64 MiB of buffers fit, 128 MiB do not."""
    done = sweep(bench, "--path", "staged", "--pair", "0,1", "-b", "32M", "-e", "64M", "-f", "2", gpu_memory=600 << 20)

    assert done.code == 1
    assert done.error.startswith("p2p at 64M: needs 128M of memory on GPU 0, ")
    assert {size: record["status"] for (*_, size), record in final(tmp_path / "it.jsonl").items()} == {
        32 << 20: "ok", 64 << 20: "failed",
    }  # fmt: skip


def test_a_copy_that_hangs_while_it_is_measured_is_named_and_the_rest_completed_later(
    bench: Bench, tmp_path: Path
) -> None:
    done = sweep(bench, "--path", "pinned", "--pair", "host,0", "--timeout", "3s", copy_faults="h2d=hang")
    assert done.code == 1
    assert done.error == "no progress for 3 s: rank 0: checking p2p pinned host,0 8 (pipe)"

    again = sweep(bench, "--resume", "it.jsonl")
    assert again.code == 0, again.err
    records = final(tmp_path / "it.jsonl").values()
    assert {(record["status"], record["check"]) for record in records} == {("ok", "ok")}
    assert [line["launches"] for line in lines_of(tmp_path / "it.jsonl") if line["kind"] == "run"] == [1, 2]


def test_different_models_are_listed(bench: Bench) -> None:
    models = "NVIDIA GeForce RTX 4090,NVIDIA GeForce RTX 3090"
    done = sweep(bench, "--path", "staged", gpu_models=models)

    assert done.code == 0, done.err
    assert (
        "note: different GPUs in one run: GPU 0 is a NVIDIA GeForce RTX 4090, GPU 1 is a NVIDIA GeForce RTX 3090"
        in done.err
    )


def test_a_launcher_is_refused(bench: Bench) -> None:
    machine = doubles.machine(doubles.built(), around=HERE)
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    done = bench.sweep("--op", "p2p", "--backend", "copies", environment=machine | ranks)

    assert done.code == 2
    assert done.error == "--backend copies is one process for all GPUs of a machine, a launcher started 2"
