"""What our own kernels do, for the RawKernel of the fake CuPy: the file that DOUBLE_KERNELS names."""

from __future__ import annotations

import ctypes
from typing import Any


def chase(_grid: Any, _block: Any, args: tuple[Any, ...]) -> None:
    """`commbench.backends.read_call`: follow `loads` addresses from `start` and leave the last one at `end`."""
    at, loads, end = map(int, args)
    for _ in range(loads):
        at = ctypes.c_ulonglong.from_address(at).value
    ctypes.c_ulonglong.from_address(end).value = at
