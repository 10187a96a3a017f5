"""`commbench gate` on files and limits, and what it refuses before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from commbench.cli import run
from commbench.cli.gate_sides import Spelled, spelled
from commbench.errors import UsageError
from tests.conftest import modelled

Outcome = tuple[int, str, str]
Run = Callable[..., Outcome]


@pytest.fixture
def gate(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function: runs `commbench gate`, returns exit code, stdout and stderr."""

    def go(*words: str) -> Outcome:
        code = run(["gate", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return go


@pytest.fixture
def sides(records_of: Any) -> Callable[[float], list[str]]:
    """A function: two files of five pairs, the candidate so much slower."""

    def write(factor: float = 1.0, pairs: int = 5) -> list[str]:
        files = []
        for name, slow in (("a", 1.0), ("b", factor)):
            records = modelled(alpha=5e-6 * slow, bandwidth=1e10 / slow, runs=pairs, noise=0.005, seed=ord(name))
            records = [_of_side(record, name) for record in records]
            path = records_of(records, name=f"{name}.jsonl")
            text = path.read_text().splitlines()
            path.write_text("\n".join(_paired(line, name) for line in text) + "\n")
            files.append(str(path))
        return files

    return write


def _of_side(record: Any, name: str) -> Any:
    return replace(record, launch=f"{name}{record.run}")


def _paired(line: str, name: str) -> str:
    plain = json.loads(line)
    if plain["kind"] == "run":
        plain |= {"session": "s", "pair": plain["run"]}
    if plain["kind"] in ("run", "end"):
        plain["launch"] = f"{name}{plain['run']}"
    return json.dumps(plain)


# -- two files -----------------------------------------------------------------------------------------------------


def test_what_did_not_change_exits_0(gate: Run, sides: Any) -> None:
    code, out, err = gate(*sides())

    assert (code, err) == (0, "")
    assert out.startswith("no regression: allreduce sum")


def test_what_got_slower_exits_3(gate: Run, sides: Any) -> None:
    code, out, _ = gate(*sides(1.1))

    assert code == 3
    assert out.startswith("REGRESSION: allreduce sum")
    assert "worse   all sizes +10." in out or "worse   all sizes +9." in out


def test_what_cannot_be_compared_exits_4_whatever_is_inconclusive(gate: Run, sides: Any) -> None:
    files = sides(pairs=3)

    assert gate(*files)[0] == 4
    assert gate(*files, "--on-inconclusive", "pass")[0] == 4  # refused is not inconclusive


def test_what_is_inconclusive_passes_when_asked_to(gate: Run, sides: Any) -> None:
    files = sides(1.02)

    assert gate(*files, "--margin", "1%")[0] == 4
    assert gate(*files, "--margin", "1%", "--on-inconclusive", "pass")[0] == 0


def test_the_json_is_one_document_with_the_exit_code(gate: Run, sides: Any) -> None:
    code, out, _ = gate(*sides(1.1), "--json")
    document = json.loads(out)

    assert (code, document["exit_code"], document["verdict"]) == (3, 3, "regression")


def test_markdown_is_for_a_comment(gate: Run, sides: Any) -> None:
    assert gate(*sides(), "--markdown")[1].startswith("### commbench gate: no regression in 1 curve")


def test_junit_is_written_beside_the_verdict(gate: Run, sides: Any, tmp_path: Path) -> None:
    code, out, _ = gate(*sides(1.1), "--junit", str(tmp_path / "new" / "gate.xml"))

    assert code == 3
    assert out.startswith("REGRESSION")
    assert ET.parse(tmp_path / "new" / "gate.xml").getroot().find(".//failure") is not None


def test_a_report_that_cannot_be_written_is_one_error(gate: Run, sides: Any, tmp_path: Path) -> None:
    code, _, err = gate(*sides(), "--junit", str(tmp_path))

    assert code == 1
    assert "--junit" in err


def test_annotations_go_to_stderr_on_github_alone(gate: Run, sides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sides(1.1)
    assert "::" not in gate(*files)[2]

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, out, err = gate(*files)
    assert err.startswith("::error title=commbench gate%3A REGRESSION::")
    assert "::error" not in out


def test_exports_are_values_with_bounds(gate: Run, sides: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = sides()
    exported = json.loads(gate(*files, "--export", "bencher")[1])
    assert all({"value", "lower_value", "upper_value"} == set(m["time-ratio"]) for m in exported.values())

    assert run(["show", files[0], "--export", "github-action-benchmark"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {"name", "unit", "value", "range", "extra"} == set(entries[0])
    assert len(entries) == 24


@pytest.mark.parametrize("forms", [("--json", "--markdown"), ("--json", "--export", "bencher")])
def test_two_forms_at_once_are_refused(gate: Run, sides: Any, forms: tuple[str, ...]) -> None:
    code, _, err = gate(*sides(), *forms)

    assert code == 2
    assert "exclude each other" in err


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("allreduce@1M busbw>=14GB/s", 0),
        ("allreduce@1M busbw>=20GB/s", 3),
        ("allreduce@1000 busbw>=20GB/s", 4),
        ("allreduce@1M busbw=20GB/s", 2),
    ],
)
def test_one_file_is_held_against_limits(gate: Run, records_of: Any, limit: str, code: int) -> None:
    assert gate(str(records_of(runs=3, run_noise=0.001)), "--expect", limit)[0] == code


def test_several_limits_must_all_be_kept(gate: Run, records_of: Any) -> None:
    limits = ("--expect", "allreduce@1M time<=1s", "--expect", "allreduce@1M time<=1ns")

    assert gate(str(records_of()), *limits)[0] == 3


# -- what is refused -----------------------------------------------------------------------------------------------

EMULATED = ("--op", "allreduce", "--backend", "emulated", "--ranks", "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "two results files are needed"),
        (("one.jsonl",), "two results files are needed: a baseline, a candidate; 1 are given"),
        (("a", "b", "c"), "3 are given"),
        (("a", "b", "--expect", "allreduce@8 time<=1s"), "--expect takes one results file"),
        (("a", "b", "--on-inconclusive", "shrug"), "--on-inconclusive: unknown 'shrug'"),
        (("a", "b", "--margin", "500%"), "--margin: '500%'"),
        (("a", "b", "--export", "telepathy"), "--export: unknown format"),
        (("--a", "", "--b", ""), "--op is missing"),
        (("--a", "", "--b", "", "--pairs", "3", "--", *EMULATED), "--pairs 3: at least 4"),
        (("--a", "", "--b", "", "--alternate", "never", "--", *EMULATED), "--alternate: unknown 'never'"),
        (("--a", "", "--b", "", "--session-sd", "1%", "--", *EMULATED), "--session-sd: pairs are of one session"),
        (("--a", "", "--b", "", "--expect", "allreduce@8 time<=1s", "--", *EMULATED), "--expect judges one"),
        (("--a", "", "--b", "", "--", *EMULATED, "--runs", "3"), "--runs has no place behind the --"),
        (("--a", "", "--b", "", "--", *EMULATED, "--output", "x"), "--output has no place behind the --"),
        (("--a", "", "--b", "", "--", *EMULATED, "--quick"), "--quick has no place behind the --"),
        (("--a", "", "--b", "", "--", *EMULATED, "--telepathy"), "No such option: --telepathy"),
        (("--a", "'", "--b", "", "--", *EMULATED), "cannot be split into words"),
        (("--a", "", "--b", "--dtype float64", "--", *EMULATED), "dtype is float32 and float64"),
        (("--a", "", "--b", "-e 1K", "--", *EMULATED), "--a and --b measure different things"),
        (("--a", "", "--b", "--emulate alpha=nonsense", "--", *EMULATED), "--emulate alpha"),
        (("--a", "/nowhere/python", "--b", "", "--", "--op", "allreduce", "--backend", "mpi"), "/nowhere/python"),
    ],
)
def test_nonsense_is_refused_before_anything_is_measured(
    gate: Run, words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = gate(*words)

    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_rank_cannot_start_a_gate(gate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    code, _, err = gate("--a", "", "--b", "", "--", *EMULATED)

    assert code == 2
    assert "one rank of a launch" in err


def test_a_file_that_exists_is_not_overwritten(gate: Run, tmp_path: Path) -> None:
    (tmp_path / "x-b.jsonl").write_text("precious")
    code, _, err = gate("--a", "", "--b", "", "--output", str(tmp_path / "x"), "--", *EMULATED)

    assert code == 1
    assert "x-b.jsonl: exists already" in err
    assert (tmp_path / "x-b.jsonl").read_text() == "precious"
    assert not (tmp_path / "x-a.jsonl").exists()


# -- sides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Spelled({}, (), ())),
        ("UCX_TLS=tcp NAME='a b'", Spelled({"UCX_TLS": "tcp", "NAME": "a b"}, (), ())),
        ("--nccl-lib /x --dtype float16", Spelled({}, (), ("--nccl-lib", "/x", "--dtype", "float16"))),
        ("/opt/bin/python", Spelled({}, ("/opt/bin/python",), ())),
        ("A=1 python3 -e 1M", Spelled({"A": "1"}, ("python3",), ("-e", "1M"))),
        ("box exec --nv x.sif python3 --", Spelled({}, ("box", "exec", "--nv", "x.sif", "python3"), ())),
        ("A= numactl -N0 python -- -e 1M", Spelled({"A": ""}, ("numactl", "-N0", "python"), ("-e", "1M"))),
        ("--emulate alpha=1us", Spelled({}, (), ("--emulate", "alpha=1us"))),
    ],
)
def test_a_side_is_variables_a_command_and_options(text: str, expected: Spelled) -> None:
    assert spelled(text, "--a") == expected


def test_a_side_with_an_open_quote_is_none() -> None:
    with pytest.raises(UsageError, match="--b"):
        spelled("'", "--b")
