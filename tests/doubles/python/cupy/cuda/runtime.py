"""cupy.cuda.runtime: the wrapper of the CUDA runtime, on the libcuda double. Signatures are CuPy's."""

from __future__ import annotations

import ctypes

from cupy import _double

eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
hostAllocDefault, hostAllocPortable, hostAllocMapped, hostAllocWriteCombined = 0, 1, 2, 4
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = range(4)
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = range(3)
streamCaptureStatusNone, streamCaptureStatusActive, streamCaptureStatusInvalidated = range(3)
streamDefault, streamNonBlocking = 0, 1
streamLegacy, streamPerThread = 1, 2
cudaDevAttrMultiProcessorCount, cudaDevAttrL2CacheSize = 16, 38
cudaDevAttrPciBusId, cudaDevAttrPciDeviceId, cudaDevAttrPciDomainId = 33, 34, 50
cudaDevAttrIntegrated, cudaDevAttrAsyncEngineCount, cudaDevAttrUnifiedAddressing = 18, 40, 41
cudaDevAttrGPUDirectRDMASupported = 116
is_hip = False


class CUDARuntimeError(RuntimeError):
    """A cudaError; `status` is its number."""

    def __init__(self, status):
        self.status = status
        name, message = _double.ERRORS.get(status, ("cudaErrorUnknown", "unknown error"))
        super().__init__(f"{name}: {message}")

    def __reduce__(self):
        return (type(self), (self.status,))


def check_status(status):
    if status != 0:
        raise CUDARuntimeError(status)


def _do(name, *arguments):
    check_status(_double.call(name, *arguments))


def _get(kind, name, *arguments):
    """What a C function writes behind its last argument."""
    found = kind()
    _do(name, *arguments, ctypes.byref(found))
    return found.value or 0


# -- versions and devices --


def driverGetVersion():
    if _double.LIBRARY is None:
        return 0
    version = ctypes.c_int()
    _double.LIBRARY.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def runtimeGetVersion():
    return _double.RUNTIME_VERSION


def getDeviceCount():
    check_status(_double.status())
    return _double.LIBRARY.double_count()


def setDevice(device):
    _do("double_set_device", device)


def getDevice():
    check_status(_double.status())
    return _double.LIBRARY.double_device()


def _properties(device):
    found = _double.Properties()
    _do("double_properties", device, ctypes.byref(found))
    return found


def getDeviceProperties(device):
    found = _properties(device)
    return {
        "name": found.name,
        "totalGlobalMem": found.memory,
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "clockRate": 1980000,
        "major": found.major,
        "minor": found.minor,
        "multiProcessorCount": found.processors,
        "integrated": 0,
        "canMapHostMemory": 1,
        "ECCEnabled": 1,
        "pciBusID": found.bus,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "memoryClockRate": 2619000,
        "memoryBusWidth": 5120,
        "l2CacheSize": found.l2,
        "asyncEngineCount": 3,
        "unifiedAddressing": 1,
        # The real one hands a char[16] on as a C string, which ends at the first zero.
        "uuid": bytes(found.uuid).split(b"\0")[0],
    }


def deviceGetAttribute(attrib, device):
    found = _properties(device)
    known = {
        cudaDevAttrMultiProcessorCount: found.processors,
        cudaDevAttrL2CacheSize: found.l2,
        cudaDevAttrPciBusId: found.bus,
        cudaDevAttrPciDeviceId: 0,
        cudaDevAttrPciDomainId: 0,
        cudaDevAttrIntegrated: 0,
        cudaDevAttrAsyncEngineCount: 3,
        cudaDevAttrUnifiedAddressing: 1,
        cudaDevAttrGPUDirectRDMASupported: 1,
    }
    if attrib not in known:
        raise CUDARuntimeError(1)
    return known[attrib]


def deviceGetPCIBusId(device):
    return _properties(device).pci.decode("ascii")


def deviceGetByPCIBusId(pci_bus_id):
    for device in range(getDeviceCount()):
        if deviceGetPCIBusId(device).lower() == pci_bus_id.lower():
            return device
    raise CUDARuntimeError(101)


