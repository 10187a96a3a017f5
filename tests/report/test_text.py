from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.analyze.setting import Setting
from commbench.analyze.summary import Curve
from commbench.report.text import clean, common_words, header_lines, labels, ranks_and_hosts


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]0;title\x07", "]0;title"),
        ("\x9b2J", "2J"),
        ("two\r\nlines\tand a tab", "two lines and a tab"),
        ("abc\u202edef", "abcdef"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        (7, "7"),
    ],
)
def test_text_from_files_cannot_speak_to_the_terminal(hostile: object, harmless: str) -> None:
    assert clean(hostile) == harmless


@given(st.text())
def test_whatever_it_was_clean_text_is_one_short_printable_line(text: str) -> None:
    cleaned = clean(text)

    assert len(cleaned) <= 120
    assert not any(unicodedata.category(c)[0] == "C" for c in cleaned)
    cleaned.encode()


def test_long_text_is_cut_with_an_ellipsis() -> None:
    assert clean("x" * 200, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ((), "4 ranks"),
        (("a",), "4 ranks on a"),
        (("a", "b"), "4 ranks on 2 hosts: a, b"),
        (tuple("abcdefgh"), "4 ranks on 8 hosts: a, …, h"),
    ],
)
def test_ranks_are_placed_on_hosts_as_far_as_the_file_knows(hosts: tuple[str, ...], expected: str) -> None:
    assert ranks_and_hosts(4, hosts) == expected


def test_the_header_says_what_where_and_how(curve_of: Any) -> None:
    curve = curve_of(proven_path="shm", path="shm")
    placed = Curve(curve.key, curve.points, Setting("MPICH 5.0.1", ("node1",), "2 x AMD EPYC 9354"))

    assert header_lines(placed) == [
        "allreduce sum · float32 · 4 ranks on node1",
        "mpi, MPICH 5.0.1 on cpu · 2 x AMD EPYC 9354",
        "mode sync · cache hot · in place · path shm · proven shm",
    ]


def test_the_header_names_root_and_variant_where_there_are_any(curve_of: Any) -> None:
    assert header_lines(curve_of(op="broadcast", redop=None, root=2))[0].startswith("broadcast root 2 · float32")
    p2p = curve_of(op="p2p", redop=None, variant="pair=0,3;bidirectional")
    assert header_lines(p2p)[0].startswith("p2p pair 0,3, bidirectional · float32")


def test_labels_name_only_what_differs(curve_of: Any) -> None:
    assert labels([curve_of()]) == [""]
    assert labels([curve_of(), curve_of(mode="pipe")]) == ["mode sync", "mode pipe"]
    assert labels([curve_of(), curve_of(op="broadcast", redop=None, root=0, in_place=False)]) == [
        "allreduce",
        "broadcast",
    ]


def test_what_follows_from_the_operation_is_named_where_the_operation_does_not_tell(curve_of: Any) -> None:
    assert labels([curve_of(), curve_of(in_place=False)]) == ["in place", "out of place"]
    assert labels([curve_of(), curve_of(redop="max")]) == ["sum", "max"]


def test_settings_are_named_where_they_differ(curve_of: Any) -> None:
    curve = curve_of()
    here = Curve(curve.key, curve.points, Setting("MPICH 5.0.1", ("a",), "Xeon"))
    there = Curve(curve.key, curve.points, Setting("MPICH 5.0.1", ("a", "b"), "Xeon", ("UCX_TLS=tcp",)))

    assert labels([here, there]) == ["a", "2 hosts: a, b, UCX_TLS=tcp"]


def test_common_words_are_what_all_curves_share(curve_of: Any) -> None:
    assert common_words([curve_of(), curve_of(mode="pipe")], ("op", "mode", "ranks")) == ["allreduce", "4 ranks"]
