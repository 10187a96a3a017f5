"""The keys are a contract with other programs: the expected ones are written out here, from docs/design.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commbench.analyze.datasets import curves_of, datasets
from commbench.analyze.fit import fit_curve
from commbench.report.documents import fit_document, show_document
from commbench.results import load

CURVE_KEYS = {
    "op", "in_place", "dtype", "redop", "root", "ranks", "backend", "device", "path", "mode", "cache",
}  # fmt: skip
POINT_KEYS = CURVE_KEYS | {"bytes"}
SECONDS = {"median", "low", "high", "p5", "p95", "min", "max"}
MEASURED = {
    "seconds", "samples", "algbw_bytes_per_second", "busbw_bytes_per_second", "proven_path", "status", "statistic",
    "check", "flags",
}  # fmt: skip


def test_show_has_a_record_for_every_run_and_a_point_over_them(records_of: Any) -> None:
    document = show_document(datasets([load(records_of(sizes=[8, 16], runs=3))]))

    assert set(document) == {"records", "points", "findings"}
    assert document["findings"] == []
    assert {frozenset(record) for record in document["records"]} == {frozenset(POINT_KEYS | MEASURED | {"run"})}
    assert {frozenset(point) for point in document["points"]} == {
        frozenset(POINT_KEYS | MEASURED | {"runs", "interval"})
    }
    assert set(document["records"][0]["seconds"]) == SECONDS == set(document["points"][0]["seconds"])
    assert [(record["bytes"], record["run"]) for record in document["records"]][:3] == [(8, 1), (16, 1), (8, 2)]
    assert [(point["bytes"], point["runs"], point["interval"]) for point in document["points"]] == [
        (8, 3, "runs"),
        (16, 3, "runs"),
    ]


def test_findings_say_what_where_and_how_much(records_of: Any, record: Any) -> None:
    """A time of 5 times what lies around it, at one size of many."""
    records = [record(8 << i, (5 if i == 10 else 1) * (1e-6 + (8 << i) / 1e9)) for i in range(20)]

    [finding] = show_document(datasets([load(records_of(records))]))["findings"]

    assert set(finding) == CURVE_KEYS | {"kind", "sizes", "ratio", "text"}
    assert (finding["kind"], finding["op"], finding["sizes"]) == ("dip", "allreduce", [8192])
    assert set(finding["ratio"]) == {"value", "low", "high"}
    assert finding["ratio"]["value"] == pytest.approx(5, rel=0.02)
    assert finding["ratio"]["low"] < 5 < finding["ratio"]["high"]


def test_a_flag_is_a_finding_without_a_ratio(records_of: Any, record: Any) -> None:
    [finding] = show_document(datasets([load(records_of([record(8, flags=("drift",))]))]))["findings"]

    assert (finding["kind"], finding["sizes"]) == ("drift", [8])
    assert finding["ratio"] == {"value": None, "low": None, "high": None}


def test_values_are_in_base_units(records_of: Any, record: Any) -> None:
    document = show_document(datasets([load(records_of([record(1_000_000, 1e-3)]))]))

    [point] = document["points"]
    assert point["seconds"]["median"] == 1e-3
    assert point["algbw_bytes_per_second"] == pytest.approx(1e9)
    assert point["busbw_bytes_per_second"] == pytest.approx(1.5e9)


def test_a_failed_record_has_no_seconds_and_a_reason(records_of: Any, record: Any) -> None:
    failed = record(8, None, status="failed", reason="rank 1 died", check="skipped")

    [shown] = show_document(datasets([load(records_of([failed]))]))["records"]

    assert shown["seconds"] is None
    assert shown["algbw_bytes_per_second"] is None
    assert (shown["status"], shown["reason"]) == ("failed", "rank 1 died")


def test_entries_of_different_settings_name_their_files(records_of: Any) -> None:
    paths = [records_of(name="a.jsonl"), records_of(name="b.jsonl", header={"environment": {"UCX_TLS": "tcp"}})]

    document = show_document(datasets([load(path) for path in paths]))

    assert {tuple(point["files"]) for point in document["points"]} == {(str(path),) for path in paths}


def test_fit_gives_estimates_with_intervals(records_of: Any) -> None:
    document = fit_document(map(fit_curve, curves_of(datasets([load(records_of(runs=3))]))))

    [curve] = document["curves"]
    assert set(curve) == CURVE_KEYS | {
        "points", "runs", "alpha_seconds", "bandwidth_bytes_per_second", "bus_bandwidth_bytes_per_second",
        "n_half_bytes", "segments", "quality", "largest_residual", "notes",
    }  # fmt: skip
    assert set(curve["alpha_seconds"]) == {"value", "low", "high"}
    assert curve["alpha_seconds"]["value"] == pytest.approx(5e-6)
    assert (curve["points"], curve["runs"], curve["quality"], curve["notes"]) == (24, 3, "good", [])
    [segment] = curve["segments"]
    assert set(segment) == {"from_bytes", "to_bytes", "alpha_seconds", "bandwidth_bytes_per_second"}
    assert (segment["from_bytes"], segment["to_bytes"]) == (8, 64 << 20)


def test_what_is_not_identified_is_null_with_a_bound(curve_of: Any) -> None:
    [curve] = fit_document([fit_curve(curve_of(sizes=[1 << i for i in range(20, 30)], noise=0.02))])["curves"]

    alpha = curve["alpha_seconds"]
    assert set(alpha) == {"value", "low", "high", "upper"}
    assert (alpha["value"], alpha["low"], alpha["high"]) == (None, None, None)
    assert alpha["upper"] > 0


def test_bandwidth_that_is_not_identified_has_a_lower_bound_as_well(curve_of: Any) -> None:
    [curve] = fit_document([fit_curve(curve_of(sizes=[8 << i for i in range(8)], noise=0.02))])["curves"]

    assert set(curve["bandwidth_bytes_per_second"]) == {"value", "low", "high", "upper", "lower"}


def test_segments_of_a_switch_have_their_own_estimates(curve_of: Any, record: Any) -> None:
    sizes = [8 << i for i in range(31)]
    records = [record(s, 5e-6 + s / 5e9 if s < 1 << 18 else 20e-6 + s / 1e10) for s in sizes]

    [curve] = fit_document([fit_curve(curve_of(records))])["curves"]

    below, above = curve["segments"]
    assert (below["from_bytes"], below["to_bytes"], above["from_bytes"], above["to_bytes"]) == (
        8, 128 << 10, 256 << 10, 8 << 30,
    )  # fmt: skip
    assert set(below["alpha_seconds"]) == {"value", "low", "high"}
    assert above["bandwidth_bytes_per_second"] == curve["bandwidth_bytes_per_second"]
    assert above["alpha_seconds"] == {"value": None, "low": None, "high": None, "upper": pytest.approx(20e-6, rel=1e-3)}


def test_a_bus_bandwidth_that_nobody_can_know_is_null(curve_of: Any) -> None:
    [curve] = fit_document([fit_curve(curve_of(ranks=0))])["curves"]

    assert curve["bus_bandwidth_bytes_per_second"] == {"value": None, "low": None, "high": None, "upper": None}


def test_hostile_text_is_escaped_by_json_itself(records_of: Any) -> None:
    evil = "\x1b[2J\u202e\ud800"
    document = show_document(datasets([load(records_of(backend=evil, sizes=[8]))]))

    text = json.dumps(document)

    assert text.isascii()
    assert "\x1b" not in text
