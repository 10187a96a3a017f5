"""A stand-in between MPICH's launcher and a rank, so that a dead rank can be named.

Hydra kills every survivor with SIGKILL, within a millisecond of the first death: rank 0 would have no time to
say who died and at what. (With -disable-auto-cleanup it does so one time in ten.) So the process that Hydra knows
only starts the real rank (this command again) and waits. When the rank is killed, its link to rank 0 closes at
once; Hydra hears of it two seconds later, when rank 0 has spoken and ended everybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from commbench.backends.mpi_library import launcher_flavour

_MARK = "COMMBENCH_GUARDED"
_GRACE = 2.0
_PR_SET_PDEATHSIG = 1


def stand_guard(environment: Mapping[str, str] = os.environ, *, module: str = "commbench") -> None:
    """Under MPICH's launcher: become the guard of a new process that runs this command, and exit as it did.

    `module` is what this command is to Python.

    Returns at once under any other launcher, in the guarded process itself, and where guards do not exist.
    """
    if environment.get(_MARK) == str(os.getppid()):
        # A guard that is killed must not leave its rank behind.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    if sys.platform != "linux" or launcher_flavour(environment) != "MPICH":
        return
    # The connection to the launcher (PMI_FD) is an open file that the rank inherits: nothing is closed.
    rank = subprocess.Popen(
        [sys.executable, "-m", module, *sys.argv[1:]],
        env={**environment, _MARK: str(os.getpid())},
        close_fds=False,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: rank.send_signal(got))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    code = rank.wait()
    if code < 0:
        time.sleep(_GRACE)
        code = 128 - code
    raise SystemExit(code)