def deviceSynchronize():
    _do("double_synchronize")


def deviceCanAccessPeer(device, peerDevice):
    return _get(ctypes.c_int, "double_can_access", device, peerDevice)


def deviceEnablePeerAccess(peerDevice):
    _do("double_enable_peer", peerDevice, 1)


def deviceDisablePeerAccess(peerDevice):
    _do("double_enable_peer", peerDevice, 0)


# -- memory --


def memGetInfo():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _do("double_memory", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def malloc(size):
    return _get(ctypes.c_void_p, "double_malloc", size)


def free(ptr):
    _do("double_free", ptr)


def hostAlloc(size, flags):
    return _get(ctypes.c_void_p, "double_host_alloc", size)


def freeHost(ptr):
    _do("double_host_free", ptr)


def hostRegister(ptr, size, flags):
    _do("double_host_register", ptr, size)


def hostUnregister(ptr):
    _do("double_host_unregister", ptr)


def memcpy(dst, src, size, kind):
    _do("double_copy", dst, src, size, kind, 0, 0)


def memcpyAsync(dst, src, size, kind, stream):
    _do("double_copy", dst, src, size, kind, stream, 1)


def memcpyPeer(dst, dstDevice, src, srcDevice, size):
    _do("double_copy_peer", dst, dstDevice, src, srcDevice, size, 0, 0)


def memcpyPeerAsync(dst, dstDevice, src, srcDevice, size, stream):
    _do("double_copy_peer", dst, dstDevice, src, srcDevice, size, stream, 1)


def memset(ptr, value, size):
    _do("double_fill", ptr, value, size, 0, 0)


def memsetAsync(ptr, value, size, stream):
    _do("double_fill", ptr, value, size, stream, 1)


# -- streams and events --


def streamCreate():
    return streamCreateWithFlags(streamDefault)


def streamCreateWithFlags(flags):
    return _get(ctypes.c_void_p, "double_stream_create", flags)


def streamDestroy(stream):
    _do("double_stream_destroy", stream)


def _driver(name, *arguments):
    """A function of the driver. The runtime makes a context current first; the driver does not."""
    code = _double.status()
    if code:
        return code
    _double.LIBRARY.double_bind()
    return _double.call(name, *arguments)


def streamSynchronize(stream):
    check_status(_driver("cuStreamSynchronize", stream))


def streamQuery(stream):
    return _driver("cuStreamQuery", stream)


def streamWaitEvent(stream, event, flags=0):
    _do("double_wait_event", stream, event)


def eventCreate():
    return eventCreateWithFlags(eventDefault)


def eventCreateWithFlags(flags):
    return _get(ctypes.c_void_p, "double_event_create", flags)


def eventDestroy(event):
    _do("double_event_destroy", event)


def eventRecord(event, stream):
    check_status(_driver("cuEventRecord", event, stream))


def eventSynchronize(event):
    check_status(_driver("cuEventSynchronize", event))


def eventQuery(event):
    return _driver("cuEventQuery", event)


def eventElapsedTime(start, end):
    found = ctypes.c_float()
    check_status(_driver("cuEventElapsedTime", ctypes.byref(found), start, end))
    return found.value


# -- graphs --


def streamBeginCapture(stream, mode=streamCaptureModeRelaxed):
    _do("double_begin_capture", stream, mode)


def streamEndCapture(stream):
    return _get(ctypes.c_void_p, "double_end_capture", stream)


def streamIsCapturing(stream):
    status = _get(ctypes.c_int, "double_is_capturing", stream)
    if status == streamCaptureStatusInvalidated:
        raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")
    return bool(status)


def graphInstantiate(graph):
    return _get(ctypes.c_void_p, "double_instantiate", graph)


def graphLaunch(graphExec, stream):
    check_status(_driver("cuGraphLaunch", graphExec, stream))


def graphDestroy(graph):
    _do("double_destroy_graph", graph, 0)


def graphExecDestroy(graphExec):
    _do("double_destroy_graph", graphExec, 1)
