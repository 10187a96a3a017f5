"""cupy.cuda.pinned_memory: page-locked memory of the host, readable as a buffer."""

from __future__ import annotations

import ctypes

from cupy.cuda import runtime


class PinnedMemory:
    def __init__(self, size, flags=0):
        self.size = size
        self.ptr = 0
        if size > 0:
            self.ptr = runtime.hostAlloc(size, flags)

    def __int__(self):
        return self.ptr

    def __del__(self, free=runtime.freeHost):
        if getattr(self, "ptr", 0):
            free(self.ptr)


def _buffer_of(mem, offset):
    """A ctypes array over pinned memory that keeps it alive: what `numpy.frombuffer` reads before Python 3.12."""
    array = (ctypes.c_char * (mem.size - offset)).from_address(mem.ptr + offset)
    array.mem, array.ptr = mem, mem.ptr + offset
    array.size = lambda: mem.size - offset
    return array


class PinnedMemoryPointer:
    """The real one implements the buffer protocol in C; Python can do that only by being a ctypes array."""

    def __new__(cls, mem, offset):
        return _buffer_of(mem, offset)


def alloc_pinned_memory(size):
    return PinnedMemoryPointer(PinnedMemory(size), 0)
