"""Part of gpu_check.sh: the clock of events, and what a call costs the host by this code and by CuPy's binding.

    python scripts/gpu_check.py OUT.json

One rank, one GPU, all-reduces of one element: nothing travels, so what is left is the launch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from commbench.backends import kernels, open_backend
from commbench.backends.base import World
from commbench.backends.buffers import address_of
from commbench.backends.nccl_library import DTYPES
from commbench.measure.control import SocketControl
from commbench.spec import Sweep

CALLS = 200
ROUNDS = 30


def main(out: Path) -> None:
    world = World(0, 1, 0, 1, "alone")
    sweep = Sweep(ops=("allreduce",), backend="nccl", device="cuda", ranks=1)
    backend: Any = open_backend(sweep, world, SocketControl(world, 10, ""), 1, 0)
    gpu, nccl, loop = backend.gpu, backend.nccl, backend.wiring.loop
    clock = backend.calibrate()
    data = gpu.allocate(1 << 20)
    at = address_of(data)
    step = nccl.step("ncclAllReduce", at, at, 1, DTYPES["float32"], 0, nccl.handle, gpu.stream)
    program = kernels.Program.of([step])

    ways: dict[str, Callable[[], float]] = {"plain": lambda: by_enqueue(kernels.enqueue, program, gpu)}
    if loop is not None:
        ways["compiled"] = lambda: by_enqueue(loop.enqueue, program, gpu)
    binding = cupys_communicator()
    if binding is not None:
        ways["cupy"] = lambda: by_cupy(binding, at, gpu)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS):  # interleaved: a clock that drifts, drifts for all
        for name in sorted(ways, key=lambda name: (len(name) * (round_ + 1)) % 7):
            seconds[name].append(ways[name]())
    median = {name: float(np.median(values)) for name, values in seconds.items()}
    found = {
        "gpu": gpu.name,
        "libraries": backend.libraries(),
        "event_step_seconds": clock.step,
        "event_pair_seconds": clock.overhead,
        "host_seconds_per_call": median,
        "ratio_to_cupy": {name: value / median["cupy"] for name, value in median.items()} if "cupy" in median else None,
        "host_seconds_per_call_rounds": seconds,
    }
    out.write_text(json.dumps(found, indent=1))
    print(f"{gpu.name}, {found['libraries']['nccl']}")
    print(f"step of an event     {clock.step * 1e9:.0f} ns, an empty pair {clock.overhead * 1e6:.2f} us")
    for name, value in median.items():
        print(f"a call, {name:<9}    {value * 1e6:.2f} us of the host")
    backend.close()


def by_enqueue(enqueue: Callable[..., Any], program: kernels.Program, gpu: Any) -> float:
    host = np.empty(CALLS)
    outcome = enqueue(program, host, 3, 1, gpu.queue, 0)
    if outcome.failed or outcome.driver:
        sys.exit(f"NCCL says {outcome.failed}, the driver {outcome.driver}")
    gpu.wait(lambda: None)
    return float(np.median(host))


def cupys_communicator() -> Any:
    """CuPy's own communicator of one rank, None where its binding finds no libnccl."""
    try:
        from cupy.cuda import nccl  # noqa: PLC0415

        return nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    except Exception as error:  # noqa: BLE001 - whatever its loader raises, the check goes on
        print(f"CuPy's binding of NCCL: {error}")
        return None


def by_cupy(communicator: Any, address: int, gpu: Any) -> float:
    host, call, clock = np.empty(CALLS), communicator.allReduce, time.perf_counter
    for i in range(-3, CALLS):
        start = clock()
        call(address, address, 1, DTYPES["float32"], 0, gpu.stream)
        end = clock()
        if i >= 0:
            host[i] = end - start
        if i % 16 == 0:
            gpu.synchronize()
    return float(np.median(host))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
