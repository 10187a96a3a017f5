"""Who stands guard, and how a guard ends; no process is started."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from commbench.measure import guard
from commbench.measure.guard import stand_guard

MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}


class Guarded:
    """Stands for everything a guard touches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[tuple[list[str], dict[str, Any]]] = []
        self.code = 0
        self.sent: list[int] = []
        self.handlers: dict[int, Any] = {}
        self.slept: list[float] = []
        self.tied: list[tuple[int, int]] = []
        monkeypatch.setattr(guard.subprocess, "Popen", self._start)
        monkeypatch.setattr(signal, "signal", self.handlers.__setitem__)
        monkeypatch.setattr(time, "sleep", self.slept.append)
        monkeypatch.setattr(ctypes, "CDLL", lambda _: self)
        monkeypatch.setattr(sys, "argv", ["/env/bin/commbench", "sweep", "--op", "allreduce"])

    def _start(self, argv: list[str], **options: Any) -> Guarded:
        self.started.append((argv, options))
        return self

    def wait(self) -> int:
        return self.code

    def send_signal(self, number: int) -> None:
        self.sent.append(number)

    def prctl(self, option: int, number: int) -> None:
        self.tied.append((option, number))


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    return Guarded(monkeypatch)


Stand = Callable[[], None]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"PMI_RANK": "0", "PMI_SIZE": "2", "SLURM_PROCID": "0"},
    ],
)
def test_under_other_launchers_nobody_stands_guard(guarded: Guarded, environment: dict[str, str]) -> None:
    stand_guard(environment)

    assert guarded.started == []


def test_only_linux_has_guards(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    stand_guard(MPICH)

    assert guarded.started == []


def test_the_guard_runs_this_command_again_with_the_launchers_files_open(guarded: Guarded) -> None:
    with pytest.raises(SystemExit) as caught:
        stand_guard(MPICH)

    [(argv, options)] = guarded.started
    assert argv == [sys.executable, "-m", "commbench", "sweep", "--op", "allreduce"]
    assert options["env"] == MPICH | {"COMMBENCH_GUARDED": str(os.getpid())}
    assert options["close_fds"] is False
    assert caught.value.code == 0
    assert guarded.slept == []


def test_the_guarded_process_measures_and_dies_with_its_guard(guarded: Guarded) -> None:
    """PR_SET_PDEATHSIG is 1 in linux/prctl.h."""
    stand_guard(MPICH | {"COMMBENCH_GUARDED": str(os.getppid())})

    assert guarded.started == []
    assert guarded.tied == [(1, signal.SIGKILL)]


def test_a_mark_of_another_guard_does_not_count(guarded: Guarded) -> None:
    """It came through the environment of a shell inside of a rank."""
    with pytest.raises(SystemExit):
        stand_guard(MPICH | {"COMMBENCH_GUARDED": "1"})

    assert len(guarded.started) == 1


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (1, 1), (2, 2)])
def test_the_guard_ends_as_its_rank_did(guarded: Guarded, ended: int, code: int) -> None:
    guarded.code = ended
    with pytest.raises(SystemExit) as caught:
        stand_guard(MPICH)

    assert caught.value.code == code
    assert guarded.slept == []


def test_of_a_killed_rank_the_launcher_hears_when_rank_0_has_spoken(guarded: Guarded) -> None:
    guarded.code = -signal.SIGKILL
    with pytest.raises(SystemExit) as caught:
        stand_guard(MPICH)

    assert caught.value.code == 128 + 9
    assert guarded.slept == [2.0]


def test_signals_are_passed_on_and_hydras_is_ignored(guarded: Guarded) -> None:
    with pytest.raises(SystemExit):
        stand_guard(MPICH)

    guarded.handlers[signal.SIGTERM](signal.SIGTERM, None)
    guarded.handlers[signal.SIGINT](signal.SIGINT, None)
    assert guarded.sent == [signal.SIGTERM, signal.SIGINT]
    assert guarded.handlers[signal.SIGUSR1] == signal.SIG_IGN
