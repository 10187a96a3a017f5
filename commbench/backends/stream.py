"""A call that is put into a CUDA stream and timed by events: what the back ends on GPUs have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from commbench.backends import kernels, truth
from commbench.backends.buffered import BufferedCall
from commbench.backends.buffers import Arena, Layout
from commbench.backends.gpu import Gpu
from commbench.spec import Point
from commbench.stats import Samples

_KEPT = 64  # chunks whose host time is remembered


class StreamCall(BufferedCall):
    """The part of `base.Call` that does not depend on what is put into the stream.

    The samples are durations on this rank's device, between two events around `depth` calls. Before the first
    event of each sample the GPUs meet in a call of one element (`Queue.align`), which also keeps the device busy
    while the host enqueues what is timed.
    """

    def __init__(self, gpu: Gpu, arena: Arena, layout: Layout, point: Point, rank: int) -> None:
        super().__init__(arena, layout, point, rank)
        self.gpu = gpu
        self._host: list[float] = []
        self._graphs: dict[int, kernels.Program] = {}

    # -- what a back end fills in --------------------------------------------------------------------------

    def run(self, program: Any, host: Samples, lead: int, depth: int, *, align: bool) -> None:
        """Enqueue `len(host)` samples of `depth` calls after `lead` unrecorded ones, between the GPU's events.

        `host` gets the seconds that a call cost the host. `program` is what `round_trip`, `window` or `captured`
        returned.
        """
        raise NotImplementedError

    def watch(self) -> None:
        """Raise what the library ran into while the stream is waited for."""

    def round_trip(self) -> Any:
        """The program of one call; of p2p, there and back."""
        raise NotImplementedError

    def window(self, depth: int) -> Any:
        """The program of `depth` calls back to back; of p2p, `depth` messages one way and an answer."""
        raise NotImplementedError

    # -- base.Call -----------------------------------------------------------------------------------------

    @property
    def is_pair(self) -> bool:
        return self.row.name == "p2p"

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:
        self._timed(self.round_trip, out, lead, batch, share=self.share_of_clock(1) if self.is_pair else 1.0)

    def pipe(self, depth: int, out: Samples, lead: int) -> None:
        if depth == 1:
            self.sync(out, lead)
            return
        share = self.share_of_clock(depth) if self.is_pair else 1.0
        self._timed(lambda: self.window(depth), out, lead, depth, share=share)

    def graph(self, depth: int, out: Samples, lead: int) -> None:
        share = self.share_of_clock(1) if self.is_pair else 1.0
        self._timed(lambda: self.captured(depth), out, lead, 1, share=share / depth, calls=depth)

    def refill(self) -> None:
        super().refill()
        self.gpu.synchronize()

    def settle(self) -> None:
        super().settle()
        self.gpu.synchronize()

    def once(self) -> None:
        self.sync(np.empty(1), 0)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the loop does, without what it measured."""
        return {"slices": self.layout.slices}

    @property
    def how(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {**self.facts, **({"host_seconds": float(np.median(self._host))} if self._host else {})}

    # ------------------------------------------------------------------------------------------------------

    def _timed(
        self, program: Callable[[], Any], out: Samples, lead: int, depth: int, *, share: float, calls: int = 1
    ) -> None:
        """Time `depth` runs of `program`, each of which is `calls` calls to the host that starts it."""
        if self.is_pair and self.rank not in truth.pair_of(self.point):
            out.fill(0.0)
            return
        host = np.empty(len(out))
        # Ping-pong aligns itself: an answer cannot leave before the question came.
        self.run(program(), host, lead, depth, align=not self.is_pair)
        self.gpu.wait(self.watch)
        self.gpu.elapsed(out)
        out *= share / depth
        self._host = [*self._host[1 - _KEPT :], float(np.median(host)) / calls]

    def captured(self, depth: int) -> Any:
        """`depth` calls as one graph, whose launch is a program of one step."""
        if depth not in self._graphs:
            with self.gpu.capture() as built:
                self.run(self.round_trip(), np.empty(0), 1, depth, align=False)
            launch = kernels.address_of(self.gpu.driver, "cuGraphLaunch")
            self._graphs[depth] = kernels.Program.of([(launch, (built[0], self.gpu.stream))])
        return self._graphs[depth]
