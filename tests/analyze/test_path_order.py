"""Which interconnect is the worse one."""

from __future__ import annotations

import pytest

from commbench.analyze.path_order import worse_path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["net/ib"], ["net/socket"]),
        (["net/ib+gdr"], ["net/ib"]),
        (["p2p"], ["shm"]),
        (["cuda_ipc"], ["tcp"]),
        (["p2p, net/ib"], ["p2p, net/socket"]),
        (["rc", "rc"], ["rc", "tcp"]),
    ],
)
def test_a_slower_class_of_links_is_worse(before: list[str], after: list[str]) -> None:
    assert " became " in worse_path(before, after)
    assert worse_path(after, before) == ""
    assert worse_path(before, before) == ""


def test_the_text_names_both() -> None:
    assert worse_path(["net/ib"], ["net/socket"]) == "net/ib (RDMA) became net/socket (TCP)"


@pytest.mark.parametrize(("before", "after"), [([], ["tcp"]), (["rc"], []), (["telepathy"], ["tcp"]), ([""], [""])])
def test_what_is_not_proven_or_not_known_is_not_judged(before: list[str], after: list[str]) -> None:
    assert worse_path(before, after) == ""
