"""What is started, as lists of words; and one process of the shell in the place of a launcher and all its ranks."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from commbench.errors import LaunchError
from commbench.job import Job
from commbench.jobs import launch
from commbench.jobs.launch import CommandLine, Launch, command_lines
from commbench.jobs.probe import Flavour, Mpi
from commbench.measure.__main__ import LINE_MARK
from commbench.measure.ranks import RANK_VARIABLES, from_environment
from commbench.spec import Sweep


def job_of(backend: str = "mpi", ranks: int | None = 4, **changes: Any) -> Job:
    return Job(
        sweep=Sweep(ops=("allreduce",), backend=backend, ranks=ranks, **changes),
        run=1,
        seconds=1.0,
        session="s",
        launch="l",
    )


def mpi_of(flavour: Flavour) -> Mpi:
    return Mpi(
        "x", flavour, "/lib/libmpi.so", "4.1", numba=True, mpiexec="/opt/mpi/bin/mpiexec", mpiexec_flavour=flavour
    )


def rank_of(job: Job) -> list[str]:
    return [sys.executable, "-m", "commbench.measure", job.encode()]


@pytest.fixture
def root_on_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.os, "geteuid", lambda: 0)
    monkeypatch.setattr(launch, "usable_cores", lambda: 4)


# -- command lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavour", "ranks", "flags"),
    [
        ("MPICH", 4, []),
        ("Open MPI", 4, ["--allow-run-as-root"]),
        ("Open MPI", 5, ["--allow-run-as-root", "--oversubscribe"]),
        ("Intel MPI", 5, []),
        ("other", 5, []),
    ],
)
@pytest.mark.usefixtures("root_on_four_cores")
def test_each_mpiexec_gets_the_flags_it_needs(flavour: Flavour, ranks: int, flags: list[str]) -> None:
    job = job_of(ranks=ranks)
    [line] = command_lines(job, launcher=None, mpi=mpi_of(flavour), environment={})

    assert list(line.argv) == ["/opt/mpi/bin/mpiexec", *flags, "-n", str(ranks), *rank_of(job)]


def test_a_side_of_a_gate_has_variables_and_an_interpreter_of_its_own() -> None:
    job = replace(job_of("emulated", ranks=1), environment={"LD_PRELOAD": "/x.so"})
    [line] = command_lines(job, launcher=None, mpi=None, environment={"A": "b"}, python=("box", "exec", "python3"))

    assert list(line.argv) == ["box", "exec", "python3", "-m", "commbench.measure", job.encode()]
    assert (line.environment["LD_PRELOAD"], line.environment["A"]) == ("/x.so", "b")


def test_only_root_needs_to_be_allowed_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(launch, "usable_cores", lambda: 4)
    [line] = command_lines(job_of(), launcher=None, mpi=mpi_of("Open MPI"), environment={})

    assert line.argv[1:3] == ("-n", "4")


@pytest.mark.parametrize("backend", ["mpi", "gloo", "emulated"])
@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("srun -N2 -n16", ["srun", "-N2", "-n16"]),
        ("mpirun -np 16 -H a,b", ["mpirun", "-np", "16", "-H", "a,b"]),
        ("mpirun -x 'A=b c'", ["mpirun", "-x", "A=b c"]),
        ("torchrun --nproc-per-node 2 --no-python", ["torchrun", "--nproc-per-node", "2", "--no-python"]),
    ],
)
def test_the_users_launcher_starts_the_ranks_of_any_back_end(backend: str, launcher: str, words: list[str]) -> None:
    job = job_of(backend, ranks=None)
    [line] = command_lines(job, launcher=launcher, mpi=None, environment={"PATH": "/bin"})

    assert list(line.argv) == [*words, *rank_of(job)]
    assert line.environment == {"PATH": "/bin"}


@pytest.mark.parametrize("backend", ["gloo", "emulated"])
def test_without_a_launcher_each_rank_is_a_child_that_knows_its_place(backend: str) -> None:
    job = job_of(backend, ranks=3)
    lines = command_lines(job, launcher=None, mpi=None, environment={"PATH": "/bin"})

    assert [list(line.argv) for line in lines] == [rank_of(job)] * 3
    ports = {line.environment["MASTER_PORT"] for line in lines}
    assert len(ports) == 1
    for k, line in enumerate(lines):
        assert dict(line.environment) == {
            "PATH": "/bin",
            "RANK": str(k),
            "LOCAL_RANK": str(k),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": ports.copy().pop(),
            "GLOO_SOCKET_IFNAME": "lo",
            "COMMBENCH_PARENT": "1",
        }
        world = from_environment(line.environment)
        assert world is not None
        assert (world.rank, world.size, world.launcher) == (k, 3, "parent")


def test_the_interface_that_the_user_chose_for_gloo_stays() -> None:
    [line, *_] = command_lines(job_of("gloo"), launcher=None, mpi=None, environment={"GLOO_SOCKET_IFNAME": "eth0"})

    assert line.environment["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize("launcher", [None, "mpirun -n 2"])
def test_variables_that_would_make_a_child_somebody_elses_rank_are_not_passed_on(launcher: str | None) -> None:
    foreign = dict.fromkeys(RANK_VARIABLES, "7") | {"NCCL_DEBUG": "INFO"}
    [line] = command_lines(job_of(), launcher=launcher, mpi=mpi_of("MPICH"), environment=foreign)

    assert line.environment == {"NCCL_DEBUG": "INFO"}


# -- a launch ----------------------------------------------------------------------------------------------------

END = {"kind": "end", "run": 1, "launch": "l", "fault": "", "reason": "", "exit_code": 0}


def says(*lines: Any, then: str = "") -> CommandLine:
    """A process that prints these: what is no text as a marked line, as rank 0 does."""
    texts = [line if isinstance(line, str) else LINE_MARK + json.dumps(line) for line in lines]
    return CommandLine(
        ("sh", "-c", "\n".join([f"echo {shlex.quote(text)}" for text in texts] + [then])), {"PATH": "/bin"}
    )


def run(*commands: CommandLine, job: Job | None = None) -> tuple[list[Any], Any]:
    """(lines handed on, the end line)."""
    heard: list[Any] = []
    with Launch(job or job_of(), commands) as one:
        return heard, one.run(heard.append)


def test_lines_of_rank_0_are_handed_on_in_order_up_to_the_end() -> None:
    run_line, record = {"kind": "run", "placement": []}, {"kind": "record", "bytes": 8}
    heard, end = run(says(run_line, record, END))

    assert (heard, end) == ([run_line, record], END)


def test_what_libraries_and_launchers_print_between_is_told_apart() -> None:
    noise = [
        "WARNING: no HCA",
        '{"kind": "end"}',
        LINE_MARK + "{not json",
        LINE_MARK + "[1]",
        "prefix " + LINE_MARK + "{}",
    ]
    heard, end = run(says(*noise, {"kind": "record"}, END))

    assert (heard, end) == ([{}, {"kind": "record"}], END)


def test_a_launcher_that_puts_its_tag_before_each_line_is_understood() -> None:
    """As `srun --label` and `mpirun --tag-output` do."""
    assert run(says("[1,0]<stdout>:" + LINE_MARK + json.dumps(END)))[1] == END


def test_ranks_that_end_without_a_word_are_reported_with_what_they_were_at() -> None:
    beat = {"kind": "now", "phase": "timing", "what": "allreduce 64K", "allowance": 60.0}
    with pytest.raises(LaunchError) as caught:
        run(says(beat, then="exit 3"))

    assert caught.value.message == "the ranks ended (exit status 3) while timing allreduce 64K and said nothing"
    assert "doctor" in caught.value.hint


def test_the_last_words_of_ranks_are_quoted_and_witnesses_of_ours_before_all() -> None:
    noise = ["=====", "one", "two", "three", "three", "four"]
    with pytest.raises(LaunchError, match=r"while starting: three; four$"):
        run(says(*noise, then="exit 1"))
    with pytest.raises(LaunchError, match=r"^the ranks ended \(exit status 1\): rank 1: no MPI$"):
        run(says("commbench: rank 1: no MPI", *noise, then="exit 1"))


def test_the_exit_codes_of_all_processes_are_named() -> None:
    with pytest.raises(LaunchError, match=r"\(exit status 3, 4\)"):
        run(says(then="exit 4"), says(then="exit 3"), says(then="exit 0"))


def test_rank_0_that_falls_silent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_GRACE", 0.2)
    with pytest.raises(LaunchError, match="rank 0 has been silent for 0 s; it was starting") as caught:
        run(says(then="exec sleep 1000"), job=job_of(init_timeout=0.1))
    assert caught.value.hint == "raise --init-timeout"


def test_a_beat_buys_the_time_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its allowance and the grace, less the second between two beats."""
    monkeypatch.setattr(launch, "_GRACE", 1.0)
    begun = {"kind": "run", "placement": [{"host": "elsewhere", "pid": 1}]}
    beat = {"kind": "now", "phase": "timing", "what": "x", "allowance": 0.3}
    with pytest.raises(LaunchError, match="it was timing x") as caught:
        run(says(begun, beat, then="exec sleep 1000"), job=job_of(init_timeout=600.0))
    assert caught.value.hint == "raise --timeout if the point is that slow"


def test_a_launcher_that_is_not_there_is_named() -> None:
    with pytest.raises(LaunchError, match=r"^no-such-mpirun: cannot be started: No such file or directory$") as caught:
        run(CommandLine(("no-such-mpirun", "-n", "2"), {}))
    assert "--launcher" in caught.value.hint


def test_whatever_was_started_is_ended_when_one_cannot_be() -> None:
    one = Launch(job_of(), [says(then="exec sleep 1000"), CommandLine(("no-such-program",), {})])
    with pytest.raises(LaunchError):
        one.__enter__()

    assert [process.poll() for process in one._processes] == [-15]


def test_leaving_a_launch_ends_it() -> None:
    with Launch(job_of(), [says(then="sleep 1000 & exec sleep 1000")]) as one:
        [process] = one._processes
        time.sleep(0.1)

    assert process.returncode == -15
