"""Matrices as they are shown: every cell by hand."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from commbench.analyze.datasets import Dataset, datasets
from commbench.report.documents import show_document
from commbench.report.markdown import datasets_markdown
from commbench.report.tables import dataset_views
from commbench.results import load

P2P: dict[str, Any] = {
    "op": "p2p", "redop": None, "in_place": False, "ranks": 2, "backend": "copies", "device": "cuda", "mode": "pipe",
    "cache": "rotated", "path": "peer",
}  # fmt: skip
MIB = 1 << 20
HEADER = {"backend": "copies", "libraries": {"copies": "CUDA driver 12.9"}}


def of(record: Any, pair: str, size: int, seconds: float | None, **changes: Any) -> Any:
    return record(size, seconds, **P2P | {"variant": f"pair={pair}"} | changes)


def shown(found: list[Dataset], width: int = 80) -> str:
    out = StringIO()
    for view in dataset_views(found):
        Console(file=out, width=width).print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def read(records_of: Callable[..., Path], records: list[Any], **header: Any) -> list[Dataset]:
    return datasets([load(records_of(records, header=HEADER | header))])


def test_many_pairs_are_shown_as_matrices_instead_of_tables(records_of: Any, record: Any) -> None:
    text = shown(
        read(
            records_of,
            [
                of(record, "0,1", 8, 2e-6),
                of(record, "0,1", MIB, 50e-6),
                of(record, "1,0", 8, 3e-6),
                of(record, "1,0", MIB, 100e-6),
            ],
        )
    )

    # 1,048,576 bytes in 50 us are 20.97e9 bytes a second.
    assert text.startswith(
        "p2p · float32 · node1\n"
        "copies, CUDA driver 12.9 on cuda · 2 x AMD EPYC 9354\n"
        "mode pipe · cache rotated\n"
        "\n"
        "peer (peer access on) · GB/s at 1M\n"
        "from\\to      0      1\n"
        "─────────────────────\n"
        "      0      -   21.0\n"
        "      1   10.5      -\n"
        "\n"
        "peer (peer access on) · us at 8\n"
        "from\\to       0       1\n"
        "───────────────────────\n"
        "      0       -   2.000\n"
        "      1   3.000       -\n"
    )
    assert "size   count" not in text
    assert "\nfrom row to column, GB/s = 1e9 bytes/s in one direction\n" in text


def test_one_pair_is_shown_as_a_table(records_of: Any, record: Any) -> None:
    text = shown(read(records_of, [of(record, "0,1", 8, 2e-6), of(record, "0,1", MIB, 50e-6)]))

    assert text.startswith("p2p pair 0,1 · float32 · node1\n")
    assert "from\\to" not in text


def test_what_is_wrong_is_in_the_cell_and_named_with_its_pair(records_of: Any, record: Any) -> None:
    text = shown(
        read(
            records_of,
            [
                of(
                    record, "0,1", MIB, 1e-4, status="failed", check="wrong", reason="GPU 1: element 3 is 2, expected 1"
                ),
                of(record, "1,0", MIB, None, status="failed", reason="no answer within 20 s"),
                of(record, "0,2", MIB, 1e-4, flags=("unstable",)),
                of(record, "2,0", MIB, None, status="hung", reason="no progress for 60 s"),
            ],
        )
    )

    assert "      0        -   WRONG   10.5 *\n" in text
    assert "      1   failed       -        -\n" in text
    assert "      2     hung       -        -\n" in text
    assert "*: odd, see below" in text
    plain = " ".join(text.split())
    assert "bad peer, pair 0,1: wrong answer at 1M: GPU 1: element 3 is 2, expected 1" in plain
    assert "bad peer, pair 2,0: hung at 1M: no progress for 60 s" in plain
    assert "bad peer, pair 1,0: failed at 1M: no answer within 20 s" in plain
    assert "odd peer, pair 0,2: unstable at 1M" in plain


def test_the_same_about_several_pairs_is_said_once(records_of: Any, record: Any) -> None:
    pairs = [f"{a},{b}" for a in range(3) for b in range(3) if a != b]
    failed = [of(record, pair, MIB, None, status="failed", reason="no answer within 20 s") for pair in pairs]
    lines = shown(read(records_of, failed)).splitlines()

    assert [line for line in lines if line.startswith("bad")] == [
        "bad     peer, pair 0,1 and 5 more: failed at 1M: no answer within 20 s"
    ]


def test_what_not_all_matrices_share_is_in_their_titles(records_of: Any, record: Any) -> None:
    records = [
        of(record, pair, 8, 1e-6, mode=mode, path="staged") for mode in ("pipe", "sync") for pair in ("0,1", "1,0")
    ]
    records += [of(record, pair, 8, 1e-6, mode="sync", cache="hot", path="read") for pair in ("0,0", "0,1")]
    text = shown(read(records_of, records))

    assert "\ncache rotated\n" in text
    assert "staged (peer access off: the driver goes through host memory) · us at 8 · mode\npipe\n" in text
    assert "read (a kernel on the target loads from the source, one address after the other)\n· us at 8\n" in text


def test_many_columns_are_cut_into_blocks_of_a_terminals_width(records_of: Any, record: Any) -> None:
    records = [of(record, f"0,{k}", MIB, 1e-6 * k) for k in range(1, 17)]
    lines = shown(read(records_of, records)).splitlines()

    heads = [line.split() for line in lines if line.startswith("from\\to")]
    assert heads == [["from\\to", *map(str, range(1, 10))], ["from\\to", *map(str, range(10, 17))]]
    assert max(map(len, lines)) <= 80


def test_notes_of_a_launch_are_shown_once(records_of: Any, record: Any) -> None:
    note = "peer access: not offered by this driver for GPU 0 and 1; NCCL will stage through host memory"
    records = [of(record, "0,1", 8, 1e-6, run=run, path="staged") for run in (1, 2)]
    [dataset] = read(records_of, records, notes=[note])

    assert dataset.notices == (note,)
    assert note in shown([dataset]).replace("\n", " ")


def test_markdown_has_the_same_cells(records_of: Any, record: Any) -> None:
    text = datasets_markdown(read(records_of, [of(record, "0,1", MIB, 50e-6), of(record, "1,0", MIB, 100e-6)]))

    assert text.startswith("### p2p · float32 · node1\n\n")
    assert (
        "**peer (peer access on) · GB/s at 1M**\n\n"
        "| from\\\\to | 0 | 1 |\n| --: | --: | --: |\n| 0 | - | 21.0 |\n| 1 | 10.5 | - |"
    ) in text


def test_the_document_has_lists_of_rows_in_base_units(records_of: Any, record: Any) -> None:
    document = show_document(
        read(
            records_of,
            [
                of(record, "host,0", 8, 2e-6),
                of(record, "host,0", 1_000_000, 1e-4),
                of(record, "0,host", 8, None, status="failed"),
                of(record, "0,host", 1_000_000, 2e-4),
            ],
        )
    )

    bandwidth, latency = document["matrices"]
    assert (bandwidth["path"], bandwidth["bytes"], "variant" in bandwidth) == ("peer", 1_000_000, False)
    assert bandwidth["from"] == bandwidth["to"] == ["host", "0"]
    assert bandwidth["algbw_bytes_per_second"] == [[None, 1e10], [5e9, None]]
    assert latency["seconds"] == [[None, 2e-6], [None, None]]
    assert "matrices" not in show_document([])
