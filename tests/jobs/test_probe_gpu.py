"""The questions to libraries of GPUs, put to the machine of `tests.doubles`: a driver, NVML, CuPy, NCCL and an MPI."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commbench.jobs import child, probe_gpu
from commbench.jobs.probe import Absent
from commbench.jobs.probe_gpu import is_missing, probe_gpus
from commbench.measure.devices import nvidia_hardware, runs
from tests import doubles
from tests.launching import ROOT, needs_mpich

pytestmark = doubles.needs_compiler

# Asks in a process of that machine, and shows that no library came into it.
ASK = """
import json, sys
from dataclasses import asdict
from commbench.jobs import probe_gpu
gpus = probe_gpu.probe_gpus(mpi=sys.argv[1] == "mpi")
plain = {name: repr(value) if name != value and not isinstance(value, (dict, int, str, tuple, type(None))) else value
         for name, value in ((name, getattr(gpus, name)) for name in gpus.__slots__)}
loaded = [name for name in ("cupy", "mpi4py", "torch", "pynvml") if name in sys.modules]
maps = open("/proc/self/maps").read()
plain["here"] = loaded + [name for name in ("libcuda", "libnccl", "libnvidia-ml") if name in maps]
print(json.dumps(plain))
"""


def asked(mpi: str = "", *, preload: str = "", **changes: Any) -> dict[str, Any]:
    machine = doubles.machine(doubles.built(), around={"PYTHONPATH": str(ROOT)}, **changes)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "NCCL_DEBUG": "WARN"} | machine
    if preload:
        environment["LD_PRELOAD"] = str(doubles.built() / preload)
    done = subprocess.run(
        [sys.executable, "-c", ASK, mpi], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.launch
def test_every_stage_answers_on_a_complete_machine_and_none_is_loaded_here() -> None:
    found = asked(gpus=3, gpu_models="NVIDIA L4,NVIDIA H100", nvml_persistence=0)
    assert found["driver"] == {
        "code": 0, "version": 12090, "gpus": ["NVIDIA L4", "NVIDIA H100", "NVIDIA H100"], "peers": [[True] * 3] * 3,
    }  # fmt: skip
    assert found["nvml"]["gpus"][0] == {"name": "NVIDIA L4", "persistence": False, "mig": False, "ecc": True}
    assert found["cupy"] == {"version": "14.2.0", "runtime": 12090, "code": 0, "gpus": 3}
    assert found["compiler"] == {"nvrtc": [12, 9], "right": True}
    assert (found["nccl"]["version"], found["nccl"]["nccl_built"]) == ("2.30.7", "2.30.7+cuda12.9")
    assert found["nccl"]["file"] == str(doubles.library(doubles.built()))
    assert found["settings"]["environment"] == {"NCCL_DEBUG": "WARN"}
    assert found["mpi"] is None  # not asked for
    assert found["here"] == []


@pytest.mark.launch
def test_what_is_not_there_is_told_by_its_own_stage() -> None:
    found = asked(nccl="", peer_access=0, nvrtc="missing", nvml_no_driver=1)
    assert found["driver"]["peers"] == [[True, False], [False, True]]
    assert "nvmlInit_v2 returned 9" in found["nvml"]
    assert "libnvrtc.so.12" in found["compiler"]
    assert "libnccl.so.2: cannot open shared object file" in found["nccl"]

    found = asked(driver=11040)
    assert (found["driver"]["version"], found["cupy"]["code"], found["compiler"]) == (11040, 35, None)
    found = asked(gpus=0)
    assert (found["driver"]["code"], found["driver"]["gpus"], found["cupy"]["code"]) == (100, [], 100)


@needs_mpich
@pytest.mark.launch
def test_an_mpi_is_handed_gpu_memory_in_a_process_that_may_crash() -> None:
    assert "is not CUDA-aware here" in asked("mpi")["mpi"]["why"]
    assert asked("mpi", preload="aware/libaware.so")["mpi"] == {"why": "", "fix": ""}


def test_a_machine_without_a_driver_is_told_from_one_whose_driver_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "libcuda.so.1: cannot open shared object file: No such file or directory"
    complaints = {"libcuda": missing}
    monkeypatch.setattr(child, "evaluate", lambda code, *_: child.Answer({}, complaints["libcuda"]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    gpus = probe_gpus(Path("/nowhere"), {}, mpi=True)
    assert is_missing(gpus.driver)
    assert (gpus.expected, gpus.works, gpus.cupy, gpus.nvml, gpus.mpi) == (
        bool(gpus.cupy_packages),
        False,
        None,
        None,
        None,
    )

    complaints["libcuda"] = "no answer within 20 s"
    hanging = probe_gpus(Path("/nowhere"), {}, mpi=True)
    assert isinstance(hanging.driver, Absent)
    assert (is_missing(hanging.driver), hanging.expected) == (False, True)


def test_hardware_is_counted_on_the_bus_whether_a_driver_knows_it_or_not(tmp_path: Path) -> None:
    bus = tmp_path / "sys/bus/pci/devices"
    # Two 3D controllers, a display, their sound function, an NVSwitch, and somebody else's display.
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x030200"), ("0x10de", "0x030000"), ("0x10de", "0x040300"),
         ("0x10de", "0x068000"), ("0x1002", "0x030000")]
    ):  # fmt: skip
        (bus / f"0000:{number:02x}:00.0").mkdir(parents=True)
        (bus / f"0000:{number:02x}:00.0/vendor").write_text(vendor + "\n")
        (bus / f"0000:{number:02x}:00.0/class").write_text(kind + "\n")
    assert nvidia_hardware(tmp_path) == (3, 1)
    assert nvidia_hardware(tmp_path / "nothing") == (0, 0)


def test_a_program_is_found_by_the_fifteen_characters_that_the_kernel_keeps(tmp_path: Path) -> None:
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/comm").write_text("nv-fabricmanage\n")
    assert runs("nv-fabricmanager", tmp_path)
    assert not runs("nvidia-persistenced", tmp_path)


def test_cupys_distributions_are_found_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["cupy-cuda12x", "cupy_cuda13x", "cupy", "cupyx-tools", "nvidia-nccl-cu12"]
    fakes = [type("Fake", (), {"name": name, "version": "1"})() for name in names]
    monkeypatch.setattr(probe_gpu, "distributions", lambda: fakes)
    assert probe_gpu._cupy_packages() == ("cupy 1", "cupy-cuda12x 1", "cupy-cuda13x 1")
