"""What a comparison looks like: words, table, Markdown, JSON and picture of comparisons with a known truth."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commbench.analyze.compare import Compared, compare
from commbench.analyze.matching import Side
from commbench.errors import ResultsError, UsageError
from commbench.records import Seconds
from commbench.report.canvas import our_style
from commbench.report.compare_document import compare_document
from commbench.report.compare_markdown import compared_markdown
from commbench.report.compare_plot import draw_comparisons, figure_of, target
from commbench.report.compare_rows import columns, rows, units
from commbench.report.compare_view import compared_view
from commbench.report.compare_words import Words, left_out_lines, letter, sizes_words
from commbench.results import load

GOLDEN = Path(__file__).parent.parent / "golden"
SIZES = [1 << i for i in range(3, 24)]

# 10 us + D / 1.024 GB/s and 20 us + D / 2.048 GB/s: equal where D / 2.048 GB/s = 10 us, at 20480 bytes = 20K.
ONE = {"alpha": 1e-5, "bandwidth": 1.024e9, "sizes": SIZES}
TWO = {"alpha": 2e-5, "bandwidth": 2.048e9, "sizes": SIZES}


@pytest.fixture
def compared(records_of: Any) -> Any:
    """A function: of each side its name and the arguments of `records_of`."""
    numbers = count()

    def build(across: tuple[str, ...] = (), **sides: dict[str, Any]) -> Compared:
        files = {name: load(records_of(name=f"{next(numbers)}.jsonl", **side)) for name, side in sides.items()}
        return compare([Side(name, (file,)) for name, file in files.items()], across)

    return build


def words_of(compared: Compared) -> Words:
    return Words(compared.comparisons[0])


def text_of(view: Any, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def lines_of(compared: Compared) -> dict[str, str]:
    """Label -> text of the first pair."""
    words = words_of(compared)
    return dict(words.pair_lines(words.comparison.pairs[0]))


def test_the_view_of_two_curves_is_the_golden_one(compared: Any) -> None:
    found = compared(shm=ONE | {"path": "shm", "runs": 3}, p2p=TWO | {"path": "p2p", "runs": 3, "sizes": SIZES[2:]})

    assert text_of(compared_view(found)) == (GOLDEN / "compare-80.txt").read_text()


def test_a_row_holds_size_times_ratio_and_interval(compared: Any) -> None:
    """At 1K 11 us and 20.5 us: 1.864 times; equal runs leave no doubt."""
    words = words_of(compared(a=ONE | {"runs": 2}, b=TWO | {"runs": 2}))
    pairs = words.comparison.pairs

    [row] = [row for row in rows(words, pairs) if row[0] == "1K"]
    assert dict(zip(columns(words, pairs), row, strict=True)) == {
        "size": "1K",
        "A(us)": "11.00",
        "B(us)": "20.50",
        "B/A": "1.864",
        "low": "1.864",
        "high": "1.864",
    }
    assert units(words, pairs) == "B/A: time of B / time of A; low, high: 95 % interval over 2 runs each"


def test_an_interval_that_holds_1_is_marked_and_explained(compared: Any) -> None:
    words = words_of(compared(a=ONE, b=ONE | {"alpha": 1.01e-5}))
    pairs = words.comparison.pairs

    assert rows(words, pairs)[0][3] == "~1.010"
    assert "within one run, so how launches differ is not in it" in units(words, pairs)
    assert "~: it holds 1" in units(words, pairs)


def test_a_size_that_one_pair_lacks_is_a_dash_there(compared: Any) -> None:
    words = words_of(compared(a=ONE, b=ONE | {"sizes": SIZES[1:]}, c=ONE))

    first, second, *_ = rows(words, words.comparison.pairs)
    assert (first[0], first[2:6], first[6]) == ("8", ["-"] * 4, "10.01")
    assert "-" not in second


def test_rates_stand_beside_times_where_the_bus_factors_differ(compared: Any) -> None:
    """1 MiB in 1034 us on 4 ranks is 1.52 GB/s on the bus (factor 1.5), on 2 ranks 1.01 (factor 1)."""
    found = compared(("ranks",), a=ONE | {"ranks": 4}, b=ONE | {"ranks": 2})
    words = words_of(found)

    [row] = [row for row in rows(words, words.comparison.pairs) if row[0] == "1M"]
    assert dict(zip(columns(words, words.comparison.pairs), row, strict=True)) | {"B/A": ""} == {
        "size": "1M", "A(us)": "1034", "A bus": "1.52", "B(us)": "1034", "B bus": "1.01",
        "B/A": "", "low": row[-2], "high": row[-1],
    }  # fmt: skip
    assert lines_of(found)["bus"].startswith("B/A 0.6667 [")
    assert "bus" not in lines_of(compared(a=ONE, b=TWO))


def test_curves_are_named_by_file_then_by_what_differs_then_by_letter(compared: Any, records_of: Any) -> None:
    short = words_of(compared(before=ONE, after=TWO | {"path": "p2p"}))
    long = words_of(compared(**{"x" * 30: ONE | {"path": "shm"}, "y" * 30: TWO | {"path": "p2p"}}))
    neither = words_of(compared(**{"x" * 30: ONE, "y" * 30: TWO}))

    assert short.names == ["before", "after"]
    assert long.names == ["path shm", "path p2p"]
    assert neither.names == ["A", "B"]
    assert [letter(number) for number in (0, 25, 26)] == ["A", "Z", "C27"]


def test_the_legend_says_what_differs_and_the_header_what_does_not(compared: Any) -> None:
    words = words_of(
        compared(
            a=ONE | {"path": "shm", "runs": 3},
            b=TWO | {"path": "tcp", "header": {"environment": {"UCX_TLS": "tcp"}}},
        )
    )

    assert words.legend == ["A  path shm · a · 3 runs", "B  path tcp, UCX_TLS=tcp · b · 1 run"]
    assert "allreduce" in words.header[0]
    assert "path" not in words.header[0]
    assert words.header[1] == "MPICH 5.0.1 · node1 · 2 x AMD EPYC 9354"


def test_a_variable_that_one_lacks_is_its_label(compared: Any) -> None:
    words = words_of(compared(a=ONE, b=ONE | {"header": {"environment": {"UCX_TLS": "tcp"}}}))

    assert words.labels == ["no UCX_TLS", "UCX_TLS=tcp"]


def test_what_a_time_is_made_of_is_a_label_where_it_differs(compared: Any) -> None:
    words = words_of(compared(("statistic",), a=ONE, b=ONE | {"statistic": "mean"}))

    assert words.labels == ["statistic median_of_max", "statistic mean"]


def test_a_crossing_is_told_with_who_is_ahead_and_how_sure_the_place_is(compared: Any) -> None:
    """The truth is 20K; chords between factors of two leave a few per cent."""
    text = lines_of(compared(shm=ONE | {"runs": 3}, p2p=TWO | {"runs": 3}))["crossing"]

    assert text.startswith("shm is faster below, p2p above; equal at about 20.")
    low, high = text.split("(")[1].rstrip(")").split(" to ")
    assert float(low.rstrip("K")) < 20 < float(high.rstrip("K"))


def test_a_crossing_within_one_run_and_one_without_intervals_say_so(compared: Any, record: Any) -> None:
    bare = [
        [record(s, seconds=Seconds(median=a + s / b)) for s in SIZES] for a, b in ((1e-5, 1.024e9), (2e-5, 2.048e9))
    ]

    within = lines_of(compared(a=ONE, b=TWO))["crossing"]
    without = lines_of(compared(a={"records": bare[0]}, b={"records": bare[1]}))["crossing"]

    assert within.endswith("; within one run")
    assert "(between 16K and 32K)" in without
    assert without.endswith("; no interval is known, so it may be chance")


def test_no_crossing_is_said_and_one_size_says_nothing_of_it(compared: Any) -> None:
    assert lines_of(compared(a=ONE, b=ONE | {"alpha": 2e-5, "bandwidth": 5e8}))["crossing"] == "none"
    assert "crossing" not in lines_of(compared(a=ONE, b=ONE | {"sizes": [64]}))


def test_who_is_faster_is_counted_and_few_sizes_are_named(compared: Any, record: Any) -> None:
    ours = [record(size, 1e-5, run) for run in (1, 2) for size in (8, 16, 32, 64)]
    theirs = [record(size, 5e-6 if size == 64 else 2e-5, run) for run in (1, 2) for size in (8, 16, 32, 64)]

    lines = lines_of(compared(a={"records": ours}, b={"records": theirs}))

    assert lines["faster"] == "a at 3 (8, 16, 32), b at 1 (64), undecided at none of 4 sizes, each by its own interval"
    assert lines["crossing"] == "none is clear"


def test_the_last_sentence_is_the_ratio_over_all_sizes(compared: Any) -> None:
    def sentence(found: Compared) -> str:
        words = words_of(found)
        return words.in_short(words.comparison.pairs[0])

    twice = {"alpha": 2e-5, "bandwidth": 5.12e8, "sizes": SIZES, "runs": 3}
    once = ONE | {"runs": 3}
    noisy = once | {"noise": 0.05, "run_noise": 0.05}

    assert sentence(compared(a=once, b=twice)) == "b is 2.000x (2.000 to 2.000) slower than a over the 21 common sizes."
    assert sentence(compared(b=twice, a=once)) == "a is 2.000x (2.000 to 2.000) faster than b over the 21 common sizes."
    assert sentence(compared(a=noisy, b=noisy | {"seed": 2})).startswith("b and a cannot be told apart over the 21")
    assert sentence(compared(a=ONE, b=TWO)).endswith("slower than a over the 21 common sizes, but they change places.")
    assert " within one run) slower" in sentence(compared(a=ONE, b=TWO))
    assert " at 64" in sentence(compared(a=once, b=twice | {"sizes": [64]}))


def test_a_ratio_without_an_interval_claims_neither_faster_nor_slower(compared: Any, record: Any) -> None:
    words = words_of(
        compared(
            a={"records": [record(8, seconds=Seconds(median=1e-5))]},
            b={"records": [record(8, seconds=Seconds(median=2e-5))]},
        )
    )

    assert words.in_short(words.comparison.pairs[0]) == "b takes 2.000 times as long as a at 8; no interval is known."


def test_parameters_that_are_not_known_say_of_whom(compared: Any) -> None:
    lines = lines_of(compared(a=ONE, b=ONE | {"sizes": SIZES[:8], "noise": 0.01}))
    no_fit = lines_of(compared(a=ONE, b=ONE | {"sizes": SIZES[:3]}))

    assert lines["bandwidth"] == "B/A unknown: not identified in B"
    assert no_fit["alpha"] == "B/A unknown: B has no fit"


def test_the_same_measurement_under_two_names_is_suspected(compared: Any) -> None:
    words = words_of(compared(a=ONE | {"noise": 0.1}, b=ONE | {"noise": 0.1}))

    assert ("note", "all times are equal to the last digit: is it the same measurement twice?") in words.pair_lines(
        words.comparison.pairs[0]
    )


def test_killed_launches_sessions_and_flags_are_notes(compared: Any) -> None:
    words = words_of(
        compared(
            a=ONE | {"header": {"session": "s1"}, "flags": ("drift",)},
            b=ONE | {"header": {"session": "s2"}, "status": None},
        )
    )

    assert words.notes() == [
        "measured in different sessions: what differs from one to the next is in no interval here",
        "A is odd: drift at 21 sizes; see `commbench show`",
        "B: run 1 has not ended: it is still going on, or was killed",
    ]


def test_a_curve_with_no_size_in_common_is_a_note_beside_those_that_have(compared: Any, records_of: Any) -> None:
    found = compared(a=ONE, b=ONE, c=ONE)
    [comparison] = found.comparisons
    without = replace(comparison, pairs=comparison.pairs[:1])

    assert "C has no size in common with A" in Words(without).notes()


def test_changes_name_fact_and_values_and_many_are_cut(compared: Any) -> None:
    few = words_of(compared(a=ONE, b=ONE | {"header": {"environment": {"UCX_TLS": "tcp"}, "launcher": "srun"}}))
    many = words_of(compared(a=ONE, b=ONE | {"header": {"environment": {f"NCCL_{i}": "1" for i in range(20)}}}))

    assert few.changes() == ["launcher: A unknown, B srun", "environment.UCX_TLS: A not set, B tcp"]
    assert len(many.changes()) == 13
    assert many.changes()[-1] == "and 8 more facts: see --json"


def test_curves_that_were_left_out_are_named_by_what_tells_them_apart(compared: Any, record: Any) -> None:
    found = compared(a={"records": [record(8), record(8, mode="pipe")]}, b={"records": [record(8)]})

    assert left_out_lines(found) == ["left out: mode pipe of a: nothing like it elsewhere"]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [([8], "8"), ([8, 1024], "8, 1K"), (SIZES, "21 sizes from 8 to 8M")],
)
def test_sizes_are_listed_or_counted(sizes: list[int], words: str) -> None:
    assert sizes_words(sizes) == words


@pytest.mark.parametrize("curves", [2, 3, 6])
@pytest.mark.parametrize("width", [80, 200])
def test_tables_stay_within_the_width_and_wrap_by_curve(compared: Any, curves: int, width: int) -> None:
    sides = {
        name: ONE | {"alpha": 1e-5 * (n + 1), "runs": 3, "noise": 0.02, "seed": n} for n, name in enumerate("uvwxyz")
    }

    text = text_of(compared_view(compared(**dict(list(sides.items())[:curves]))), width)

    assert max(map(len, text.splitlines())) <= width
    heads = [line for line in text.splitlines() if line.lstrip().startswith("size ")]
    assert sum(head.count("/A") for head in heads) == curves - 1
    assert all("A(us)" in head for head in heads)
    assert width == 80 or len(heads) == 1


def test_markdown_has_a_table_and_escapes_what_strangers_wrote(compared: Any) -> None:
    evil = "\x1b[2J|<b>`x`"
    text = compared_markdown(compared(a=ONE, b=TWO | {"path": evil, "header": {"environment": {"X": evil}}}))

    assert "| size | A(us) | B(us) | B/A | low | high |" in text
    assert "| 1K | 11.00 | 20.50 | 1.864 |" in text
    assert "\x1b" not in text
    assert "<b>" not in text
    assert text.endswith("Ratios, not a verdict: `commbench gate` judges.")


def test_hostile_text_reaches_no_terminal(compared: Any) -> None:
    evil = "\x1b[2J[bold]\r\nnode\u202e"
    header = {
        "nodes": [{"hostname": evil, evil: evil}], "libraries": {evil: evil}, "environment": {evil: evil},
        "session": evil, "launcher": evil,
    }  # fmt: skip

    text = text_of(compared_view(compared(**{evil: ONE, "b": TWO | {"path": evil, "header": header, "status": evil}})))

    assert "[bold]" in text
    assert not set(text) & {"\x1b", "\r", "\u202e"}


def test_the_document_is_in_base_units_no_contract_and_valid_json(compared: Any) -> None:
    found = compared(a=ONE | {"runs": 3, "noise": 0.01}, b=TWO | {"runs": 3, "noise": 0.01, "seed": 2, "path": "p2p"})

    document = json.loads(json.dumps(compare_document(found), allow_nan=False))

    assert document["contract"] is False
    [comparison] = document["comparisons"]
    assert comparison["differs_in"] == ["path"]
    assert [(c["letter"], c["name"], c["path"], c["runs"]) for c in comparison["curves"]] == [
        ("A", "a", "auto", 3),
        ("B", "b", "p2p", 3),
    ]
    [pair] = comparison["pairs"]
    at_1k = next(size for size in pair["sizes"] if size["bytes"] == 1024)
    assert at_1k["first"]["seconds"]["value"] == pytest.approx(11e-6, rel=0.05)
    assert at_1k["ratio"]["value"] == pytest.approx(
        at_1k["other"]["seconds"]["value"] / at_1k["first"]["seconds"]["value"]
    )
    assert at_1k["ratio"]["low"] < at_1k["ratio"]["value"] < at_1k["ratio"]["high"]
    assert (at_1k["interval"], at_1k["interval_holds_one"]) == ("runs", False)
    assert pair["alpha_ratio"]["value"] == pytest.approx(2, rel=0.05)
    assert pair["crossings"][0]["bytes"]["value"] == pytest.approx(20480, rel=0.1)
    assert (pair["crossings"][0]["faster_below"], pair["crossings"][0]["faster_above"]) == ("A", "B")


def test_what_is_not_identified_is_null_in_the_document(compared: Any) -> None:
    [comparison] = compare_document(compared(a=ONE, b=ONE | {"sizes": SIZES[:3]}))["comparisons"]

    assert comparison["pairs"][0]["alpha_ratio"] == {"value": None, "low": None, "high": None, "upper": None}
    assert comparison["pairs"][0]["fit_quality"] == {"A": "good", "B": None}


def texts(path: Path) -> list[str]:
    return ["".join(element.itertext()) for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_has_the_ratios_below_with_the_line_1_and_the_crossing(compared: Any, tmp_path: Path) -> None:
    found = compared(shm=ONE | {"runs": 3, "noise": 0.01}, p2p=TWO | {"runs": 3, "noise": 0.01, "seed": 2})
    with our_style():
        ratios = figure_of(found.comparisons[0]).axes[2]

    assert list(ratios.lines[0].get_ydata()) == [1, 1]
    drawn = next(line for line in ratios.lines if len(line.get_xdata()) == len(SIZES))
    assert list(drawn.get_ydata()) == pytest.approx([size.ratio.value for size in found.comparisons[0].pairs[0].sizes])
    [path] = draw_comparisons(found.comparisons, tmp_path / "x.svg")
    assert any(text.startswith(("equal at 19.", "equal at 20.")) for text in texts(path))
    assert "time of B / time of A: above 1 slower, below 1 faster" in texts(path)


def test_a_picture_of_many_curves_single_sizes_and_absent_intervals_can_be_drawn(
    compared: Any, record: Any, tmp_path: Path
) -> None:
    bare = {"records": [record(8, seconds=Seconds(median=1e-5))]}

    draw_comparisons(compared(a=bare, b=bare).comparisons, tmp_path / "one.svg")
    draw_comparisons(compared(a=ONE, b=TWO, c=ONE | {"alpha": 1e-3}).comparisons, tmp_path / "three.svg")

    assert (tmp_path / "three.svg").exists()


def test_several_comparisons_give_a_picture_each_named_by_what_differs(
    compared: Any, tmp_path: Path, record: Any
) -> None:
    both = {"records": [record(size, 1e-5, op=op) for op in ("allreduce", "reduce") for size in (8, 16)]}

    written = draw_comparisons(compared(a=both, b=both).comparisons, tmp_path / "x.png")

    assert [path.name for path in written] == ["x-allreduce.png", "x-reduce.png"]


def test_the_ending_chooses_the_format() -> None:
    assert target(Path("a/b.png")) == (Path("a/b"), ("png",))
    assert target(Path("a/b.SVG")) == (Path("a/b"), ("svg",))
    assert target(Path("nccl-2.27")) == (Path("nccl-2.27"), ("png", "svg"))
    with pytest.raises(UsageError, match=r"no \.pdf is written"):
        target(Path("x.pdf"))


def test_a_picture_that_cannot_be_written_is_said(compared: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot be written"):
        draw_comparisons(compared(a=ONE, b=TWO).comparisons, tmp_path / "file" / "x.svg")
