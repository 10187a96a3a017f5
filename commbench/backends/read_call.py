"""The latency of a load: a kernel on one GPU follows pointers through the memory of another, one after the other."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from commbench.backends.base import Mismatch
from commbench.backends.buffers import address_of
from commbench.backends.copy_call import Track
from commbench.backends.endpoints import GpuEnd
from commbench.backends.truth import Array
from commbench.errors import MeasurementError
from commbench.stats import Samples

NODES, STRIDE = 16_384, 128
"""2 MiB, as nvbandwidth's: it stays in the L2 cache of the GPU that owns it, one node a cache line."""

CHAIN_BYTES = NODES * STRIDE
_STEP = 5_003  # odd, so that the chain visits every node; not the next line, which might come along
_LOADS = 4_096

# A volatile load is not served by the L1 cache of the GPU that reads.
_CODE = """
extern "C" __global__ void chase(unsigned long long start, unsigned int loads, unsigned long long* end)
{
    const volatile unsigned long long* at = (const volatile unsigned long long*)start;
    for (unsigned int k = 0; k < loads; ++k)
        at = (const volatile unsigned long long*)*at;
    *end = (unsigned long long)at;
}
"""


def chain(base: int) -> Array:
    """The nodes at `base`, as 64-bit words: the first word of each is the address of the next."""
    words = np.zeros((NODES, STRIDE // 8), dtype=np.uint64)
    following = (np.arange(NODES, dtype=np.uint64) + np.uint64(_STEP)) % np.uint64(NODES)
    words[:, 0] = np.uint64(base) + following * np.uint64(STRIDE)
    return words.ravel()


class ReadCall:
    """One sample is a kernel of 4,096 loads, each of the address that the one before found."""

    batch = _LOADS

    def __init__(self, track: Track) -> None:
        self.track = track
        source, target = track.source, track.target
        assert isinstance(source, GpuEnd)
        assert isinstance(target, GpuEnd)
        self.owner, self.reader = source, target
        source.use()
        self._chain = source.allocate(CHAIN_BYTES)
        self._base = address_of(self._chain)
        self._chain.view(np.uint64)[:] = source.load(chain(self._base))
        target.use()
        self._end = target.allocate(8)
        with target.errors():
            self._kernel = target.cupy.RawKernel(_CODE, "chase")
        self._stream = SimpleNamespace(ptr=target.stream)
        track.synchronize()

    @property
    def how(self) -> Mapping[str, Any]:
        return {"loop": "python", "slices": 1, "calls": "kernel", "clock": "cuda events"}

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:
        self.track.prepare()
        gpu = self.reader
        gpu.use()
        arguments = np.uint64(self._base), np.uint32(batch), np.uint64(address_of(self._end))
        record, stream, code = gpu.driver.cuEventRecord, ctypes.c_void_p(gpu.stream), 0
        starts, stops = ([ctypes.c_void_p(event) for event in events] for events in gpu.queue.events.tolist())
        with gpu.errors():
            for i in range(-lead, len(out)):
                if i >= 0:
                    code |= record(starts[i], stream)
                self._kernel((1,), (1,), arguments, stream=self._stream)
                if i >= 0:
                    code |= record(stops[i], stream)
        if code:
            raise MeasurementError(f"CUDA driver error {code} in a kernel on {gpu}", "dmesg may hold an Xid of the GPU")
        gpu.wait()
        gpu.elapsed(out)
        out /= batch

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        raise NotImplementedError  # a load that waits for the one before is mode "sync" alone

    def graph(self, depth: int, out: Samples, lead: int) -> None:
        raise NotImplementedError  # likewise

    def once(self) -> None:
        self.sync(np.empty(1), 0, self.batch)

    def refill(self) -> None:
        self.reader.use()
        self._end.fill(0)
        self.reader.synchronize()

    def check(self) -> Mismatch | None:
        """Where the chain ended, against where it must after so many loads."""
        self.reader.use()
        expected = (self.batch * _STEP) % NODES
        got = (int(self._end.view(np.uint64)[0]) - self._base) / STRIDE
        return (
            None
            if got == expected
            else Mismatch(1, self.batch, float(expected), got, where=f"chain that {self.reader} read")
        )

    def settle(self) -> None:
        pass
