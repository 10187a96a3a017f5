"""Interpreters, launchers and libraries are faked by small scripts; none of the real ones is needed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from commbench.jobs import probe
from commbench.jobs.probe import Absent, Launcher, Mpi, Peers, Torch

MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\nMPICH configure: --with-device=ch4\n"
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11\0"
INTEL = "Intel(R) MPI Library 2021.11 for Linux* OS\n"
MVAPICH = "MVAPICH2 Version      :\t2.3.7\n"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\n"
MPT = "HPE MPT 2.28  11/02/22 04:31:13\n"

HYDRA_EXEC = "HYDRA build details:\n    Version:                                 4.2.1\n    CC: gcc\n"
OPEN_MPI_EXEC = "mpiexec (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_RTE_EXEC = "orterun (OpenRTE) 4.0.2\n"
PRRTE_EXEC = "prterun (PRRTE) 3.0.6\n"
INTEL_EXEC = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)\n"
PALS_EXEC = "mpiexec version 1.2.12 revision 0a1b2c3\n"


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def says(path: Path, text: str) -> str:
    """A program that prints `text`, whatever it is asked."""
    return script(path, f"/bin/cat <<'END'\n{text}\nEND")


def python_that_answers(path: Path, **answer: Any) -> str:
    return says(path, json.dumps({"answer": answer}))


def python_with_mpi(root: Path, version: str, library: str = "env/lib/libmpi.so.12") -> str:
    return python_that_answers(
        root / "python",
        version=version,
        library=str(root / library),
        mpi4py="4.1.2",
        numba=True,
        prefix=str(root / "prefix"),
    )


@pytest.fixture(autouse=True)
def nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


@pytest.mark.parametrize(
    ("library", "flavour", "launcher", "launcher_flavour"),
    [
        (MPICH, "MPICH", HYDRA_EXEC, "MPICH"),
        (MVAPICH, "MPICH", HYDRA_EXEC, "MPICH"),
        (OPEN_MPI, "Open MPI", OPEN_MPI_EXEC, "Open MPI"),
        (OPEN_MPI, "Open MPI", OPEN_RTE_EXEC, "Open MPI"),
        (OPEN_MPI, "Open MPI", PRRTE_EXEC, "Open MPI"),
        (INTEL, "Intel MPI", INTEL_EXEC, "Intel MPI"),
        (INTEL, "Intel MPI", HYDRA_EXEC, "MPICH"),  # both speak PMI with Hydra
        (CRAY, "MPICH", PALS_EXEC, "other"),
        (MPT, "other", PALS_EXEC, "other"),
        (MPT, "other", HYDRA_EXEC, "MPICH"),  # the benefit of the doubt
    ],
)
def test_a_library_gets_an_mpiexec_that_can_start_it(
    tmp_path: Path, library: str, flavour: str, launcher: str, launcher_flavour: str
) -> None:
    path = says(tmp_path / "path/mpiexec", launcher)
    found = probe.probe_mpi(python_with_mpi(tmp_path, library))

    assert isinstance(found, Mpi)
    assert (found.flavour, found.mpiexec, found.mpiexec_flavour) == (flavour, path, launcher_flavour)


def test_the_version_is_the_first_line_without_tabs_and_zero_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "mpich", tmp_path / "openmpi"
    assert probe.probe_mpi(python_with_mpi(first, MPICH)) == Mpi(
        version="MPICH Version: 5.0.2",
        flavour="MPICH",
        library=str(first / "env/lib/libmpi.so.12"),
        mpi4py="4.1.2",
        numba=True,
    )
    found = probe.probe_mpi(python_with_mpi(second, OPEN_MPI))
    assert isinstance(found, Mpi)
    assert found.version == "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"


@pytest.mark.parametrize(
    ("library", "beside"),
    [("env/lib/libmpi.so.12", "env/bin"), ("env/lib/release/libmpi.so.12", "env/bin")],
)
def test_the_mpiexec_beside_the_library_comes_first(tmp_path: Path, library: str, beside: str) -> None:
    expected = says(tmp_path / beside / "mpiexec", HYDRA_EXEC)
    says(tmp_path / "prefix/bin/mpiexec", HYDRA_EXEC)
    says(tmp_path / "path/mpiexec", HYDRA_EXEC)
    found = probe.probe_mpi(python_with_mpi(tmp_path, MPICH, library))
    assert isinstance(found, Mpi)
    assert found.mpiexec == expected


def test_a_virtual_environment_that_is_not_activated_still_gives_its_mpiexec(tmp_path: Path) -> None:
    expected = says(tmp_path / "prefix/bin/mpiexec", HYDRA_EXEC)
    says(tmp_path / "path/mpiexec", HYDRA_EXEC)
    found = probe.probe_mpi(python_with_mpi(tmp_path, MPICH))
    assert isinstance(found, Mpi)
    assert found.mpiexec == expected


def test_an_mpiexec_of_the_librarys_flavour_wins_over_a_nearer_one_of_another(tmp_path: Path) -> None:
    """Debian: mpiexec is whichever alternative was chosen, mpiexec.openmpi is always Open MPI's."""
    says(tmp_path / "path/mpiexec", HYDRA_EXEC)
    expected = says(tmp_path / "path/mpiexec.openmpi", OPEN_MPI_EXEC)
    found = probe.probe_mpi(python_with_mpi(tmp_path, OPEN_MPI))
    assert isinstance(found, Mpi)
    assert found.mpiexec == expected


