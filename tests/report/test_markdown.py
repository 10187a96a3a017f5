from __future__ import annotations

import re
from typing import Any

import pytest

from commbench.analyze.datasets import datasets
from commbench.analyze.fit import fit_curve
from commbench.report.markdown import datasets_markdown, escape, fits_markdown
from commbench.results import load


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("a|b", r"a\|b"),
        ("<script>alert(1)</script>", r"\<script\>alert(1)\</script\>"),
        ("[click](https://evil)", r"[click\](https://evil)"),
        ("![](https://evil/pixel)", r"\![\](https://evil/pixel)"),
        ("`code` *bold* #1", r"\`code\` \*bold\* \#1"),
        ("line\nbreak", "line break"),
        ("reduce_scatter", "reduce_scatter"),
        ("_emphasis_", r"\_emphasis\_"),
        ("5.02 us [4.91 us, 5.13 us]", "5.02 us [4.91 us, 5.13 us]"),
    ],
)
def test_text_is_shown_as_it_is(hostile: str, harmless: str) -> None:
    assert escape(hostile) == harmless


def test_a_curve_is_a_heading_a_table_and_a_list(records_of: Any) -> None:
    """T = 10 us + D / 1.024 GB/s: 11 us at 1 KiB, which is 0.0931 GB/s, and 1.5 times of it on the bus."""
    path = records_of(alpha=1e-5, bandwidth=1.024e9, sizes=[1 << i for i in range(10, 24)])

    lines = datasets_markdown(datasets([load(path)])).splitlines()

    assert lines[0] == "### allreduce sum · float32 · 4 ranks on node1"
    assert "| size | count | time(us) | ±% | algbw | busbw | p95 | check |" in lines
    assert "| --: | --: | --: | --: | --: | --: | --: | --: |" in lines
    assert "| 1K | 256 | 11.00 | 10 | 0.0931 | 0.140 | 13.20 | ok |" in lines
    assert any(line.startswith("* alpha") and "10.0 us" in line for line in lines)


def test_every_row_of_a_table_has_as_many_cells_as_its_head_whatever_the_file_says(records_of: Any) -> None:
    evil = "a|b\n| --- |\n# x"
    path = records_of(backend=evil, path=evil, header={"nodes": [{"hostname": evil}]}, flags=(evil,))

    text = datasets_markdown(datasets([load(path)]))

    rows = [re.sub(r"\\\|", "", line) for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {9}
    assert len([line for line in text.splitlines() if line.startswith("#")]) == 1


def test_fits_stand_in_a_table_with_their_notes_below(curve_of: Any) -> None:
    fits = [fit_curve(curve_of(mode=mode)) for mode in ("sync", "pipe")]

    text = fits_markdown(fits)

    assert "| curve | alpha(us) | B(GB/s) | bus B | n_1/2 | switch | fit |" in text
    assert "| mode sync | 5.000 ±0.0% | 10.0 ±0.0% | 15.0 | 48.8K | - | good |" in text
    assert "* mode pipe: mode pipe: alpha is the spacing of calls back to back" in text


def test_the_lines_of_a_curve_with_a_switch_stand_below_the_table(curve_of: Any, record: Any) -> None:
    sizes = [8 << i for i in range(31)]
    records = [record(s, 5e-6 + s / 5e9 if s < 1 << 18 else 20e-6 + s / 1e10) for s in sizes]

    text = fits_markdown([fit_curve(curve_of(records))])

    assert "| 48.8K | 256K | good |" in text
    assert "* allreduce: 8 to 128K: alpha 5.00 us ±0.0%, B 5.00 GB/s ±0.0%" in text
