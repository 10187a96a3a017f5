"""Copies between GPUs, and between GPUs and the host, by one process: what a link gives before any library.

The matrices of nvbandwidth and p2pBandwidthLatencyTest, with intervals, checked answers and a fit for each pair.
No GPU was there when this was written. What only hardware can show:

* that with peer access off the driver really goes through host memory: the request is recorded, nothing proves it;
* that the copy which keeps a GPU busy lasts until the host has enqueued what is timed. Where it does not, small
  copies show what enqueuing costs; `how.host_seconds` tells how long that takes;
* that turning peer access on and off with buffers in place works on every driver, and how long it takes;
* that two directions at once overlap: engines are the driver's to choose, and it may block the host between them;
* every rate and latency, of course. Published ones to compare with: docs/gpus.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commbench.backends import kernels, peer_probe
from commbench.backends.base import Calibration, Call, Health
from commbench.backends.buffers import Layout, layout_of
from commbench.backends.copy_call import CopyCall, Track
from commbench.backends.cupy_gpu import load_cupy
from commbench.backends.endpoints import GpuEnd, HostEnd, PeerAccess
from commbench.backends.read_call import ReadCall
from commbench.backends.routes import WITH_HOST, Pair, needs_access, no_access, parse, parse_pair, without_access
from commbench.errors import UnavailableError
from commbench.ops import DTYPES
from commbench.spec import COPY_PATHS, HOST, READ, Capabilities, Point, Sweep

CAPABILITIES = Capabilities(
    forms={"p2p": (False,)},
    moves=frozenset(DTYPES),
    reduces={},
    devices=("cuda",),
    modes=("pipe", "sync"),
    caches=("rotated", "hot"),
    paths=tuple(COPY_PATHS),
    # Many pairs: nine sizes tell latency, bandwidth and what is between.
    usual={"factor": 8.0, "max_bytes": 128 << 20},
)

_MOST_SLICES = 64
_PROBE_LIMIT = 20.0


class CopiesBackend:
    """All GPUs that the sweep's routes name, and the host.

    Args:
        sweep: with its routes.
        cache_bytes: the host's last-level cache.
    """

    def __init__(self, sweep: Sweep, cache_bytes: int) -> None:
        self.cupy = load_cupy()
        runtime = self.cupy.cuda.runtime
        count = runtime.getDeviceCount()
        routes = [parse(route) for route in sweep.routes]
        between = sorted({(min(pair), max(pair)) for path, pair in routes if needs_access(path, pair)})
        access = {(a, b) for a in range(count) for b in range(count) if a != b and runtime.deviceCanAccessPeer(a, b)}
        self.without = without_access(sweep, count, access)
        self.notes: Sequence[str] = [no_access(self.without, count)] if self.without else []
        # Before any context of ours exists: it is that process which may be lost.
        self.refused = peer_probe.ask(between, sweep.init_timeout, min(sweep.timeout, _PROBE_LIMIT))
        loop, why_not = (None, "") if sweep.loop == "python" else kernels.load()
        if loop is None and sweep.loop == "compiled":
            raise UnavailableError(f"--loop compiled: {why_not}", "pip install numba, or leave --loop out")
        self.loop = loop
        self.gpus = {
            index: GpuEnd(self.cupy, index)
            for index in sorted({end for _, pair in routes for end in pair if end != HOST})
        }
        if len({gpu.name for gpu in self.gpus.values()}) > 1:
            models = ", ".join(f"{gpu} is a {gpu.name}" for gpu in self.gpus.values())
            self.notes = [*self.notes, f"different GPUs in one run: {models}"]
        self.hosts = {kind: HostEnd(self.cupy, kind) for kind in WITH_HOST if any(path == kind for path, _ in routes)}
        self.peers = PeerAccess(self.gpus)
        self._cache = max(gpu.cache_bytes for gpu in self.gpus.values())
        self._cache_with_host = max(cache_bytes, self._cache)
        self._working: list[GpuEnd] = []

    def shortage(self, point: Point) -> str:
        pair = pair_of(point)
        if needs_access(point.path, pair) and (reason := self.refused.get((min(pair), max(pair)))):
            return reason
        if point.path == READ:
            return ""
        need = self.layout(point).total
        for gpu in (self.gpus[end] for end in pair if end != HOST):
            if need > gpu.space:
                return f"needs {need >> 20}M of memory on {gpu}, {gpu.space >> 20}M are free"
        return ""

    def reserve(self, points: Sequence[Point]) -> None:
        for number, gpu in self.gpus.items():
            here = [self.layout(p).total for p in points if number in pair_of(p) and p.path != READ]
            gpu.reserve(max(here, default=0))
        for kind, host in self.hosts.items():
            host.reserve(max((self.layout(p).total for p in points if p.path == kind), default=0))

    def layout(self, point: Point) -> Layout:
        cache = self._cache_with_host if point.path in WITH_HOST else self._cache
        return layout_of(point, 0, cache, _MOST_SLICES, output_at_own_block=True)

    def prepare(self, point: Point) -> Call:
        track = self.track(point.path, pair_of(point))
        if point.path == READ:
            return ReadCall(track)
        return CopyCall(track, self.layout(point), point, self.loop)

    def track(self, path: str, pair: Pair) -> Track:
        source, target = (self.hosts[path] if end == HOST else self.gpus[end] for end in pair)
        return Track(path, source, target, self.peers, self._working)

    def libraries(self) -> dict[str, str]:
        versions = next(iter(self.gpus.values())).versions()
        return {"copies": f"CUDA driver {versions['cuda_driver']}"} | versions

    def place(self) -> dict[str, Any]:
        return {
            "gpus": [gpu.facts()["gpu"] for gpu in self.gpus.values()],
            "without_peer_access": [list(pair) for pair in self.without],
        }

    def health(self) -> Health:
        """Of the GPUs that copied last; the clock is that of the slower one."""
        found = [(gpu, gpu.monitor.health()) for gpu in self._working]
        slowed = "; ".join(f"{gpu}: {health.slowed}" for gpu, health in found if health.slowed)
        return Health(slowed, min((health.hertz for _, health in found if health.hertz is not None), default=None))

    def calibrate(self) -> Calibration:
        gpu, nothing = next(iter(self.gpus.values())), kernels.Program.of([])
        gpu.use()
        queue = replace(gpu.queue, align=gpu.busy)
        enqueue = self.loop.enqueue if self.loop else kernels.enqueue
        return gpu.calibrate(lambda out: enqueue(nothing, out, 0, 1, queue, 0))

    def now(self) -> float:
        return time.perf_counter()

    def close(self) -> None:
        self.peers.close()
        for host in self.hosts.values():
            host.close()


def pair_of(point: Point) -> Pair:
    """The endpoints of a point."""
    return parse_pair(point.option("pair") or "")
