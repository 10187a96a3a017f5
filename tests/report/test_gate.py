"""A verdict in every form: text, Markdown, JSON, JUnit, annotations, and for trackers."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from commbench.analyze.datasets import datasets
from commbench.analyze.facts import Change
from commbench.analyze.verdicts import CurveVerdict, GateReport, Hit, Ratio
from commbench.errors import UsageError
from commbench.report.exports import Series, exported, series_of_results, series_of_verdict
from commbench.report.gate import curve_lines, gate_view, headline, hit_words, ratio_words
from commbench.report.gate_ci import github_annotations, junit
from commbench.report.gate_document import gate_document
from commbench.report.gate_markdown import gate_markdown
from commbench.results import load

EVIL = "a|b\n::error::<b>%0A\x1b[31m,"


@pytest.fixture
def key(point: Any) -> Any:
    return point(0)


def verdict(key: Any, **changes: Any) -> CurveVerdict:
    usual: dict[str, Any] = {
        "verdict": "pass",
        "stage": 1,
        "level": Ratio(1.004, 0.99, 1.02),
        "bands": tuple(Hit("band", where, None, Ratio(1.0, 0.98, 1.03)) for where in ("8-1K", "2K-256K", "512K-64M")),
        "smallest_detectable": 1.083,
        "typical": 1.061,
        "pairs": 5,
        "sizes": 24,
    }
    return CurveVerdict(key=key, **usual | changes)


def regression(key: Any) -> CurveVerdict:
    hits = (
        Hit("level", "all sizes", (8, 64 << 20), Ratio(1.052, 1.041, 1.063), 3.2e-7),
        Hit("size", "64K", (65536, 65536), Ratio(1.121, 1.098, 1.144), 2e-5),
        Hit("wrong", "4K", (4096, 4096), Ratio(None), text="wrong answer: element 3"),
    )
    return verdict(key, verdict="regression", stage=2, pairs=10, hits=hits, level=Ratio(1.052, 1.041, 1.063))


def inconclusive(key: Any) -> CurveVerdict:
    reasons = ("all sizes together may be up to 7.9 % slower, a pass must rule out 5 %",)
    return verdict(key, verdict="inconclusive", stage=2, pairs=10, pairs_needed=23, reasons=reasons)


def shown(report: GateReport) -> str:
    console = Console(width=80, force_terminal=False, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(gate_view(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


# -- text ----------------------------------------------------------------------------------------------------------


def test_a_pass_says_what_would_have_been_seen(key: Any) -> None:
    assert shown(GateReport("pass", (verdict(key),))) == (
        "no regression: allreduce sum · float32 · 4 ranks · mpi · mode sync · cache hot ·\n"
        "in place · path auto\n"
        "data    5 pairs, 24 sizes, decided at the first look\n"
        "level   all sizes together +0.4 % [-1.0 %, +2.0 %]\n"
        "bands   8-1K +0.0 % [-2.0 %, +3.0 %]; 2K-256K +0.0 % [-2.0 %, +3.0 %]; 512K-64M\n"
        "        +0.0 % [-2.0 %, +3.0 %]\n"
        "seen    one size alone that is 8.3 % slower would have been seen anywhere, 6.1 %\n"
        "        at half of the sizes"
    )


def test_a_regression_says_what_got_slower_by_how_much_and_how_likely_by_chance(key: Any) -> None:
    lines = curve_lines(regression(key))

    assert [text for label, text in lines if label == "worse"] == [
        "all sizes +5.2 % [+4.1 %, +6.3 %], p < 1e-06",
        "64K +12.1 % [+9.8 %, +14.4 %], p = 2e-05",
        "4K: wrong answer: element 3",
    ]


def test_what_cannot_be_told_says_how_many_pairs_would_decide(key: Any) -> None:
    """Half of them: the second look measures as many again."""
    lines = dict(curve_lines(inconclusive(key)))

    assert lines["more"] == "about 23 pairs would decide, 10 were measured: --pairs 12"


def test_what_no_number_of_pairs_decides_needs_another_machine(key: Any) -> None:
    one = verdict(key, verdict="inconclusive", stage=2)

    assert "quieten the machine" in dict(curve_lines(one))["more"]


def test_a_refusal_without_curves_is_its_reasons() -> None:
    assert shown(GateReport("refused", (), ("mode is sync and pipe",))) == "refused\nwhy     mode is sync and pipe"


def test_what_differs_between_the_sides_is_told_below(key: Any) -> None:
    changed = (Change("libraries.mpi", ("MPICH 5.0.1", None)),)
    text = shown(GateReport("pass", (verdict(key),), changed=changed, session_spread=0.02))

    assert "differs libraries.mpi: MPICH 5.0.1 -> none" in text
    assert "a spread of 2.0% between" in text


def test_a_headline_counts_the_curves_it_is_about(key: Any) -> None:
    curves = regression(key), verdict(key), verdict(key)

    assert headline(GateReport("regression", curves)) == "REGRESSION in 1 of 3 curves"
    assert shown(GateReport("regression", curves)).startswith("REGRESSION in 1 of 3 curves\n\nREGRESSION: allreduce")
    assert headline(GateReport("pass", curves[1:])) == "no regression in 2 curves"


def test_a_refused_limit_is_not_hidden_behind_a_curve_that_passes(key: Any) -> None:
    text = shown(GateReport("refused", (verdict(key),), ("allgather@8 time<=1s: no such curve was measured",)))

    assert text.startswith("refused\n\nno regression: allreduce")
    assert "no such curve" in text


def test_dozens_of_hits_are_counted_and_not_listed(key: Any) -> None:
    hits = tuple(Hit("size", str(k), (k, k), Ratio(1.2)) for k in range(30))

    assert ("worse", "and 18 more") in curve_lines(verdict(key, hits=hits))


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.0123, 0.9977, 1.0277), "+1.2 % [-0.2 %, +2.8 %]"),
        (Ratio(3.0), "x3"),
        (Ratio(None), "unknown"),
    ],
)
def test_a_ratio_is_a_change(ratio: Ratio, text: str) -> None:
    assert ratio_words(ratio) == text


def test_text_out_of_files_moves_no_cursor(key: Any) -> None:
    hit = Hit("wrong", EVIL, None, Ratio(None), text=EVIL)

    assert "\x1b" not in hit_words(hit)
    assert "\n" not in hit_words(hit)
    assert "\x1b" not in shown(GateReport("refused", (), (EVIL,), (Change(EVIL, (EVIL, EVIL)),)))


# -- Markdown ------------------------------------------------------------------------------------------------------


def test_markdown_has_a_row_a_curve_and_folds_the_rest(key: Any) -> None:
    text = gate_markdown(GateReport("regression", (regression(key), verdict(key))))

    assert text.startswith("### commbench gate: REGRESSION in 1 of 2 curves\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert rows[2].split(" | ")[1:3] == ["REGRESSION", "+5.2 % [+4.1 %, +6.3 %]"]
    assert rows[3].endswith("| no regression | +0.4 % [-1.0 %, +2.0 %] | - |")
    assert text.count("<details>") == text.count("</details>") == 2


def test_markdown_cannot_be_broken_by_what_a_file_says(key: Any) -> None:
    evil = verdict(key, verdict="regression", hits=(Hit("wrong", EVIL, None, Ratio(None), text=EVIL),))
    text = gate_markdown(GateReport("regression", (evil,), (EVIL,)))

    assert "<b>" not in text.replace(r"\<b\>", "")
    assert {line.replace(r"\|", "").count("|") for line in text.splitlines() if line.startswith("|")} == {5}


# -- JSON ----------------------------------------------------------------------------------------------------------


def test_the_keys_of_the_document_are_those_of_the_contract(key: Any) -> None:
    document = gate_document(GateReport("regression", (regression(key),), ("note",)), 3)

    assert {"verdict", "exit_code", "curves", "reasons"} <= set(document)
    assert (document["verdict"], document["exit_code"], document["reasons"]) == ("regression", 3, ["note"])
    [curve] = document["curves"]
    assert {
        "op", "in_place", "dtype", "redop", "root", "ranks", "backend", "device", "path", "mode", "cache", "verdict",
        "stage", "level_ratio", "hits", "improvements", "smallest_detectable", "pairs", "pairs_needed",
    } <= set(curve)  # fmt: skip
    assert "bytes" not in curve
    assert curve["level_ratio"] == {"value": 1.052, "low": 1.041, "high": 1.063}
    assert curve["hits"][1] == {
        "family": "size", "where": "64K", "from_bytes": 65536, "to_bytes": 65536,
        "ratio": {"value": 1.121, "low": 1.098, "high": 1.144}, "p": 2e-5,
    }  # fmt: skip
    assert curve["hits"][2]["ratio"] == {"value": None, "low": None, "high": None}
    assert json.loads(json.dumps(document, allow_nan=False)) == document


# -- machines of CI ------------------------------------------------------------------------------------------------


def test_junit_has_a_case_a_curve_and_what_cannot_be_told_is_an_error(key: Any) -> None:
    suite = ET.fromstring(junit(GateReport("regression", (regression(key), verdict(key), inconclusive(key))))).find(
        "testsuite"
    )
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "1", "errors": "1",
    }  # fmt: skip
    first, second, third = suite.findall("testcase")
    failure = first.find("failure")
    assert failure is not None
    assert "64K +12.1 %" in str(failure.get("message"))
    assert second.find("failure") is None
    assert second.find("error") is None
    assert third.find("error") is not None


def test_junit_of_a_refusal_is_not_an_empty_suite() -> None:
    suite = ET.fromstring(junit(GateReport("refused", (), ("mode is sync and pipe",)))).find("testsuite")

    assert suite is not None
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


def test_junit_survives_what_a_file_says(key: Any) -> None:
    ET.fromstring(junit(GateReport("refused", (verdict(key, verdict="refused", reasons=(EVIL,)),), (EVIL,))))


def test_a_regression_is_an_error_of_github_and_doubt_a_warning(key: Any) -> None:
    lines = list(github_annotations(GateReport("regression", (regression(key), verdict(key), inconclusive(key)))))

    assert len(lines) == 2
    assert lines[0].startswith("::error title=commbench gate%3A REGRESSION::allreduce sum")
    assert "+5.2 %25 [" in lines[0]
    assert lines[1].startswith("::warning title=commbench gate%3A cannot tell::")


def test_nothing_out_of_a_file_becomes_a_command_of_its_own(key: Any) -> None:
    evil = verdict(key, verdict="regression", hits=(Hit("wrong", EVIL, None, Ratio(None), text=EVIL),))
    lines = list(github_annotations(GateReport("regression", (evil,))))

    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert lines[0].count("::") == 2 + 2 * EVIL.count("::")


# -- trackers ------------------------------------------------------------------------------------------------------

ONE = Series("allreduce @ 8", "s", 5e-6, 4.9e-6, 5.1e-6, "3 runs")


def test_github_action_benchmark_gets_a_list_of_values_with_a_range() -> None:
    assert exported([ONE], "github-action-benchmark") == [
        {"name": "allreduce @ 8", "unit": "us", "value": pytest.approx(5.0), "range": "± 0.1", "extra": "3 runs"}
    ]


def test_bencher_gets_nanoseconds_with_their_bounds() -> None:
    metric = {"value": 5000.0, "lower_value": 4900.0, "upper_value": 5100.0}

    assert exported([ONE], "bencher") == {"allreduce @ 8": {"latency": pytest.approx(metric)}}


def test_a_value_without_an_interval_has_none() -> None:
    bare = Series("x", "ratio", 1.2, None, None, "")

    assert exported([bare], "bencher") == {"x": {"time-ratio": {"value": 1.2}}}
    assert "range" not in exported([bare], "github-action-benchmark")[0]


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        exported([], "telepathy")
    assert caught.value.hint == "one of: github-action-benchmark, bencher"


def test_of_a_verdict_level_and_bands_are_tracked_and_not_25_sizes(key: Any) -> None:
    series = series_of_verdict(GateReport("pass", (verdict(key),)))

    assert [one.name.split(" @ ")[1] for one in series] == ["all sizes", "8-1K", "2K-256K", "512K-64M"]
    assert {one.unit for one in series} == {"ratio"}


def test_of_results_every_sound_point_is_tracked_under_its_own_name(records_of: Any, record: Any) -> None:
    path = records_of([record(8), record(16), record(32, check="wrong"), record(8, mode="pipe")])
    series = series_of_results(datasets([load(path)]))

    assert len(series) == len({one.name for one in series}) == 3
    assert series[0].value == 1e-5