@pytest.mark.parametrize(
    ("library", "launcher", "names"),
    [(MPICH, OPEN_MPI_EXEC, ("MPICH", "Open MPI")), (OPEN_MPI, INTEL_EXEC, ("Open MPI", "Intel MPI"))],
)
def test_an_mpiexec_of_another_mpi_alone_is_no_use_and_both_are_named(
    tmp_path: Path, library: str, launcher: str, names: tuple[str, str]
) -> None:
    path = says(tmp_path / "path/mpiexec", launcher)
    found = probe.probe_mpi(python_with_mpi(tmp_path, library))

    assert isinstance(found, Absent)
    assert found.installed
    assert f"mpi4py loads {names[0]} " in found.reason
    assert f"mpiexec that works is {names[1]}'s ({path})" in found.reason


def test_with_the_users_own_launcher_no_mpiexec_is_looked_for(tmp_path: Path) -> None:
    says(tmp_path / "path/mpiexec", OPEN_MPI_EXEC)
    found = probe.probe_mpi(python_with_mpi(tmp_path, MPICH), launcher=False)
    assert isinstance(found, Mpi)
    assert found.mpiexec is None


def test_an_mpiexec_that_fails_or_may_not_be_run_is_passed_over(tmp_path: Path) -> None:
    script(tmp_path / "env/bin/mpiexec", "echo 'error while loading shared libraries' >&2; exit 127")
    (tmp_path / "prefix/bin").mkdir(parents=True)
    (tmp_path / "prefix/bin/mpiexec").write_text("not executable")
    expected = says(tmp_path / "path/mpiexec", HYDRA_EXEC)
    found = probe.probe_mpi(python_with_mpi(tmp_path, MPICH))
    assert isinstance(found, Mpi)
    assert found.mpiexec == expected


def test_an_mpiexec_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    """Open MPI 5 without HOME: the first line of its page of text has the cause."""
    said = "[vm:1] Error: Unable to get the user home directory\nIt looks like opal_init failed\nFailed: -1"
    path = script(tmp_path / "path/mpiexec", f"/bin/cat >&2 <<'END'\n{said}\nEND\nexit 1")
    found = probe.probe_mpi(python_with_mpi(tmp_path, OPEN_MPI))
    assert isinstance(found, Absent)
    assert found.reason.endswith(
        f"but {path} --version fails: exit status 1: [vm:1] Error: Unable to get the user home directory ... Failed: -1"
    )


def test_no_mpi4py_is_answered_with_the_install_line(tmp_path: Path) -> None:
    python = says(tmp_path / "python", json.dumps({"error": "No module named 'mpi4py'", "missing": "mpi4py"}))
    assert probe.probe_mpi(python) == Absent(
        "mpi4py is not installed",
        "pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI and pip install 'commbench[mpi]'",
        installed=False,
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("kill -SEGV $$", "killed by signal 11 (Segmentation fault)"),
        ("echo 'Abort(1): no shared memory' >&2; exit 3", "exit status 3: Abort(1): no shared memory"),
        ("exit 3", "exit status 3"),
        ("echo hello", "the answer is garbage: 'hello'"),
        ("exit 0", "the answer is garbage: ''"),
        ("echo 42", "the answer is garbage: '42'"),
        ("echo '{\"answer\": 42}'", "the answer is garbage: '{\"answer\": 42}'"),
        ('echo \'{"answer": {"version": "MPICH"}}\'', "the answer is garbage: {'version': 'MPICH'}"),
    ],
)
def test_a_child_that_crashes_or_talks_nonsense_says_why_mpi_is_not_usable(
    tmp_path: Path, body: str, reason: str
) -> None:
    found = probe.probe_mpi(script(tmp_path / "python", body))
    assert isinstance(found, Absent)
    assert found.installed
    assert found.reason == f"loading mpi4py: {reason}"
    assert "pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI module" in found.hint


