from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commbench.analyze.datasets import datasets
from commbench.errors import ResultsError
from commbench.importers import load
from commbench.importers.csv_table import recognises
from commbench.results import Results

Read = Callable[..., Results]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """A function: text, and bytes to put before it, to the results in it."""

    def write_and_load(text: str, before: bytes = b"") -> Results:
        path = tmp_path / "x.csv"
        path.write_bytes(before + text.encode())
        return load(path)

    return write_and_load


def medians(results: Results) -> list[tuple[int, float]]:
    return [(record.point.bytes, record.seconds.median) for record in results.records if record.seconds]


TWO = [(8, 1e-6), (16, 2.5e-6)]


@pytest.mark.parametrize(
    "text",
    [
        "bytes,seconds\n8,1e-6\n16,2.5e-6\n",
        "bytes,seconds\r\n8,1e-6\r\n16,2.5e-6\r\n",
        "seconds,bytes\n1e-6,8\n2.5e-6,16",
        "Bytes, Seconds\n 8 , 1e-6\n16,\t0.0000025\n",
        "bytes;seconds\n8;1e-6\n16;2.5e-6\n",
        "bytes\tseconds\n8\t1e-6\n16\t2.5e-6\n",
        '"bytes","seconds"\n"8","1e-6"\n"16","2.5e-6"\n',
        "# made by a script\n\nbytes,seconds\n\n8,1e-6\n# half\n16,2.5e-6\n\n",
        "# bytes,seconds\n8.000e+00,1.000e-06\n1.6e+01,2.5e-06\n",
        "bytes,seconds,\n8,1e-6,\n16,2.5e-6,\n",
        "bytes,seconds,op,ranks\n8,1e-6,,\n16,2.5e-6,,\n",
    ],
)
def test_tables_as_programs_write_them_are_read(read: Read, text: str) -> None:
    assert medians(read(text)) == TWO


def test_a_byte_order_mark_is_no_part_of_the_first_name(read: Read) -> None:
    assert medians(read("bytes,seconds\n8,1e-6\n16,2.5e-6\n", b"\xef\xbb\xbf")) == TWO


def test_what_the_file_does_not_say_is_not_claimed(read: Read) -> None:
    [record] = read("bytes,seconds\n8,1e-6\n").records

    assert record.point.key() == {
        "op": "unknown", "in_place": False, "dtype": "unknown", "redop": None, "root": None, "bytes": 8, "ranks": 0,
        "backend": "unknown", "device": "unknown", "path": "unknown", "mode": "unknown", "cache": "unknown",
    }  # fmt: skip
    assert record.point.bus_factor is None
    assert (record.statistic, record.samples, record.check, record.flags) == ("as_given", 1, "skipped", ())
    assert record.seconds is not None
    assert record.seconds.low is None


def test_every_key_of_a_point_may_have_a_column(read: Read) -> None:
    [record] = read(
        "op,in_place,dtype,redop,root,bytes,ranks,backend,device,path,mode,cache,variant,seconds\n"
        "All-Reduce,yes,float,SUM,-1,1024,8,nccl,cuda,nvlink,pipe,rotated,imbalance=2,1e-5\n"
    ).records

    assert record.point.key() == {
        "op": "allreduce", "in_place": True, "dtype": "float32", "redop": "sum", "root": None, "bytes": 1024,
        "ranks": 8, "backend": "nccl", "device": "cuda", "path": "nvlink", "mode": "pipe", "cache": "rotated",
        "variant": "imbalance=2",
    }  # fmt: skip
    assert record.point.bus_factor == pytest.approx(2 * 7 / 8)


@pytest.mark.parametrize(("column", "names"), [("0,1,2", [1, 2, 3]), ("1,2,3", [1, 2, 3]), ("7,9,8", [7, 8, 9])])
def test_runs_keep_their_numbers_where_those_are_numbers_of_runs(read: Read, column: str, names: list[int]) -> None:
    rows = "".join(f"{size},{1e-6 * size},{run}\n" for run in column.split(",") for size in (8, 16))

    found = read("bytes,seconds,run\n" + rows)

    assert [run["run"] for run in found.runs] == names
    assert {record.run for record in found.records} == set(names)
    assert datasets([found])[0].notices == ()


def test_sessions_and_pairs_make_launches_of_their_own(read: Read) -> None:
    rows = "".join(f"8,1e-6,{session},{pair},1\n" for session in ("monday", "tuesday") for pair in (1, 2))

    found = read("bytes,seconds,session,pair,run\n" + rows)

    assert [(run["run"], run["session"], run["pair"]) for run in found.runs] == [
        (1, "monday", 1), (2, "monday", 2), (3, "tuesday", 1), (4, "tuesday", 2),
    ]  # fmt: skip


def test_several_rows_of_one_size_are_samples_of_one_run(read: Read) -> None:
    """1 to 5 us: median 3 us, from 1 to 5."""
    found = read("bytes,seconds\n" + "".join(f"8,{n}e-6\n" for n in (3, 1, 5, 2, 4)))

    [record] = found.records
    assert record.seconds is not None
    assert (record.seconds.median, record.seconds.min, record.seconds.max) == (3e-6, 1e-6, 5e-6)
    assert record.seconds.low is not None
    assert record.seconds.low < 3e-6
    assert (record.statistic, record.samples) == ("median_of_given", 5)
    assert "samples of one run" in found.warnings[0]


def test_a_size_of_no_bytes_is_left_out_and_counted(read: Read) -> None:
    found = read("bytes,seconds\n0,1e-6\n8,1e-6\n")

    assert medians(found) == [(8, 1e-6)]
    assert "left out 1 row of 0 bytes" in found.warnings[0]


