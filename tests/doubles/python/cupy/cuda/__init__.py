"""cupy.cuda."""

from cupy.cuda import device, graph, memory, nvrtc, pinned_memory, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.graph import Graph
from cupy.cuda.memory import Memory, MemoryPointer, MemoryPool, UnownedMemory, alloc
from cupy.cuda.pinned_memory import PinnedMemory, PinnedMemoryPointer, alloc_pinned_memory
from cupy.cuda.stream import Event, ExternalStream, Stream, get_current_stream, get_elapsed_time


def is_available():
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False


def get_local_runtime_version():
    return runtime.runtimeGetVersion()
