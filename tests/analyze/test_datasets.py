from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commbench.analyze.datasets import datasets
from commbench.analyze.setting import Setting
from commbench.results import load


def test_a_setting_says_library_hosts_and_hardware() -> None:
    setting = Setting.of(
        {
            "backend": "nccl",
            "libraries": {"cupy": "13.4", "nccl": "2.27.3"},
            "nodes": [
                {"hostname": "a", "cpu_model": "Xeon 8480", "sockets": 2, "gpus": ["NVIDIA H200"] * 8},
                {"hostname": "b", "cpu_model": "Xeon 8480", "sockets": 2, "gpus": ["NVIDIA H200"] * 8},
            ],
            "environment": {"NCCL_ALGO": "Tree", "SLURM_NNODES": "2", "NUMBA_CACHE_DIR": "/x"},
        }
    )

    assert setting == Setting("2.27.3", ("a", "b"), "2 x Xeon 8480, 8 x NVIDIA H200", ("NCCL_ALGO=Tree",))


def test_a_setting_survives_a_header_of_other_types() -> None:
    assert Setting.of({"libraries": 7, "nodes": [3, {"gpus": "x"}], "environment": None}) == Setting()


def test_files_of_one_setting_are_further_runs(records_of: Any) -> None:
    first, second = records_of(name="a.jsonl", runs=2), records_of(name="b.jsonl", runs=1)

    [dataset] = datasets([load(first), load(second)])

    assert dataset.files == (str(first), str(second))
    assert sorted({record.run for record in dataset.records}) == [1, 2, 3]
    assert {point.runs for point in dataset.points} == {3}


def test_files_of_different_settings_are_never_averaged(records_of: Any) -> None:
    first = records_of(name="a.jsonl")
    second = records_of(name="b.jsonl", header={"environment": {"UCX_TLS": "tcp"}})

    found = datasets([load(first), load(second)])

    assert [dataset.setting.environment for dataset in found] == [(), ("UCX_TLS=tcp",)]
    assert [curve.setting for dataset in found for curve in dataset.curves] == [dataset.setting for dataset in found]


def test_launches_of_one_file_that_differ_are_kept_apart(records_of: Any, record: Any) -> None:
    first = records_of([record(run=1)], name="a.jsonl")
    second = records_of([record(run=2)], name="b.jsonl", header={"nodes": [{"hostname": "node2"}]})
    first.write_text(first.read_text() + second.read_text())

    assert [dataset.setting.hosts for dataset in datasets([load(first)])] == [("node1",), ("node2",)]


def test_a_launch_that_did_not_complete_is_named(records_of: Any) -> None:
    killed = datasets([load(records_of(name="a.jsonl", status=None))])
    failed = datasets([load(records_of(name="b.jsonl", status="failed"))])

    assert killed[0].notices == ("run 1 has not ended: it is still going on, or was killed",)
    assert failed[0].notices == ("run 1 failed: why",)


def test_a_launch_that_was_resumed_is_not_named(records_of: Any, record: Any) -> None:
    path = records_of([record(8)], status=None)
    again = records_of([record(16)], name="again.jsonl", header={"launch": "second"})
    path.write_text(path.read_text() + again.read_text().replace("launch1", "second"))

    assert datasets([load(path)])[0].notices == ()


def test_what_connecting_took_is_the_slowest_ranks_in_each_launch(tmp_path: Path) -> None:
    def run(number: int, *seconds: Any) -> dict[str, Any]:
        return {
            "kind": "run", "schema": 1, "run": number, "launch": str(number),
            "placement": [{"host": "a", "communicator_seconds": value} for value in seconds],
        }  # fmt: skip

    file = tmp_path / "it.jsonl"
    lines = [
        run(1, 0.5, 1.5),
        run(2, 0.25, "no number"),
        run(3),
        {"kind": "run", "schema": 1, "run": 4, "placement": 3},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    [found] = datasets([load(file)])
    assert found.connecting == (1.5, 0.25)
