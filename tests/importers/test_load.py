from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from commbench.errors import ResultsError
from commbench.importers import IMPORTERS, load


def test_our_own_results_come_through(records_of: Any) -> None:
    found = load(records_of(runs=2, sizes=[8, 16]))

    assert [(record.point.bytes, record.run) for record in found.records] == [(8, 1), (16, 1), (8, 2), (16, 2)]
    assert found.runs[0]["backend"] == "mpi"


def test_a_file_is_known_by_what_is_in_it_and_not_by_its_name(records_of: Any, tmp_path: Path) -> None:
    ours = records_of(sizes=[8], name="ours.csv")
    theirs = tmp_path / "theirs.jsonl"
    theirs.write_text("bytes,seconds\n8,1e-6\n")

    assert load(ours).records[0].statistic == "median_of_max"
    assert load(theirs).records[0].statistic == "as_given"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the file is empty"),
        (b"Dear all, the meeting is at noon.\n", "not a file we know: it begins with 'Dear all"),
        (b"\xff\xfeb\x00y\x00t\x00e\x00s\x00", "not UTF-8 text"),
        (b"bytes,seconds\n8,\xff\xfe\n", "not UTF-8 text"),
        (b"[1, 2]\n", "not a file we know"),
        (b'{"kind": "no', "not a results file"),
    ],
)
def test_what_nobody_knows_is_refused_with_what_it_is(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(text)

    with pytest.raises(ResultsError, match=message):
        load(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ResultsError, match=str(path)):
            load(path)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rows = "".join(f"{8 << i},1e-6\n" for i in range(20))
    writer = threading.Thread(target=pipe.write_text, args=("bytes,seconds\n" + rows,))
    writer.start()

    found = load(pipe)

    writer.join()
    assert len(found.records) == 20


def test_no_importer_takes_a_results_file_for_its_own(records_of: Any) -> None:
    head = records_of().read_text()

    assert not [importer.NAME for importer in IMPORTERS if importer.recognises(head)]
