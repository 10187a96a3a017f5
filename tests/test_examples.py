"""The examples for CI: their files are well formed, their commands exist, and the action's script does what it says."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from commbench.analyze.expectations import parse_expectation
from commbench.cli import app
from tests.launching import HERE, Bench, a_bench

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
YAML = sorted(EXAMPLES.glob("*.yml"))


def commands(file: Path) -> Iterator[list[str]]:
    """The words of every commbench command in a YAML file, without redirections."""
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.search(r"(^|[\s/\"])commbench (gate|sweep|show|fit)\b", line) and not line.lstrip().startswith(
            ("#", "-- ")
        ):
            depth = len(line) - len(line.lstrip())
            text = line
            for following in lines[number + 1 :]:
                if len(following) - len(following.lstrip()) < depth or not following.strip().startswith("--"):
                    break
                text = f"{text.rstrip().removesuffix(chr(92))} {following.strip()}"
            words = shlex.split(text[re.search(r"commbench (gate|sweep|show|fit)", text).start() :])  # type: ignore[union-attr]
            end = next((k for k, word in enumerate(words) if word in ("||", ">", ">>", "|")), len(words))
            yield words[:end]


COMMANDS = [pytest.param(words, id=f"{file.name}: {' '.join(words[:3])}") for file in YAML for words in commands(file)]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_in_an_example_can_be_typed(words: list[str]) -> None:
    group = typer.main.get_group(app)
    command = group.commands[words[1]]
    own, sweep = (words[2:], [])
    if "--" in words:
        own, sweep = words[2 : words.index("--")], words[words.index("--") + 1 :]

    with command.make_context(words[1], ["5" if word == "$PAIRS" else word for word in own]) as context:
        for limit in context.params.get("expect") or []:
            parse_expectation(limit)
    if sweep and sweep != ["$SWEEP"]:
        with group.commands["sweep"].make_context("sweep", sweep) as context:
            assert context.params["ops"]


def test_there_are_examples_of_each_kind() -> None:
    assert {file.name for file in YAML} == {"action.yml", "github-cpu.yml", "github-gpu.yml", "gitlab-ci.yml"}
    assert len(COMMANDS) >= 9


@pytest.mark.parametrize("file", YAML, ids=lambda file: str(file.name))
def test_an_example_is_indented_by_twos_and_has_no_tabs(file: Path) -> None:
    for line in file.read_text().splitlines():
        assert "\t" not in line
        assert (len(line) - len(line.lstrip())) % 2 == 0


@pytest.mark.skipif(importlib.util.find_spec("yaml") is None, reason="PyYAML is not installed")
@pytest.mark.parametrize("file", YAML, ids=lambda file: str(file.name))
def test_an_example_is_yaml(file: Path) -> None:
    import yaml  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415

    assert isinstance(yaml.safe_load(file.read_text()), dict)


def test_the_reframe_example_is_python_and_its_limits_are_limits() -> None:
    tree = ast.parse((EXAMPLES / "reframe_commbench.py").read_text())
    [limits] = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "limits"
    ]

    assert [parse_expectation(text) for texts in limits.values() for text in texts]


def script(file: Path) -> str:
    """The `run: |` block of the action."""
    head, _, body = file.read_text().partition("      run: |\n")
    assert head
    lines = []
    for line in body.splitlines():
        if line and not line.startswith("        "):
            break
        lines.append(line[8:])
    return "\n".join(lines)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with a_bench(tmp_path) as one:
        yield one


@pytest.mark.launch
@pytest.mark.parametrize(("candidate", "code", "verdict"), [("5us", 0, "pass"), ("6us", 3, "regression")])
def test_the_actions_script_gates_and_leaves_a_summary(
    bench: Bench, tmp_path: Path, candidate: str, code: int, verdict: str
) -> None:
    sweep = "--op allreduce --backend emulated --ranks 2 --max-bytes 4K --total-budget 300ms"
    environment = {
        "BASELINE": "--emulate alpha=5us,noise=5%",
        "CANDIDATE": f"--emulate alpha={candidate},noise=5%",
        "SWEEP": sweep,
        "PAIRS": "4",
        "ON_INCONCLUSIVE": "fail",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "PATH": f"{HERE.bin}:/usr/bin:/bin",
    }
    done = bench.run("bash", "-e", "-c", script(EXAMPLES / "action.yml"), limit=170, environment=environment)

    assert done.code == code, done.err
    assert ("::error title=commbench gate%3A REGRESSION::" in done.err) == (verdict == "regression")
    assert (tmp_path / "output").read_text() == f"verdict={verdict}\n"
    assert (tmp_path / "summary.md").read_text().startswith("### commbench gate: ")
    assert json.loads((tmp_path / "commbench-gate" / "gate.json").read_text())["exit_code"] == code
    assert (tmp_path / "commbench-gate" / "junit.xml").exists()
