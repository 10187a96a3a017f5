"""What is said of GPUs, on machines that are made up; what is asked of libraries is in test_probe_gpu."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.jobs.check import Check
from commbench.jobs.checkup_gpu import checks
from commbench.jobs.probe import Absent, Torch
from commbench.jobs.probe_gpu import Gpus

H100 = "NVIDIA H100 80GB HBM3"
NO_LIBRARY = Absent(
    "loading libcuda.so.1: libcuda.so.1: cannot open shared object file: No such file or directory", "install it"
)
TORCH = Torch("2.13.0+cu130", gloo=True, cuda="13.0", nccl="2.30.7", gpus=2)


def driver_of(*names: str, peers: str = "", **changes: Any) -> dict[str, Any]:
    """A driver with these GPUs; `peers` are pairs without access: "01 02"."""
    without = {(int(a), int(b)) for a, b in peers.split()} | {(int(b), int(a)) for a, b in peers.split()}
    rows = [[(a, b) not in without for b in range(len(names))] for a in range(len(names))]
    return {"code": 0, "version": 12090, "gpus": list(names), "peers": rows} | changes


def nvml_of(count: int, **changes: Any) -> dict[str, Any]:
    gpu = {"name": H100, "persistence": True, "mig": False, "ecc": True}
    return {"gpus": [gpu | changes for _ in range(count)], "binding": ""}


def gpus_of(**changes: Any) -> Gpus:
    """Two H100 with everything; `changes` replace answers."""
    usual: dict[str, Any] = {
        "hardware": 2,
        "module": "575.57.08",
        "driver": driver_of(H100, H100),
        "nvml": nvml_of(2),
        "cupy": {"version": "14.2.0", "runtime": 12090, "code": 0, "gpus": 2},
        "compiler": {"nvrtc": [12, 9], "right": True},
        "nccl": {"version": "2.30.7", "file": "/n/libnccl.so.2", "nccl_built": "2.30.7+cuda12.9", "nccl_sha256": "ab"},
        "mpi": {"why": "", "fix": ""},
        "cupy_packages": ("cupy-cuda12x 14.2.0",),
        "nccl_packages": ("nvidia-nccl-cu12 2.30.7",),
        "settings": {"environment": {}, "files": {}},
        "shared_memory": 1 << 30,
    }
    return Gpus(**usual | changes)


def found(torch: Torch | Absent = TORCH, **changes: Any) -> dict[str, Check]:
    return {check.name: check for check in checks(gpus_of(**changes), torch)}


def said(check: Check) -> tuple[str, str]:
    return check.state, check.finding


def test_a_complete_machine_works_stage_by_stage_and_needs_no_fix() -> None:
    everything = found()
    assert {name: check.finding for name, check in everything.items()} == {
        "nccl": "CuPy 14.2.0 for CUDA 12.9, NCCL 2.30.7+cuda12.9 (/n/libnccl.so.2, sha256 ab)",
        "torch-nccl": "torch 2.13.0+cu130, NCCL 2.30.7",
        "copies": "CuPy 14.2.0 for CUDA 12.9",
        "driver": "kernel driver 575.57.08, CUDA 12.9",
        "devices": f"2 x {H100}, ECC on",
        "peer access": "between all 2 GPUs",
        "NVML": "clocks and what holds them down are recorded",
        "CuPy": "CuPy 14.2.0 for CUDA 12.9",
        "NVRTC": "12.9 compiles what writes inputs and compares answers",
        "libnccl": "NCCL 2.30.7+cuda12.9 (/n/libnccl.so.2, sha256 ab)",
        "torch": "torch 2.13.0+cu130 for CUDA 13.0, NCCL 2.30.7",
        "mpi on GPUs": "this MPI is CUDA-aware: a message and a sum of GPU memory arrived",
    }
    assert {check.state for check in everything.values()} == {"works", "note"}
    assert {check.fix for check in everything.values()} == {""}


def test_without_a_gpu_nothing_is_missing() -> None:
    nothing = Gpus(driver=NO_LIBRARY, settings={"environment": {"NCCL_DEBUG": "INFO"}, "files": {}})
    assert [(check.name, *said(check)) for check in checks(nothing, TORCH)] == [
        ("nccl", "note", "no NVIDIA GPU here"),
        ("torch-nccl", "note", "no NVIDIA GPU here"),
        ("copies", "note", "no NVIDIA GPU here"),
    ]


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"module": None}, "2 GPUs on the PCI bus, no kernel driver, but libcuda.so.1 cannot be loaded"),
        ({"hardware": 0}, "kernel driver 575.57.08, but libcuda.so.1 cannot be loaded"),
        ({"hardware": 0, "module": None}, "no kernel driver, but libcuda.so.1 cannot be loaded"),  # CuPy is installed
    ],
)
def test_what_could_work_and_has_no_driver_library_is_missing_it(changes: dict[str, Any], finding: str) -> None:
    everything = found(driver=NO_LIBRARY, nvml=None, compiler=None, mpi=None, **changes)
    assert said(everything["driver"]) == ("missing", finding)
    assert "--gpus all" in everything["driver"].fix
    assert said(everything["nccl"]) == ("missing", f"driver: {finding}")
    assert everything["nccl"].fix == everything["torch-nccl"].fix == everything["driver"].fix
    assert said(everything["CuPy"]) == ("works", "CuPy 14.2.0 for CUDA 12.9, not tried")


@pytest.mark.parametrize(
    ("driver", "finding", "advice"),
    [
        (driver_of(code=100), "no GPU is visible", "CUDA_VISIBLE_DEVICES"),
        (driver_of(code=802), "the GPUs' fabric is not ready", "nvidia-fabricmanager"),
        (driver_of(code=803), "of two versions", "reboot"),
        (Absent("loading libcuda.so.1: no answer within 20 s", "dmesg"), "no answer within 20 s", "dmesg"),
    ],
)
def test_a_driver_that_does_not_work_says_why(driver: Any, finding: str, advice: str) -> None:
    broken = found(driver=driver)["driver"]
    assert broken.state == "broken"
    assert finding in broken.finding
    assert advice in broken.fix


def test_a_variable_that_hides_gpus_is_named() -> None:
    assert found(visible="0", driver=driver_of(H100))["devices"].finding.endswith("; CUDA_VISIBLE_DEVICES is '0'")
    hidden = found(visible="", driver=driver_of())["devices"]
    assert (hidden.state, hidden.fix) == ("missing", "unset CUDA_VISIBLE_DEVICES")


def test_mixed_models_are_listed_as_a_warning() -> None:
    mixed = found(driver=driver_of("NVIDIA L4", H100, "NVIDIA L4"))["devices"]
    assert mixed.state == "warning"
    assert mixed.finding.startswith(f"different models: 2 x NVIDIA L4, 1 x {H100}")


def test_mig_ecc_and_persistence_are_told() -> None:
    sliced = found(nvml=nvml_of(2, mig=True))["MIG"]
    assert said(sliced) == ("warning", "on, on GPUs 0, 1")
    assert sliced.fix.startswith("sudo nvidia-smi -mig 0")
    idle = found(nvml=nvml_of(2, persistence=False))["persistence"]
    assert (idle.state, idle.fix) == ("note", "sudo nvidia-smi -pm 1")
    unlike = nvml_of(2)
    unlike["gpus"][1] = unlike["gpus"][1] | {"ecc": False}
    assert found(nvml=unlike)["devices"].finding.endswith("ECC on GPU 0")
    # A consumer's card has none of these.
    assert found(nvml=nvml_of(2, mig=None, ecc=None, persistence=None))["devices"].finding == f"2 x {H100}"


def test_two_4090s_hear_that_nccl_will_stage_and_that_nothing_is_broken() -> None:
    rtx = "NVIDIA GeForce RTX 4090"
    peers = found(driver=driver_of(rtx, rtx, peers="01"))["peer access"]
    assert said(peers) == ("note", "not offered by this driver; NCCL will stage through host memory")
    assert peers.fix == ""
    server = found(driver=driver_of(H100, H100, peers="01"))["peer access"]
    assert (server.state, server.finding) == ("warning", peers.finding)
    assert "nvidia-smi topo -p2p r" in server.fix


@pytest.mark.parametrize(
    ("count", "peers", "finding"),
    [
        (1, "", None),
        (4, "02 03 12 13", "within {0,1} and {2,3}; between them through host memory"),
        (4, "03", "not between 0-3"),
        (8, "01 02 03 04 05 06 07", "within {0} and {1,2,3,4,5,6,7}; between them through host memory"),
        (5, "01 12 23 34 40 02 13", "not between 0-1, 0-2, 0-4, 1-2, 1-3, 2-3, ..."),
    ],
)
def test_who_reads_whose_memory_is_said_in_words(count: int, peers: str, finding: str | None) -> None:
    check = found(driver=driver_of(*[H100] * count, peers=peers)).get("peer access")
    assert (check.finding if check else None) == finding


def test_a_fabric_without_its_manager_is_broken_only_where_gpus_do_not_answer() -> None:
    assert "fabric manager" not in found()
    assert said(found(switches=4, manager=True)["fabric manager"]) == (
        "works",
        "4 NVSwitches, nvidia-fabricmanager runs",
    )
    # A container does not see the host's processes.
    assert found(switches=4)["fabric manager"].state == "note"
    broken = found(switches=4, driver=driver_of(code=802))["fabric manager"]
    assert broken.state == "broken"
    assert broken.fix.startswith("sudo systemctl start nvidia-fabricmanager")


@pytest.mark.parametrize(
    ("nvml", "fix"),
    [
        (Absent("loading libnvidia-ml.so.1: nvmlInit_v2 returned 9", "nvidia-smi"), "nvidia-smi"),
        (nvml_of(2) | {"binding": "No module named 'pynvml'"}, "pip install nvidia-ml-py"),
    ],
)
def test_without_nvml_the_facts_that_are_lost_are_named(nvml: Any, fix: str) -> None:
    check = found(nvml=nvml)["NVML"]
    assert (check.state, check.fix) == ("warning", fix)
    assert "throttled chunks are not noticed" in check.finding
    assert found(nvml=nvml)["nccl"].state == "works"


@pytest.mark.parametrize(
    ("changes", "stage", "state", "finding", "fix"),
    [
        (
            {"cupy_packages": ("cupy-cuda12x 14.2.0", "cupy-cuda13x 14.2.0")}, "CuPy", "broken",
            "cupy-cuda12x 14.2.0 and cupy-cuda13x 14.2.0 are both installed",
            "pip uninstall -y cupy-cuda12x cupy-cuda13x",
        ),
        (
            {"cupy": Absent("cupy is not installed", "pip install it", installed=False), "compiler": None},
            "CuPy", "missing", "cupy is not installed", "pip install it",
        ),
        (
            {"cupy": {"version": "14.2.0", "runtime": 13000, "code": 35, "gpus": 0}, "compiler": None},
            "CuPy", "broken", "CuPy 14.2.0 for CUDA 13.0: the driver is too old", "update NVIDIA's driver",
        ),
        (
            {"compiler": Absent('loading cupy: Failure finding "libnvrtc.so.12"', "pip install [ctk]")},
            "NVRTC", "broken", 'CuPy cannot compile: Failure finding "libnvrtc.so.12"', "pip install [ctk]",
        ),
        (
            {"compiler": {"nvrtc": [12, 9], "right": False}},
            "NVRTC", "broken", "12.9: a kernel that CuPy compiled gives wrong answers", "does the GPU work?",
        ),
        (
            {"nccl_packages": ("nvidia-nccl-cu12 2.30.7", "nvidia-nccl-cu13 2.30.7")}, "libnccl", "broken",
            "nvidia-nccl-cu12 2.30.7 and nvidia-nccl-cu13 2.30.7 are both installed",
            "pip uninstall -y nvidia-nccl-cu12 nvidia-nccl-cu13",
        ),
        (
            {"nccl": Absent("loading libnccl.so.2: libnccl cannot be loaded: libnccl.so.2: cannot open shared object "
                            "file: No such file or directory", "pip install")},
            "libnccl", "missing", "no libnccl.so.2 in this environment or on the loader's path", "pip install",
        ),
        (
            {"nccl": {"version": "2.30.7", "file": "/n/libnccl.so.2", "nccl_built": "2.30.7+cuda13.0"}},
            "libnccl", "broken", "NCCL 2.30.7+cuda13.0 (/n/libnccl.so.2, sha256 ?): the driver is of CUDA 12.9",
            "pip install nvidia-nccl-cu12",
        ),
    ],
    ids=["two CuPys", "no CuPy", "old driver", "no NVRTC", "wrong answers", "two NCCLs", "no NCCL", "NCCL too new"],
)  # fmt: skip
def test_the_first_stage_that_fails_is_why_nccl_does_not_work(
    changes: dict[str, Any], stage: str, state: str, finding: str, fix: str
) -> None:
    everything = found(**changes)
    assert everything[stage].state == state
    assert everything[stage].finding.startswith(finding)
    assert everything[stage].fix.startswith(fix)
    assert said(everything["nccl"]) == (state, f"{stage}: {everything[stage].finding}")
    assert everything["nccl"].fix == everything[stage].fix
    assert everything["torch-nccl"].state == "works"


@pytest.mark.parametrize(
    ("torch", "state", "finding"),
    [
        (Absent("torch is not installed", "pip install torch", installed=False), "missing", "torch is not installed"),
        (Torch("2.13.0+cpu", gloo=True, cuda=None), "missing", "torch 2.13.0+cpu was built without CUDA"),
        (Torch("2.13.0", gloo=True, cuda="13.0"), "missing", "torch 2.13.0 was built without NCCL"),
        (Torch("2.13.0", True, "13.0", "2.30.7", 0), "broken", "torch 2.13.0 for CUDA 13.0 sees no GPU"),
    ],
)
def test_torch_needs_a_build_for_cuda_that_the_driver_can_serve(
    torch: Torch | Absent, state: str, finding: str
) -> None:
    check = found(torch)["torch-nccl"]
    assert said(check) == (state, finding)
    assert check.fix


def test_what_steers_nccl_unseen_is_shown() -> None:
    settings = {"environment": {"NCCL_P2P_DISABLE": "1"}, "files": {}}
    assert found(settings=settings)["NCCL settings"].finding == "NCCL_P2P_DISABLE=1 (set in the environment)"
    settings = {"environment": {}, "files": {"NCCL_ALGO": "Ring", "NCCL_NET": "Socket"}}
    check = found(settings=settings)["NCCL settings"]
    assert said(check) == ("note", "NCCL_ALGO=Ring NCCL_NET=Socket (set by nccl.conf files, in every run)")


def test_dockers_shared_memory_is_too_small_for_two_gpus_that_talk_through_it() -> None:
    # By NCCL's buffers: 512 KiB + 4,915,200 bytes + 4 MiB a connection, at least four a GPU.
    warned = found(shared_memory=64 << 20)["shared memory"]
    assert warned.finding.startswith("64M in /dev/shm: NCCL wants 73M or more")
    assert "--shm-size=1g" in warned.fix
    assert "shared memory" not in found(shared_memory=74 << 20)
    assert "shared memory" not in found(shared_memory=64 << 20, driver=driver_of(H100))


@pytest.mark.parametrize(
    ("mpi", "state", "finding"),
    [
        ({"why": "MPICH is not CUDA-aware here", "fix": "--staged"}, "note", "MPICH is not CUDA-aware here"),
        (
            Absent("loading mpi4py: killed by signal 11 (Segmentation fault)", "--staged"), "broken",
            "MPI was handed GPU memory and died: loading mpi4py: killed by signal 11 (Segmentation fault)",
        ),
        (Absent("loading mpi4py: no answer within 60 s", "--staged"), "note",
         "not found out: loading mpi4py: no answer within 60 s"),
    ],
)  # fmt: skip
def test_an_mpi_is_tried_on_gpu_memory(mpi: Any, state: str, finding: str) -> None:
    check = found(mpi=mpi)["mpi on GPUs"]
    assert said(check) == (state, finding)
    assert check.fix == "--staged"
