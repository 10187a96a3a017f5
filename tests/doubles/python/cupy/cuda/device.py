"""cupy.cuda.device."""

from __future__ import annotations

import threading

from cupy.cuda import runtime

_left = threading.local()


class Device:
    def __init__(self, device=None):
        self.id = runtime.getDevice() if device is None else int(device)

    @classmethod
    def from_pci_bus_id(cls, pci_bus_id):
        return cls(runtime.deviceGetByPCIBusId(pci_bus_id))

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def __enter__(self):
        if not hasattr(_left, "stack"):
            _left.stack = []
        _left.stack.append(runtime.getDevice())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *args):
        runtime.setDevice(_left.stack.pop())

    def use(self):
        runtime.setDevice(self.id)
        return self

    def synchronize(self):
        with self:
            runtime.deviceSynchronize()

    @property
    def attributes(self):
        names = [name for name in vars(runtime) if name.startswith("cudaDevAttr")]
        return {
            name.removeprefix("cudaDevAttr"): runtime.deviceGetAttribute(getattr(runtime, name), self.id)
            for name in names
        }

    @property
    def compute_capability(self):
        found = runtime.getDeviceProperties(self.id)
        return f"{found['major']}{found['minor']}"

    @property
    def pci_bus_id(self):
        return runtime.deviceGetPCIBusId(self.id)

    @property
    def mem_info(self):
        with self:
            return runtime.memGetInfo()
