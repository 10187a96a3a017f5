"""Which back end, how many ranks, and whether it can work: on machines that are made up."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from commbench.backends import about
from commbench.backends.base import World
from commbench.errors import UnavailableError, UsageError
from commbench.jobs import plan as planning
from commbench.jobs.plan import default_output, expectation, plan, plan_as_rank
from commbench.jobs.probe import Absent, Mpi, Peers, Torch
from commbench.spec import Sweep

MPICH = Mpi("MPICH 5.0.2", "MPICH", "/lib/libmpi.so", "4.1", True, "/bin/mpiexec", "MPICH")
NO_MPI = Absent("mpi4py is not installed", "pip install 'commbench[mpich]'", installed=False)


class Machine:
    """What `plan` asks of a machine; a test changes what it has."""

    def __init__(self) -> None:
        self.mpi: Mpi | Absent = MPICH
        self.modules = {"mpi4py", "torch"}
        self.torch = Torch("2.13.0", gloo=True, cuda=None)
        self.gpus: list[str] = []
        self.peers: Peers | Absent = Peers(2, frozenset({(0, 1), (1, 0)}))
        self.cores = 4
        self.memory: int | None = 64 << 30
        self.asked_for_launcher: list[bool] = []

    def probe_mpi(self, *, launcher: bool) -> Mpi | Absent:
        self.asked_for_launcher.append(launcher)
        return self.mpi


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    one = Machine()
    monkeypatch.setattr(planning, "probe_mpi", one.probe_mpi)
    monkeypatch.setattr(planning, "probe_torch", lambda: one.torch)
    monkeypatch.setattr(planning, "visible_gpus", lambda: one.gpus)
    monkeypatch.setattr(planning, "probe_peers", lambda: one.peers)
    monkeypatch.setattr(planning, "usable_cores", lambda: one.cores)
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: one.memory)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in one.modules else None)
    return one


def sweep_of(backend: str = "auto", **changes: Any) -> Sweep:
    return Sweep(**{"ops": ("allreduce",), "backend": backend} | changes)


# -- the parent --------------------------------------------------------------------------------------------------


def test_auto_takes_mpi_where_it_works(machine: Machine) -> None:
    found = plan(sweep_of(), launcher=None)

    assert (found.sweep.backend, found.mpi, found.sweep.ranks) == ("mpi", MPICH, 4)
    assert (found.why, found.notes) == ("the first of mpi and gloo that works here", ())


def test_auto_takes_gloo_where_mpi_does_not_work(machine: Machine) -> None:
    machine.mpi = NO_MPI
    found = plan(sweep_of(), launcher=None)

    assert (found.sweep.backend, found.mpi, found.why) == ("gloo", None, "no usable MPI here, torch is")


def test_auto_without_any_back_end_says_why_and_how_to_get_one(machine: Machine) -> None:
    machine.mpi, machine.modules = NO_MPI, set()

    with pytest.raises(
        UnavailableError, match="no back end works here: mpi4py is not installed; torch is not"
    ) as caught:
        plan(sweep_of(), launcher=None)
    assert "commbench[mpich]" in caught.value.hint
    assert "commbench[torch]" in caught.value.hint


def test_a_host_curve_on_a_machine_with_gpus_is_by_request_only(machine: Machine) -> None:
    machine.gpus = ["H100", "H100"]

    with pytest.raises(UnavailableError, match="2 GPUs here, but neither CuPy nor a torch for CUDA"):
        plan(sweep_of(), launcher=None)
    assert plan(sweep_of("mpi"), launcher=None).sweep.backend == "mpi"
    assert plan(sweep_of(device="cpu"), launcher=None).sweep.backend == "mpi"


def test_on_gpus_auto_takes_nccl_else_nccl_through_a_torch_built_for_cuda(machine: Machine) -> None:
    machine.gpus, machine.modules = ["H100"] * 4, {"mpi4py", "torch", "cupy"}
    found = plan(sweep_of(), launcher=None)
    assert (found.sweep.backend, found.sweep.device, found.sweep.ranks) == ("nccl", "cuda", 4)

    machine.modules, machine.torch = {"mpi4py", "torch"}, Torch("2.13.0", gloo=True, cuda="13.0")
    assert plan(sweep_of(), launcher=None).sweep.backend == "torch-nccl"


def test_a_gpu_that_was_asked_for_and_is_not_here_is_no_reason_to_measure_the_host(machine: Machine) -> None:
    with pytest.raises(UnavailableError, match="--device cuda: no GPU is visible here"):
        plan(sweep_of(device="cuda"), launcher=None)
    with pytest.raises(UnavailableError, match="--device cuda: no GPU is visible here"):
        plan_as_rank(sweep_of(device="cuda"), World(0, 2, 0, 2, "mpi"))


def test_mpi_takes_gpus_when_asked_to_and_is_not_asked_about_them_else(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpus = ["H100"] * 3
    found = plan(sweep_of("mpi", device="cuda"), launcher=None, given=frozenset({"device"}))
    assert (found.sweep.ranks, found.sweep.modes, found.sweep.cache, found.mpi) == (3, ("pipe",), "rotated", MPICH)

    monkeypatch.setattr(planning, "visible_gpus", lambda: pytest.fail("NVML was asked"))
    assert plan(sweep_of("mpi"), launcher=None).sweep.device == "cpu"


def test_what_is_usual_on_gpus_holds_where_nothing_else_was_asked(machine: Machine) -> None:
    machine.gpus, machine.modules = ["H100"] * 2, {"cupy"}
    usual = plan(sweep_of(), launcher=None, given=frozenset()).sweep
    assert (usual.modes, usual.cache, usual.max_bytes) == (("pipe",), "rotated", 1 << 30)

    asked = plan(sweep_of(max_bytes=64), launcher=None, given=frozenset({"modes", "max_bytes"})).sweep
    assert (asked.modes, asked.cache, asked.max_bytes) == (("sync",), "rotated", 64)
    host = plan(sweep_of("emulated"), launcher=None, given=frozenset()).sweep
    assert (host.device, host.modes, host.cache, host.max_bytes) == ("cpu", ("sync",), "hot", 64 << 20)


def test_more_ranks_than_gpus_are_refused_with_their_number(machine: Machine) -> None:
    machine.gpus, machine.modules = ["H100"] * 2, {"cupy"}
    with pytest.raises(UsageError, match="--ranks 4: there are only 2 GPUs") as caught:
        plan(sweep_of(ranks=4), launcher=None)
    assert caught.value.hint.startswith("use --ranks 2; --allow-shared-gpu")

    shared = plan(sweep_of(ranks=4, allow_shared_gpu=True), launcher=None).sweep
    points, _ = shared.points(4, about("nccl").capabilities)
    assert {point.path for point in points} == {"same-gpu"}


def test_a_back_end_that_was_asked_for_and_is_not_here_is_refused_with_its_install_line(machine: Machine) -> None:
    machine.mpi, machine.modules = NO_MPI, set()

    with pytest.raises(UnavailableError, match=r"^--backend mpi: mpi4py is not installed$") as caught:
        plan(sweep_of("mpi"), launcher=None)
    assert caught.value.hint == "pip install 'commbench[mpich]'"
    with pytest.raises(UnavailableError, match=r"^--backend gloo: torch is not installed$") as caught:
        plan(sweep_of("gloo"), launcher=None)
    assert caught.value.hint == "pip install 'commbench[torch]'"


def test_an_unknown_back_end_is_refused(machine: Machine) -> None:
    with pytest.raises(UsageError, match="unknown back end 'smoke'"):
        plan(sweep_of("smoke"), launcher=None)


def test_with_a_launcher_of_the_users_no_mpiexec_is_looked_for(machine: Machine) -> None:
    plan(sweep_of("mpi"), launcher="srun -n 8")
    plan(sweep_of("mpi"), launcher=None)

    assert machine.asked_for_launcher == [False, True]


@pytest.mark.parametrize(("cores", "ranks"), [(1, 2), (2, 2), (4, 4), (8, 8), (64, 8)])
def test_one_rank_a_core_but_two_to_eight(machine: Machine, cores: int, ranks: int) -> None:
    machine.cores = cores

    assert plan(sweep_of("emulated"), launcher=None).sweep.ranks == ranks


def test_a_launcher_decides_on_the_ranks(machine: Machine) -> None:
    assert plan(sweep_of("mpi"), launcher="srun -n 8").sweep.ranks is None
    assert plan(sweep_of("mpi", ranks=8), launcher="srun -n 8").sweep.ranks == 8


def test_more_ranks_than_cores_is_noted_where_they_really_run(machine: Machine) -> None:
    assert plan(sweep_of("mpi", ranks=5), launcher=None).notes == (
        "5 ranks on 4 cores: they take turns, so times are the scheduler's",
    )
    assert plan(sweep_of("emulated", ranks=5), launcher=None).notes == ()


def test_one_rank_is_noted_to_have_nothing_to_fit(machine: Machine) -> None:
    [note] = plan(sweep_of("mpi", ranks=1), launcher=None).notes

    assert note.startswith("one rank: nothing travels")


def test_what_a_back_end_cannot_do_is_refused_before_anything_starts(machine: Machine) -> None:
    with pytest.raises(UsageError, match="mpi has no allreduce with avg of float32"):
        plan(sweep_of("mpi", redop="avg"), launcher=None)


def test_sizes_beyond_the_memory_of_all_ranks_together_are_refused(machine: Machine) -> None:
    """Out of place 1 GiB needs two: 4 ranks 8 GiB."""
    machine.memory = 7 << 30
    asked = sweep_of("mpi", max_bytes=1 << 30, in_place="no")

    with pytest.raises(UsageError, match=r"^--max-bytes 1G: 4 ranks need 8.0 GiB of buffers, 7.0 GiB are available$"):
        plan(asked, launcher=None)
    machine.memory = 8 << 30
    plan(asked, launcher=None)
    machine.memory = None  # it cannot be read
    plan(asked, launcher=None)


def test_the_emulated_back_end_needs_no_memory(machine: Machine) -> None:
    machine.memory = 1

    assert plan(sweep_of("emulated"), launcher=None).sweep.backend == "emulated"


def test_an_emulation_is_read_before_anything_starts_and_by_its_back_end_only(machine: Machine) -> None:
    with pytest.raises(UsageError, match="--emulate: unknown word 'beta'"):
        plan(sweep_of("emulated", emulate="beta=1"), launcher=None)
    with pytest.raises(UsageError, match="--emulate describes the emulated back end"):
        plan(sweep_of("mpi", emulate="alpha=1us"), launcher=None)


# -- one process -------------------------------------------------------------------------------------------------


def copies(**changes: Any) -> Sweep:
    return sweep_of("copies", **{"ops": ("p2p",)} | changes)


def test_one_process_measures_the_routes_that_the_machine_has(machine: Machine) -> None:
    machine.modules = {"cupy"}
    found = plan(copies(paths=("peer", "local")), launcher=None)

    assert (found.sweep.ranks, found.mpi, found.why) == (1, None, "--backend")
    assert found.sweep.routes == ("peer:0,1", "peer:1,0", "local:0,0", "local:1,1")
    # A file that is completed brings its routes.
    machine.peers = Absent("asked again", "")
    assert plan(found.sweep, launcher=None).sweep == found.sweep


def test_copies_have_sizes_of_their_own(machine: Machine) -> None:
    machine.modules = {"cupy"}
    usual = plan(copies(), launcher=None, given=frozenset()).sweep

    assert list(usual.sizes()) == [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20]
    assert (usual.modes, usual.cache) == (("pipe",), "rotated")
    assert plan(copies(max_bytes=64), launcher=None, given=frozenset({"max_bytes"})).sweep.size_count() == 2


def test_one_process_has_no_ranks_and_no_launcher(machine: Machine) -> None:
    machine.modules = {"cupy"}
    for changes, launcher, flag in (
        ({"ranks": 2}, None, "--ranks 2"),
        ({}, "srun -n 2", "--launcher"),
        ({"allow_shared_gpu": True}, None, "--allow-shared-gpu"),
    ):
        with pytest.raises(UsageError, match=f"^{flag}: copies is one process for all GPUs of a machine$"):
            plan(copies(**changes), launcher=launcher)
    for name in ("mpi", "torchrun", "slurm"):
        with pytest.raises(UsageError, match="a launcher started 16") as caught:
            plan_as_rank(copies(), world_of(name))
        assert "start it without mpirun" in caught.value.hint


def test_one_process_without_gpus_says_why(machine: Machine) -> None:
    with pytest.raises(UnavailableError, match="--backend copies: cupy is not installed"):
        plan(copies(), launcher=None)
    machine.modules = {"cupy"}
    machine.peers = Peers(0, frozenset(), code=100)
    with pytest.raises(UnavailableError, match=r"^no GPU is visible \(driver error 100\)$"):
        plan(copies(), launcher=None)
    machine.peers = Absent("no NVIDIA driver here", "install it")
    with pytest.raises(UnavailableError, match=r"^--backend copies: no NVIDIA driver here$"):
        plan(copies(), launcher=None)


def test_host_memory_of_each_kind_is_counted(machine: Machine) -> None:
    """A buffer to send and one to receive of 1 GiB, page-locked and ordinary."""
    machine.modules, machine.memory = {"cupy"}, (4 << 30) - 1
    asked = copies(max_bytes=1 << 30)

    with pytest.raises(UsageError, match=r"^--max-bytes 1G: buffers in host memory need 4.0 GiB, 4.0 GiB are"):
        plan(asked, launcher=None)
    assert plan(copies(max_bytes=1 << 30, paths=("pinned", "peer")), launcher=None).sweep.routes
    machine.memory = 4 << 30
    assert plan(asked, launcher=None).sweep.routes


# -- a rank ------------------------------------------------------------------------------------------------------


def world_of(launcher: str, size: int = 16) -> World:
    return World(3, size, 1, 2, launcher)


@pytest.mark.parametrize(
    ("launcher", "backend", "why"),
    [
        ("mpi", "mpi", "started by an MPI launcher"),
        ("torchrun", "gloo", "started by torchrun"),
        ("slurm", "gloo", "started by slurm"),
    ],
)
def test_the_launcher_of_a_rank_says_which_back_end(machine: Machine, launcher: str, backend: str, why: str) -> None:
    found = plan_as_rank(sweep_of(), world_of(launcher))

    assert (found.sweep.backend, found.why, found.sweep.ranks, found.mpi) == (backend, why, 16, None)
    assert machine.asked_for_launcher == []  # no probe: MPI is loaded in this very process


def test_a_rank_takes_what_was_asked_for(machine: Machine) -> None:
    found = plan_as_rank(sweep_of("emulated"), world_of("mpi"))

    assert (found.sweep.backend, found.why) == ("emulated", "--backend")


def test_a_rank_knows_better_than_the_command_line_how_many_there_are(machine: Machine) -> None:
    assert plan_as_rank(sweep_of(ranks=16), world_of("mpi")).sweep.ranks == 16
    with pytest.raises(UsageError, match="--ranks 8: the launcher started 16"):
        plan_as_rank(sweep_of(ranks=8), world_of("mpi"))


def test_a_rank_without_the_library_says_how_to_install_it(machine: Machine) -> None:
    machine.modules = {"mpi4py"}

    with pytest.raises(UnavailableError, match="torch is not installed"):
        plan_as_rank(sweep_of(), world_of("torchrun"))


def test_one_rank_of_a_launcher_is_noted(machine: Machine) -> None:
    assert len(plan_as_rank(sweep_of(), world_of("mpi", 1)).notes) == 1
    assert plan_as_rank(sweep_of(), world_of("mpi", 2)).notes == ()


# -- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": 3}, "24 points x 3 runs, at most 60 s of measuring"),
        ({"runs": 1}, "24 points x 1 run, at most 60 s of measuring"),
        ({"runs": 1, "iters": 100}, "24 points x 1 run, -n 100"),
    ],
)
def test_what_is_to_come_is_said_beforehand(changes: dict[str, Any], words: str) -> None:
    assert expectation(sweep_of(**changes), 24) == words


@pytest.mark.parametrize(
    ("ops", "ranks", "name"),
    [
        (("allreduce",), 4, "results/STAMP-allreduce-mpi-auto-4r.jsonl"),
        (("allreduce", "p2p"), None, "results/STAMP-2ops-mpi-auto-nr.jsonl"),
    ],
)
def test_a_file_is_named_by_time_operation_back_end_path_and_ranks(
    ops: tuple[str, ...], ranks: int | None, name: str
) -> None:
    assert default_output(sweep_of("mpi", ops=ops), ranks, "STAMP") == Path(name)
