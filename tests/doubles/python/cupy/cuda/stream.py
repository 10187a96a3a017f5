"""cupy.cuda.stream: streams and events as objects, and which stream is current."""

from __future__ import annotations

import threading

from cupy.cuda import runtime

_here = threading.local()


def get_current_stream(device_id=-1):
    return getattr(_here, "current", None) or Stream.null


def get_elapsed_time(start_event, end_event):
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class Event:
    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.ptr = 0
        flags = block * runtime.eventBlockingSync + disable_timing * runtime.eventDisableTiming
        self.ptr = runtime.eventCreateWithFlags(flags)

    def __del__(self, destroy=runtime.eventDestroy):
        if getattr(self, "ptr", 0):
            destroy(self.ptr)

    @property
    def done(self):
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream=None):
        runtime.eventRecord(self.ptr, (get_current_stream() if stream is None else stream).ptr)

    def synchronize(self):
        runtime.eventSynchronize(self.ptr)


class _BaseStream:
    ptr = 0

    def __enter__(self):
        self._before = getattr(_here, "current", None)
        _here.current = self
        return self

    def __exit__(self, *args):
        _here.current = self._before

    def use(self):
        _here.current = self
        return self

    @property
    def done(self):
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self):
        runtime.streamSynchronize(self.ptr)

    def record(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode=None):
        runtime.streamBeginCapture(self.ptr, runtime.streamCaptureModeRelaxed if mode is None else mode)

    def end_capture(self):
        from cupy.cuda.graph import Graph

        return Graph._of(runtime.streamEndCapture(self.ptr))

    def is_capturing(self):
        return runtime.streamIsCapturing(self.ptr)


class Stream(_BaseStream):
    null = None

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self.ptr = 0
        self.device_id = -1
        self._owns = not (null or ptds)
        if self._owns:
            self.device_id = runtime.getDevice()
            self.ptr = runtime.streamCreateWithFlags(
                runtime.streamNonBlocking if non_blocking else runtime.streamDefault
            )

    def __del__(self, destroy=runtime.streamDestroy):
        if getattr(self, "ptr", 0) and self._owns:
            destroy(self.ptr)


Stream.null = Stream(null=True)


class ExternalStream(_BaseStream):
    def __init__(self, ptr, device_id=-1):
        self.ptr, self.device_id = ptr, device_id
