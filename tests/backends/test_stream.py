"""What a call in a stream reports of its times; what is put into streams is in the contract suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commbench.backends.buffers import Arena, layout_of
from commbench.backends.stream import StreamCall
from commbench.stats import Samples


class Clock:
    """A GPU whose events are always 6 ms apart."""

    def wait(self, watch: Any) -> None:
        watch()

    def elapsed(self, out: Samples) -> None:
        out[:] = 6e-3


class Call(StreamCall):
    """Starting one run of whatever program costs the host 3 ms."""

    def run(self, program: Any, host: Samples, lead: int, depth: int, *, align: bool) -> None:
        host[:] = 3e-3

    def round_trip(self) -> Any:
        return None

    def window(self, depth: int) -> Any:
        return None

    def captured(self, depth: int) -> Any:
        return None


@pytest.mark.parametrize(
    ("mode", "depth", "seconds", "host"),
    [("sync", 1, 6e-3, 3e-3), ("pipe", 3, 2e-3, 3e-3), ("graph", 3, 2e-3, 1e-3)],
)
def test_times_are_per_call_on_the_device_and_on_the_host(
    point: Any, mode: str, depth: int, seconds: float, host: float
) -> None:
    one = point(backend="nccl", device="cuda", mode=mode)
    gpu: Any = Clock()
    call = Call(gpu, Arena(), layout_of(one, 0, 0, 1, output_at_own_block=True), one, 0)
    out = np.empty(2)
    if mode == "sync":
        call.sync(out, 0)
    else:
        getattr(call, mode)(depth, out, 0)
    assert out == pytest.approx([seconds, seconds])
    # `run` says what one step of the program cost: a launch of a graph is as many calls as it holds.
    assert call.how["host_seconds"] == pytest.approx(host)