def test_columns_that_mean_nothing_here_are_named_with_what_was_perhaps_meant(read: Read) -> None:
    [warning] = read("bytes,seconds,rank,note\n8,1e-6,2,hello\n").warnings

    assert warning.endswith("ignored columns: rank, note; perhaps meant: rank for ranks")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("bytes,time_us\n8,1\n", "line 1: no column seconds among bytes, time_us", "divide time_us by 1e6"),
        ("bytes,Avg Latency(us)\n8,1\n", "no column seconds", "divide avg latency(us) by 1e6"),
        ("bytes,t (ms)\n8,1\n", "no column seconds", "by 1e3"),
        ("bytes,nanoseconds\n8,1\n", "no column seconds", "by 1e9"),
        ("bytes,time\n8,1\n", "no column seconds", "bytes,seconds"),
        ("size,seconds\n8,1\n", "no column bytes", "write size in bytes"),
        ("KiB,seconds\n8,1\n", "no column bytes", "write kib in bytes"),
        ("8,1e-6\n16,1e-6\n", "line 1: a row of numbers", "begin with bytes,seconds"),
        ("bytes,seconds,seconds\n8,1,1\n", "line 1, column seconds: there are two", ""),
        ("bytes,seconds\n8,1e-6\n16,nan\n", "line 3, column seconds: 'nan' is no time", "seconds"),
        ("bytes,seconds\n8,inf\n", "line 2, column seconds", ""),
        ("bytes,seconds\n8,1e400\n", "line 2, column seconds", ""),
        ("bytes,seconds\n8,0\n", "line 2, column seconds: '0'", "above 0"),
        ("bytes,seconds\n8,-1e-6\n", "line 2, column seconds", ""),
        ("bytes,seconds\n8,\n", "line 2, column seconds: ''", ""),
        ("bytes;seconds\n8;1,5e-6\n", "line 2, column seconds: '1,5e-6'", ""),
        ("bytes,seconds\n8,5 us\n", "line 2, column seconds", ""),
        ("bytes,seconds\n64K,1e-6\n", "line 2, column bytes: '64K'", "65536"),
        ("bytes,seconds\n-8,1e-6\n", "line 2, column bytes", ""),
        ("bytes,seconds\n8.5,1e-6\n", "line 2, column bytes", ""),
        ("bytes,seconds\n1e30,1e-6\n", "line 2, column bytes", ""),
        ("bytes,seconds\n" + "9" * 5000 + ",1e-6\n", "line 2, column bytes", ""),
        ("bytes,seconds,op\n8,1e-6\n", "line 2: 2 cells, the header has 3", ""),
        ("bytes,seconds\n8,1e-6,7\n", "line 2: 3 cells, the header has 2", ""),
        ("bytes,seconds,op\n8,1e-6,allreduse\n", "line 2, column op: 'allreduse'", "allreduce"),
        ("bytes,seconds,op\n8,1e-6,all\n", "line 2, column op", "one operation a row"),
        ("bytes,seconds,dtype\n8,1e-6,float33\n", "line 2, column dtype", "float32"),
        ("bytes,seconds,in_place\n8,1e-6,maybe\n", "line 2, column in_place", "true or false"),
        ("bytes,seconds,ranks\n8,1e-6,two\n", "line 2, column ranks: 'two' is no number", ""),
        ("bytes,seconds,run\n8,1e-6,-1\n", "line 2, column run", ""),
        ("bytes,seconds,run\n8,1e-6,\u0661\n", "line 2, column run", ""),
        ("bytes,seconds,path\n8,1e-6," + "x" * 300 + "\n", "line 2, column path: longer than 200", ""),
        ('bytes,seconds\n8,"1e-6\n', "line 2: not CSV", "quotation mark"),
        ("bytes,seconds\n", "no row below the header", ""),
        ("bytes,seconds\n0,1e-6\n", "no row below the header", ""),
        ("bytes,seconds\n" + "8" * 70_000 + ",1\n", "line 2: longer than 65536 characters", ""),
        ("bytes,seconds" + "x" * 70_000, "line 1: longer than 65536 characters", ""),
    ],
)
def test_what_is_wrong_is_named_with_line_and_column(read: Read, text: str, message: str, hint: str) -> None:
    with pytest.raises(ResultsError) as caught:
        read(text)

    assert message in caught.value.message
    assert hint in caught.value.hint


def test_comments_and_empty_lines_count_as_lines(read: Read) -> None:
    with pytest.raises(ResultsError, match="line 6, column seconds"):
        read("# one\nbytes,seconds\n\n8,1e-6\n# five\n16,x\n")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "\n\n",
        "# only\n# comments\n",
        "Hello, world\n",
        "8 1e-6\n",
        '{"kind":"run"}\n',
        "[1,2]\n",
        "a,b\n",
        "bytes\n",
    ],
)
def test_other_text_is_not_taken_for_a_table(head: str) -> None:
    assert not recognises(head)


def test_two_files_of_unknown_origin_are_never_averaged(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("shm.csv", "tcp.csv")]
    for file in files:
        file.write_text("bytes,seconds\n8,1e-6\n")

    assert len(datasets([load(file) for file in files])) == 2


def test_a_million_rows_keep_one_point_a_size(read: Read) -> None:
    """Here 20 000: the number of points must not follow that of rows."""
    found = read("bytes,seconds,run\n" + "".join(f"{8 << i % 20},1e-6,{i // 20}\n" for i in range(20_000)))

    assert len(found.records) == 20_000
    assert len({id(record.point) for record in found.records}) == 20
