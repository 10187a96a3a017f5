"""A back end whose truth is known: durations from alpha + D/B on a virtual clock, with seeded noise.

No payload is allocated and nothing travels, so that the whole route (launch, control, stop rule, file, fit)
can be tested on any machine in seconds. What is real: its hangs, deaths and wrong answers.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commbench.backends.base import Calibration, Call, HostBackend, Mismatch, World
from commbench.errors import UsageError
from commbench.ops import DTYPES, OPERATIONS, REDUCTIONS
from commbench.spec import Capabilities, Point
from commbench.stats import Samples
from commbench.units import parse_duration, parse_rate, parse_share, parse_size

CAPABILITIES = Capabilities(
    forms=dict.fromkeys(OPERATIONS, (False, True)),
    moves=frozenset(DTYPES),
    reduces=dict.fromkeys(REDUCTIONS, frozenset(DTYPES)),
)

SYNTAX = "alpha=5us,bandwidth=10GB/s,noise=5%,switch=256K:20us:20GB/s,slow_rank=1:1.5,hang=1@64K,die=1@64K,wrong=1@64K"

_LEAST, _LONGEST = 1e-6, 1e18


@dataclass(frozen=True, slots=True)
class Emulation:
    """What `--emulate` says.

    Attributes:
        alpha, bandwidth: seconds, bytes per second.
        noise: sigma of log time, common to all ranks of an iteration.
        switch: (bytes, alpha, bandwidth) from that size on.
        slow_rank: (rank, factor on its durations).
        hang, die, wrong: (rank, bytes): what that rank does at points of that size.
    """

    alpha: float = 5e-6
    bandwidth: float = 10e9
    noise: float = 0.0
    switch: tuple[int, float, float] | None = None
    slow_rank: tuple[int, float] | None = None
    hang: tuple[int, int] | None = None
    die: tuple[int, int] | None = None
    wrong: tuple[int, int] | None = None

    def seconds(self, size: int) -> float:
        """The true time of a call of `size` bytes on a rank that is not slow."""
        alpha, bandwidth = self.alpha, self.bandwidth
        if self.switch and size >= self.switch[0]:
            _, alpha, bandwidth = self.switch
        return alpha + size / bandwidth


def parse(text: str) -> Emulation:
    """The emulation of "alpha=5us,bandwidth=10GB/s,..."; what is left out has its default.

    Raises:
        UsageError: naming the word that is wrong.
    """
    values: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.strip().partition("=")
        flag = f"--emulate {name}"
        try:
            match name:
                case "alpha":
                    values[name] = parse_duration(value, flag)
                case "bandwidth":
                    values[name] = parse_rate(value, flag)
                case "noise":
                    values[name] = parse_share(value, flag)
                case "switch":
                    size, alpha, bandwidth = value.split(":")
                    values[name] = parse_size(size, flag), parse_duration(alpha, flag), parse_rate(bandwidth, flag)
                case "slow_rank":
                    rank, factor = value.split(":")
                    values[name] = int(rank), float(factor)
                case "hang" | "die" | "wrong":
                    rank, size = value.split("@")
                    values[name] = int(rank), parse_size(size, flag)
                case _:
                    raise UsageError(f"--emulate: unknown word {name!r}", f"words: {SYNTAX}")
        except ValueError as error:
            raise UsageError(f"--emulate: {word.strip()!r} is not understood", f"words: {SYNTAX}") from error
    emulation = Emulation(**values)
    if not min(emulation.bandwidth, emulation.switch[2] if emulation.switch else math.inf) > 0:
        raise UsageError("--emulate: a bandwidth is more than 0", f"words: {SYNTAX}")
    if emulation.slow_rank and not 0 < emulation.slow_rank[1] < math.inf:
        raise UsageError("--emulate slow_rank: a factor is more than 0", f"words: {SYNTAX}")
    slowest = max(emulation.seconds(0), emulation.seconds(1 << 62))
    if not slowest * (emulation.slow_rank[1] if emulation.slow_rank else 1.0) < _LONGEST:
        raise UsageError(f"--emulate: a call of more than {_LONGEST:g} s", f"words: {SYNTAX}")
    return emulation


class EmulatedBackend(HostBackend):
    """Ranks that agree on every duration because they share the seed."""

    def __init__(self, world: World, text: str, seed: int) -> None:
        self.rank, self.text, self.emulation = world.rank, text, parse(text)
        self.random = np.random.default_rng(seed)
        self.elapsed = 0.0

    def reserve(self, points: Sequence[Point]) -> None:
        pass

    def prepare(self, point: Point) -> Call:
        return EmulatedCall(self, point)

    def libraries(self) -> dict[str, str]:
        return {"emulated": self.text or "alpha=5us,bandwidth=10GB/s"}

    def calibrate(self) -> Calibration:
        return Calibration("virtual", 1e-9, 0.0)

    def now(self) -> float:
        return self.elapsed

    def close(self) -> None:
        pass


class EmulatedCall:
    """Durations instead of a collective."""

    batch = 0

    def __init__(self, backend: EmulatedBackend, point: Point) -> None:
        self.backend, self.point = backend, point
        self.how: Mapping[str, Any] = {"loop": "emulated", "slices": 1}

    def sync(self, out: Samples, lead: int, batch: int = 1) -> None:  # noqa: ARG002 - nothing to warm, nothing coarse
        self._misbehave()
        backend, emulation = self.backend, self.backend.emulation
        # Drawn on every rank, slow or not: the next draw must be the same everywhere.
        factors = np.exp(emulation.noise * backend.random.standard_normal(len(out)))
        common = emulation.seconds(self.point.bytes) * factors
        slow, factor = emulation.slow_rank or (-1, 1.0)
        out[:] = common * (factor if backend.rank == slow else 1.0)
        # Drawing a duration takes real time: a budget in a world without latency would never be spent.
        backend.elapsed += max(float(common.sum()) * max(factor, 1.0), len(out) * _LEAST)

    def pipe(self, depth: int, out: Samples, lead: int) -> None:  # noqa: ARG002 - batches of a constant are that constant
        self.sync(out, lead)

    def graph(self, depth: int, out: Samples, lead: int) -> None:
        self.pipe(depth, out, lead)

    def once(self) -> None:
        self._misbehave()

    def refill(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def check(self) -> Mismatch | None:
        wrong = self.backend.emulation.wrong
        return Mismatch(self.backend.rank, 3, 1.0, 2.0) if wrong == (self.backend.rank, self.point.bytes) else None

    def _misbehave(self) -> None:
        here = self.backend.rank, self.point.bytes
        if self.backend.emulation.hang == here:
            time.sleep(1e9)
        if self.backend.emulation.die == here:
            os.kill(os.getpid(), signal.SIGKILL)
