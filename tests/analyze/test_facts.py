from __future__ import annotations

from typing import Any

from commbench.analyze.facts import Change, changes, facts_of

RUN: dict[str, Any] = {
    "kind": "run",
    "commbench": "0.1.0",
    "run": 1,
    "session": "abc",
    "started": "2026-11-30T20:26:55+00:00",
    "launcher": "mpi",
    "libraries": {"nccl": "2.27.3", "nccl_file": "/opt/a/libnccl.so.2", "cupy": ""},
    "key": {"ranks_per_node": [4, 4]},
    "calibration": {"clock": "CLOCK_MONOTONIC", "step": 1e-9},
    "sweep": {"loop": "auto", "budget": 5.0, "ops": ["allreduce"], "seed": 3},
    "environment": {"NCCL_ALGO": "Tree", "SLURM_NNODES": "2"},
    "placement": [{"host": "a", "pid": 7, "cpus": "0", "pinned": True}, {"host": "a", "pid": 8, "cpus": "1"}],
    "nodes": [
        {
            "hostname": "a",
            "boot_id": "x",
            "load": 3.2,
            "kernel": "6.1",
            "governor": None,
            "networks": [{"name": "ib0", "state": "up", "mtu": 4096}],
            "caches": [{"level": 1, "bytes": 32768}],
            "mitigations": {"mitigated": ["spectre_v1", "spectre_v2"], "vulnerable": []},
        }
    ],
}


def test_facts_are_named_as_their_places_in_the_file() -> None:
    assert facts_of([RUN]) == {
        "commbench": "0.1.0",
        "launcher": "mpi",
        "calibration.clock": "CLOCK_MONOTONIC",
        "key.ranks_per_node": "4, 4",
        "libraries.nccl": "2.27.3",
        "libraries.nccl_file": "/opt/a/libnccl.so.2",
        "environment.NCCL_ALGO": "Tree",
        "nodes.hostname": "a",
        "nodes.kernel": "6.1",
        "nodes.networks.ib0.state": "up",
        "nodes.networks.ib0.mtu": "4096",
        "nodes.caches.0.level": "1",
        "nodes.caches.0.bytes": "32768",
        "nodes.mitigations.mitigated": "spectre_v1, spectre_v2",
        "placement.cpus": "0, 1",
        "placement.pinned": "yes, ?",
        "sweep.budget": "5.0",
        "sweep.loop": "auto",
    }


def test_a_change_of_the_library_file_and_of_pinning_is_found() -> None:
    other = RUN | {
        "libraries": RUN["libraries"] | {"nccl_file": "/opt/b/libnccl.so.2"},
        "placement": [{"cpus": "0", "pinned": True}, {"cpus": "1", "pinned": True}],
    }

    assert changes([facts_of([RUN]), facts_of([other])]) == [
        Change("libraries.nccl_file", ("/opt/a/libnccl.so.2", "/opt/b/libnccl.so.2")),
        Change("placement.pinned", ("yes, ?", "yes")),
    ]


def test_readings_of_a_moment_are_no_changes() -> None:
    node = RUN["nodes"][0] | {"load": 0.1, "boot_id": "y", "runnable": 9}
    later = RUN | {"run": 2, "session": "def", "started": "later", "nodes": [node]}

    assert changes([facts_of([RUN]), facts_of([later])]) == []


def test_nodes_and_launches_that_differ_give_both_values() -> None:
    two = RUN | {"nodes": [{"kernel": "6.1"}, {"kernel": "6.2"}, {"kernel": "6.1"}]}

    assert facts_of([two])["nodes.kernel"] == "6.1 | 6.2"
    assert facts_of([RUN, RUN | {"launcher": "srun"}])["launcher"] == "mpi | srun"


def test_how_it_was_timed_and_what_path_was_proven_come_from_the_records(record: Any) -> None:
    records = [record(how={"loop": "compiled"}), record(how={"loop": "python"}), record(proven_path="p2p")]

    assert facts_of([], records) == {"how.loop": "compiled | python", "proven_path": "p2p"}


def test_what_one_side_does_not_know_is_a_change_but_a_side_without_facts_has_no_say() -> None:
    known, more = {"a": "1"}, {"a": "1", "b": "2"}

    assert changes([known, more, {}]) == [Change("b", (None, "2", None))]
    assert changes([known, {}]) == []


def test_a_line_of_other_types_gives_no_facts_and_no_traceback() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"x": deep}
    strange = {"nodes": [3, {"x": [[1]], "y": deep}], "libraries": 7, "placement": {"a": 1}, "sweep": [], "key": None}

    assert facts_of([strange, {}]) == {}