def test_a_python_that_does_not_exist_is_named(tmp_path: Path) -> None:
    found = probe.probe_mpi(str(tmp_path / "nowhere/python"))
    assert isinstance(found, Absent)
    assert found.reason == f"loading mpi4py: {tmp_path}/nowhere/python cannot be started: No such file or directory"


def test_a_child_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f"/bin/sleep 60 & echo $! >{tmp_path}/pid; wait")
    start = time.monotonic()
    found = probe.probe_mpi(python, limit=0.5)

    assert time.monotonic() - start < 10
    assert isinstance(found, Absent)
    assert found.reason == "loading mpi4py: no answer within 0.5 s"
    assert _ends(int((tmp_path / "pid").read_text()))


def _ends(pid: int) -> bool:
    """Whether a process is gone, or a zombie that its new parent has not collected yet, within 5 s."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z"):
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_banners_before_the_answer_do_not_matter(tmp_path: Path) -> None:
    answer = json.dumps({"answer": {"version": "0.60.0"}})
    assert probe.probe_numba(says(tmp_path / "python", f"Welcome to the cluster\n\n{answer}")) == "0.60.0"


def fake_module(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    for name, body in files.items():
        path = root / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(root / "modules"))


def test_an_mpi4py_that_finds_no_library_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = 'raise RuntimeError("cannot load MPI library\\n/x/libmpi.so: cannot open shared object file")'
    fake_module(tmp_path, monkeypatch, {"mpi4py/__init__.py": "class rc: pass", "mpi4py/MPI.py": error})
    assert probe.probe_mpi() == Absent(
        "loading mpi4py: cannot load MPI library",
        "pip install 'commbench[mpich]' (a laptop), or load the cluster's MPI module",
    )


def test_a_library_without_what_it_needs_itself_is_broken_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_module(tmp_path, monkeypatch, {"torch.py": "import a_module_that_nobody_has"})
    assert probe.probe_torch() == Absent(
        "loading torch: No module named 'a_module_that_nobody_has'", "pip install --force-reinstall torch"
    )


@pytest.mark.parametrize(
    ("cuda", "gloo", "nccl", "expected"),
    [
        ("None", True, False, Torch("2.13.0", gloo=True, cuda=None)),
        ("'13.0'", False, False, Torch("2.13.0", gloo=False, cuda="13.0", gpus=2)),
        ("'13.0'", True, True, Torch("2.13.0", gloo=True, cuda="13.0", nccl="2.30.7", gpus=2)),
    ],
)
def test_torch_tells_what_is_built_in_and_which_gpus_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str, gloo: bool, nccl: bool, expected: Torch
) -> None:
    files = {
        "torch/__init__.py": f"from torch import cuda\n__version__ = '2.13.0'\nclass version: cuda = {cuda}",
        "torch/cuda/__init__.py": "from torch.cuda import nccl\ndef device_count(): return 2",
        "torch/cuda/nccl.py": "def version(): return (2, 30, 7)",
        "torch/distributed.py": f"def is_available(): return True\ndef is_gloo_available(): return {gloo}\n"
        f"def is_nccl_available(): return {nccl}",
    }
    fake_module(tmp_path, monkeypatch, files)
    assert probe.probe_torch() == expected


def test_a_numba_that_dislikes_numpy_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_module(tmp_path, monkeypatch, {"numba.py": "raise ImportError('Numba needs NumPy 2.3 or less')"})
    found = probe.probe_numba()
    assert found == Absent("loading numba: Numba needs NumPy 2.3 or less", "pip install --upgrade numba")


def test_the_directory_a_user_is_in_does_not_hide_the_installed_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not the json you wanted')")
    fake_module(tmp_path, monkeypatch, {"numba.py": "__version__ = '0.60.0'"})
    monkeypatch.chdir(tmp_path)
    assert probe.probe_numba() == "0.60.0"


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py")
def test_the_mpi_of_this_environment_is_found_with_its_mpiexec() -> None:
    found = probe.probe_mpi()
    assert isinstance(found, Mpi), found
    assert Path(found.library).name.startswith("libmpi")
    assert found.mpiexec is not None
    assert found.mpiexec_flavour == found.flavour


def test_probing_loads_no_library_into_this_process() -> None:
    code = (
        "import sys; from commbench.jobs import probe\n"
        "probe.probe_mpi(); probe.probe_torch(); probe.probe_numba(); probe.visible_gpus()\n"
        "assert not {'mpi4py', 'torch', 'numba', 'cupy', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_launchers_are_those_a_shell_would_start_then_those_beside_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", f"{tmp_path}/one{os.pathsep}{tmp_path}/two")
    mpirun = says(tmp_path / "two/mpirun", OPEN_MPI_EXEC)
    srun = says(tmp_path / "one/srun", "slurm 22.05.8")
    first = says(tmp_path / "one/mpiexec", HYDRA_EXEC)
    says(tmp_path / "two/mpiexec", OPEN_MPI_EXEC)
    torchrun = script(tmp_path / "venv/bin/torchrun", f"touch {tmp_path}/asked")  # importing torch takes seconds

    assert sorted(probe.find_launchers(), key=lambda launcher: launcher.name) == [
        Launcher("mpiexec", first, "MPICH", "4.2.1"),
        Launcher("mpirun", mpirun, "Open MPI", "4.1.4"),
        Launcher("srun", srun, "other", "22.05.8"),
        Launcher("torchrun", torchrun, "other", ""),
    ]
    assert not (tmp_path / "asked").exists()


TWO_GPUS = [["NVIDIA H200", "GPU-aaaa-1"], ["NVIDIA L4", "GPU-bbbb-2"]]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["NVIDIA H200", "NVIDIA L4"]),
        ("1", ["NVIDIA L4"]),
        ("1, 0", ["NVIDIA L4", "NVIDIA H200"]),
        ("GPU-bbbb", ["NVIDIA L4"]),
        ("MIG-3f1c", ["MIG-3f1c"]),
        ("0,7,1", ["NVIDIA H200"]),  # CUDA stops at the first that names nothing
        ("-1", []),
        ("", []),
    ],
)
def test_only_gpus_that_cuda_would_show_are_visible(tmp_path: Path, setting: str | None, expected: list[str]) -> None:
    python = python_that_answers(tmp_path / "python", gpus=TWO_GPUS)
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert probe.visible_gpus(tmp_path, environ, python) == expected


def test_peer_access_is_what_the_driver_says_of_pairs(tmp_path: Path) -> None:
    python = python_that_answers(tmp_path / "python", code=0, gpus=3, access=[[0, 1], [1, 0]])

    assert probe.probe_peers(python) == Peers(3, frozenset({(0, 1), (1, 0)}))
    none = python_that_answers(tmp_path / "none", code=100, gpus=0, access=[])
    assert probe.probe_peers(none) == Peers(0, frozenset(), code=100)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("libcuda.so.1: cannot open shared object file: No such file or directory", "no NVIDIA driver here"),
        ("undefined symbol: cuInit", "loading libcuda.so.1: undefined symbol: cuInit"),
    ],
)
def test_a_driver_that_cannot_be_loaded_is_absent(tmp_path: Path, error: str, reason: str) -> None:
    found = probe.probe_peers(says(tmp_path / "python", json.dumps({"error": error, "missing": None})))

    assert isinstance(found, Absent)
    assert found.reason == reason
    assert "install NVIDIA's driver" in found.hint


@pytest.mark.parametrize("body", ["exit 1", "exec /bin/sleep 60"])
def test_without_an_answer_from_nvml_the_kernel_driver_is_asked(tmp_path: Path, body: str) -> None:
    python = script(tmp_path / "python", body)
    assert probe.visible_gpus(tmp_path, {}, python, limit=0.5) == []

    information = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA GeForce RTX 4090\nGPU UUID: \t GPU-cccc\n")
    assert probe.visible_gpus(tmp_path, {}, python, limit=0.5) == ["NVIDIA GeForce RTX 4090"]


FAKE_NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(0x100000000L + index); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned size)
{ strcpy(name, device == (void *)0x100000001L ? "NVIDIA B200" : "NVIDIA GB10"); return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { strcpy(uuid, "GPU-0"); return FAIL; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("fail", "expected"), [(0, ["NVIDIA GB10", "NVIDIA B200"]), (999, [])])
def test_nvml_is_called_with_its_own_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: int, expected: list[str]
) -> None:
    compiler = shutil.which("cc", path=os.defpath)
    assert compiler
    (tmp_path / "nvml.c").write_text(FAKE_NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    monkeypatch.setenv("PATH", os.defpath)
    subprocess.run([compiler, "-shared", "-fPIC", f"-DFAIL={fail}", "-o", library, tmp_path / "nvml.c"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert probe.visible_gpus(tmp_path, {}) == expected
