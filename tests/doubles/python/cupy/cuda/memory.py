"""cupy.cuda.memory: memory that is freed with its object, pointers into it, and an allocator without a pool."""

from __future__ import annotations

from cupy.cuda import runtime


class OutOfMemoryError(MemoryError):
    """What CuPy's allocator raises; `Memory` itself raises CUDARuntimeError."""

    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


class Memory:
    """`size` bytes on the current device."""

    def __init__(self, size):
        self.size = size
        self.device_id = runtime.getDevice()
        self.ptr = 0
        if size > 0:
            self.ptr = runtime.malloc(size)

    def __int__(self):
        return self.ptr

    @property
    def device(self):
        from cupy.cuda.device import Device

        return Device(self.device_id)

    def __del__(self, free=runtime.free):
        if getattr(self, "ptr", 0):
            free(self.ptr)


class UnownedMemory:
    """Memory that somebody else frees."""

    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = runtime.getDevice() if device_id < 0 else device_id


class MemoryPointer:
    """A place in a memory, which it keeps alive."""

    def __init__(self, mem, offset):
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def __int__(self):
        return self.ptr

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def memset(self, value, size):
        runtime.memset(self.ptr, value, size)

    def memset_async(self, value, size, stream=None):
        runtime.memsetAsync(self.ptr, value, size, _handle(stream))

    def copy_from_device(self, src, size):
        runtime.memcpy(self.ptr, src.ptr, size, runtime.memcpyDefault)

    def copy_from_device_async(self, src, size, stream=None):
        runtime.memcpyAsync(self.ptr, src.ptr, size, runtime.memcpyDefault, _handle(stream))

    def copy_from_host(self, mem, size):
        runtime.memcpy(self.ptr, int(mem), size, runtime.memcpyHostToDevice)

    def copy_from_host_async(self, mem, size, stream=None):
        runtime.memcpyAsync(self.ptr, int(mem), size, runtime.memcpyHostToDevice, _handle(stream))

    def copy_to_host(self, mem, size):
        runtime.memcpy(int(mem), self.ptr, size, runtime.memcpyDeviceToHost)

    def copy_to_host_async(self, mem, size, stream=None):
        runtime.memcpyAsync(int(mem), self.ptr, size, runtime.memcpyDeviceToHost, _handle(stream))


def _handle(stream):
    from cupy.cuda.stream import get_current_stream

    return (get_current_stream() if stream is None else stream).ptr


def alloc(size):
    try:
        return MemoryPointer(Memory(size), 0)
    except runtime.CUDARuntimeError as error:
        if error.status != 2:
            raise
        free, total = runtime.memGetInfo()
        raise OutOfMemoryError(size, total - free) from error


class MemoryPool:
    """Holds nothing back: what is freed is free."""

    def __init__(self, allocator=None):
        pass

    def malloc(self, size):
        return alloc(size)

    def free_all_blocks(self, stream=None):
        pass

    def used_bytes(self):
        free, total = runtime.memGetInfo()
        return total - free

    def total_bytes(self):
        return self.used_bytes()
