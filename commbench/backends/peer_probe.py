"""One checked copy between two GPUs, each way, in a process that may be lost.

Drivers offer peer access that does not work: behind an IOMMU or PCIe ACS copies hang or arrive wrong, and a
context that waits for such a copy cannot be used or ended. So before a sweep's first peer copy of a pair this
module runs as a program of its own, with a time limit, and says what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import numpy as np

from commbench.backends.routes import Pair, parse_pair, words

_SIZE = 1 << 20
_PATIENCE = 0.05
_LAST_BREATH = 2.0
_CAUSE = "an IOMMU or PCIe ACS in the way can do that"


def ask(pairs: Sequence[Pair], starting: float, limit: float) -> dict[Pair, str]:
    """Try a peer copy of 1 MiB each way between the GPUs of each pair; what is wrong with those that failed.

    Args:
        pairs: GPUs among those that are visible.
        starting: seconds for the process to load CUDA and make its contexts.
        limit: seconds for each pair. After the first that takes longer no other is tried: the driver is not sane.
    """
    if not pairs:
        return {}
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(words, pairs)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            ended = _watch(process, said, starting, limit)
        finally:
            _end(process)
        lines, last = _lines(said), (_lines(complaints) or ["it said nothing"])[-1]
    answers = dict(_answers(lines))
    if set(answers) == set(pairs):
        return {pair: reason for pair, reason in answers.items() if reason}
    if not lines:
        why = f"it ended with {_status(process)}: {last}" if ended else f"no answer within {starting:g} s"
        return dict.fromkeys(pairs, f"the program that tries a peer copy did not start: {why}")
    trying = next(pair for pair in pairs if pair not in answers)
    one = f"GPU {trying[0]} and {trying[1]}"
    why = f"the program that tried it ended with {_status(process)}" if ended else f"no answer within {limit:g} s"
    rest = {pair: f"not tried, after the peer copy between {one} failed" for pair in pairs if pair not in answers}
    failed = {pair: reason for pair, reason in answers.items() if reason}
    return failed | rest | {trying: f"peer copy between {one}: {why}; {_CAUSE}"}


def _watch(process: subprocess.Popen[bytes], said: IO[bytes], starting: float, limit: float) -> bool:
    """Wait while the program goes on speaking; whether it ended by itself."""
    heard, since = 0, time.monotonic()
    while process.poll() is None:
        count = len(_lines(said))
        if count > heard:
            heard, since = count, time.monotonic()
        if time.monotonic() - since > (limit if heard else starting):
            return False
        time.sleep(_PATIENCE)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Without waiting for one that even SIGKILL cannot wake: the driver may hold it."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_BREATH)


def _lines(file: IO[bytes]) -> list[str]:
    """The whole lines so far; the program writes through a position of its own."""
    text = os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line.strip()]


def _answers(lines: Sequence[str]) -> Iterator[tuple[Pair, str]]:
    for line in lines:
        pair, _, reason = line.partition(" ")
        with suppress(ValueError):  # "ready", and whatever libraries print
            yield parse_pair(pair), str(json.loads(reason))


def _status(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"signal {-code}" if code < 0 else f"exit status {code}"


# -- the program -------------------------------------------------------------------------------------------------


def main(pairs: Sequence[Pair]) -> None:
    """Print "ready" and, for each pair, its name and what was wrong with it ("" for nothing), as JSON."""
    import cupy  # noqa: PLC0415 - loading it is what the other side must not do before

    runtime = cupy.cuda.runtime
    memory = {}
    for gpu in sorted({gpu for pair in pairs for gpu in pair}):
        runtime.setDevice(gpu)
        memory[gpu] = runtime.malloc(_SIZE)
    _say("ready")
    for pair in pairs:
        try:
            reason = _try(runtime, memory, pair)
        except runtime.CUDARuntimeError as error:
            reason = f"peer copy between GPU {pair[0]} and {pair[1]}: {error}"
        _say(f"{words(pair)} {json.dumps(reason)}")


def _try(runtime: Any, memory: dict[int, int], pair: Pair) -> str:
    """Both ways, with access both ways, as it will be measured."""
    both = pair, pair[::-1]
    for own, peer in both:
        runtime.setDevice(own)
        runtime.deviceEnablePeerAccess(peer)
    wrong = next(filter(None, (_one_way(runtime, memory, *way) for way in both)), "")
    for own, peer in both:
        runtime.setDevice(own)
        runtime.deviceDisablePeerAccess(peer)
    return wrong


def _one_way(runtime: Any, memory: dict[int, int], a: int, b: int) -> str:
    sent = np.random.default_rng(1000 * a + b).integers(0, 256, _SIZE, dtype=np.uint8)
    received = np.zeros_like(sent)
    runtime.setDevice(a)
    runtime.memcpy(memory[a], sent.ctypes.data, _SIZE, runtime.memcpyHostToDevice)
    runtime.setDevice(b)
    runtime.memcpy(memory[b], received.ctypes.data, _SIZE, runtime.memcpyHostToDevice)
    runtime.memcpyPeer(memory[b], b, memory[a], a, _SIZE)
    for gpu in (a, b):
        runtime.setDevice(gpu)
        runtime.deviceSynchronize()
    runtime.memcpy(received.ctypes.data, memory[b], _SIZE, runtime.memcpyDeviceToHost)
    wrong = np.flatnonzero(received != sent)
    if not len(wrong):
        return ""
    which = f"{len(wrong)} of {_SIZE} bytes, the first at {wrong[0]}"
    return f"a peer copy from GPU {a} to {b} arrives wrong: {which}; {_CAUSE}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main([parse_pair(word) for word in sys.argv[1:]])
