"""The way to the libcuda double: its functions that begin with `double_`, and the errors they return.

Where libcuda.so.1 cannot be loaded, every call answers as CuPy does then: the driver is insufficient (35).
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

RUNTIME_VERSION = int(os.environ.get("DOUBLE_CUDA_RUNTIME") or 12090)

# cudaGetErrorName and cudaGetErrorString of what can happen here.
ERRORS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    201: ("cudaErrorDeviceUninitialized", "invalid device context"),
    217: ("cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    600: ("cudaErrorNotReady", "device not ready"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    705: ("cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"),
    712: (
        "cudaErrorHostMemoryAlreadyRegistered",
        "part or all of the requested memory range is already mapped",
    ),
    713: ("cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    904: ("cudaErrorIllegalState", "the operation is not permitted on a stream that is not capturing"),
    907: ("cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
}
INSUFFICIENT_DRIVER = 35

try:
    LIBRARY: ctypes.CDLL | None = ctypes.CDLL("libcuda.so.1")
except OSError:
    LIBRARY = None


class Properties(ctypes.Structure):
    """As in cuda.c."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("pci", ctypes.c_char * 32),
        ("uuid", ctypes.c_ubyte * 16),
        ("memory", ctypes.c_ulonglong),
        ("l2", ctypes.c_int),
        ("bus", ctypes.c_int),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("processors", ctypes.c_int),
        ("installed_as", ctypes.c_int),
    )


def status() -> int:
    """Why no call of the runtime works, 0 when they do."""
    return INSUFFICIENT_DRIVER if LIBRARY is None else int(LIBRARY.double_status(RUNTIME_VERSION))


def word(value: Any) -> ctypes.c_void_p:
    """An integer or a pointer as the C functions want it."""
    return ctypes.c_void_p(int(value))


def call(name: str, *arguments: Any) -> int:
    """The code that a C function returns, or why it cannot be called. Python integers become 64 bits wide."""
    code = status()
    if code:
        return code
    wide = [word(a) if isinstance(a, int) else a for a in arguments]
    return int(getattr(LIBRARY, name)(*wide))
