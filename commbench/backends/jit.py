"""The kernels themselves. Importing this module imports numba and compiles (or reads the cache): `kernels` does.

Everything here is nopython code. Signatures are given, so that compiling happens at import and never in a
timed region.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _emit_call(
    _context: Any, _function: Any, _0: Any, _1: Any, _2: Any, _3: Any, _4: Any, _5: Any,
    _6: Any, _7: Any, _8: Any, _9: Any, _10: Any, _11: Any,
) -> Any:  # fmt: skip
    """Call the C function at an address with twelve arguments; it returns int."""
    signature = types.int32(*[types.int64] * 13)

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        function = ir.FunctionType(_I32, [_I64] * 12)
        return builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])

    return signature, generate


def _emit_load(_context: Any, _address: Any) -> Any:
    """An acquiring read of 64 bits that no optimiser may lift out of a loop."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(values[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


def _emit_store(_context: Any, _address: Any, _value: Any) -> Any:
    """A releasing write of 64 bits."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        builder.store_atomic(values[1], builder.inttoptr(values[0], _I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


_call: Any = intrinsic(_emit_call)
_load: Any = intrinsic(_emit_load)
_store: Any = intrinsic(_emit_store)


@njit("int64(int64, int64[::1])", nogil=True, cache=True, inline="always")
def _now(clock: int, spec: Any) -> int:
    _call(clock, 1, spec.ctypes.data, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    nanoseconds: int = spec[0] * 1_000_000_000 + spec[1]
    return nanoseconds


@njit(
    "Tuple((int64, int64))(int64, int64, int64[::1], int64[:, :, ::1], int64[::1], int64[:, ::1], int64)",
    nogil=True,
    cache=True,
    inline="always",
)
def _batch(
    code: int, depth: int, functions: Any, a: Any, tail_functions: Any, c: Any, position: int
) -> tuple[int, int]:
    """What lies between two readings of a clock: `depth` calls, each on the next row, and the tail."""
    for _ in range(depth):
        p = position
        position += 1
        if position == a.shape[0]:
            position = 0
        for k in range(functions.shape[0]):
            code |= _call(
                functions[k], a[p, k, 0], a[p, k, 1], a[p, k, 2], a[p, k, 3], a[p, k, 4], a[p, k, 5],
                a[p, k, 6], a[p, k, 7], a[p, k, 8], a[p, k, 9], a[p, k, 10], a[p, k, 11],
            )  # fmt: skip
    for k in range(tail_functions.shape[0]):
        code |= _call(
            tail_functions[k], c[k, 0], c[k, 1], c[k, 2], c[k, 3], c[k, 4], c[k, 5],
            c[k, 6], c[k, 7], c[k, 8], c[k, 9], c[k, 10], c[k, 11],
        )  # fmt: skip
    return code, position


@njit(
    "Tuple((int64, int64))(float64[::1], int64, int64, float64, int64, int64, int64[::1],"
    " int64[::1], int64[:, :, ::1], int64[::1], int64[:, ::1], int64)",
    nogil=True,
    cache=True,
)
def time_loop(
    out: Any, lead: int, depth: int, scale: float, clock: int, barrier: int, b: Any,
    functions: Any, a: Any, tail_functions: Any, c: Any, position: int,
) -> tuple[int, int]:  # fmt: skip
    """See `kernels.CompiledLoop.run`: (first error code or 0, next position)."""
    spec = np.zeros(2, np.int64)
    position %= a.shape[0]
    for i in range(-lead, out.shape[0]):
        code = 0
        if barrier != 0:
            for _ in range(2):
                code |= _call(barrier, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11])
        start = _now(clock, spec)
        code, position = _batch(code, depth, functions, a, tail_functions, c, position)
        end = _now(clock, spec)
        if code != 0:
            return code, position
        if i >= 0:
            out[i] = (end - start) * 1e-9 * scale / depth
    return 0, position


@njit(
    "Tuple((int64, int64, int64))(float64[::1], int64, int64, int64, int64, int64[::1],"
    " int64[::1], int64[:, :, ::1], int64[::1], int64[:, ::1], int64, int64[:, ::1], int64, int64, int64, int64)",
    nogil=True,
    cache=True,
)
def enqueue_loop(
    host: Any, lead: int, depth: int, clock: int, align: int, b: Any,
    functions: Any, a: Any, tail_functions: Any, c: Any, position: int,
    events: Any, stream: int, record: int, wait: int, ahead: int,
) -> tuple[int, int, int]:  # fmt: skip
    """See `kernels.enqueue`: (first error of a step or 0, first error of the driver or 0, next position)."""
    spec = np.zeros(2, np.int64)
    failed, driver = 0, 0
    position %= a.shape[0]
    for i in range(-lead, host.shape[0]):
        if align != 0:
            failed |= _call(align, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11])
        if i >= 0:
            driver |= _call(record, events[0, i], stream, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        start = _now(clock, spec)
        failed, position = _batch(failed, depth, functions, a, tail_functions, c, position)
        end = _now(clock, spec)
        if i >= 0:
            host[i] = (end - start) * 1e-9 / depth
            driver |= _call(record, events[1, i], stream, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            if i >= ahead:
                driver |= _call(wait, events[1, i - ahead], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        if failed != 0 or driver != 0:
            return failed, driver, position
    return 0, 0, position


@njit("float64(int64, int64, int64, int64, int64, int64)", nogil=True, cache=True)
def handover(address: int, side: int, base: int, rounds: int, patience: int, clock: int) -> float:
    """See `kernels.CompiledLoop.handover`: seconds one way, the median of 20 blocks."""
    spec = np.zeros(2, np.int64)
    blocks = np.zeros(20, np.float64)
    turn = base
    for block in range(20):
        start = _now(clock, spec)
        for _ in range(rounds):
            # The side whose turn it is writes the next number, the other waits for it.
            for who in range(2):
                turn += 1
                if who == side:
                    _store(address, turn)
                else:
                    waited = 0
                    while _load(address) < turn:
                        waited += 1
                        if waited > patience:
                            return -1.0
        blocks[block] = (_now(clock, spec) - start) * 1e-9 / (2 * rounds)
    return float(np.median(blocks))
