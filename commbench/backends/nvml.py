"""The state of a GPU as its driver's management library tells it, without a CUDA context."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from commbench.backends.base import Health

# nvml.h, nvmlClocksEventReasons. Idling, a power cap and locked clocks are how a GPU is run; these are faults.
_FAULTS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}


class Monitor:
    """One GPU's clock and what holds it down; knows nothing where nvidia-ml-py or NVML is missing.

    Args:
        pci_bus_id: "0000:65:00.0", the one name of a device that CUDA and NVML share whatever is visible.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        with suppress(Exception):  # an optional library over an optional one: whatever fails, there is no monitor
            import pynvml  # noqa: PLC0415

            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            self._nvml = pynvml

    @property
    def works(self) -> bool:
        return self._nvml is not None

    def health(self) -> Health:
        nvml = self._nvml
        if nvml is None:
            return Health()
        slowed, hertz = "", None
        with suppress(nvml.NVMLError):
            hertz = nvml.nvmlDeviceGetClockInfo(self._device, nvml.NVML_CLOCK_SM) * 1e6
        with suppress(nvml.NVMLError):
            bits = self._reasons()
            slowed = ", ".join(name for bit, name in _FAULTS.items() if bits & bit)
        return Health(slowed, hertz)

    def _reasons(self) -> int:
        # Renamed in 2023: drivers before 535 know the old name alone, and the binding has both.
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(self._device))
        except (nvml.NVMLError_FunctionNotFound, AttributeError):
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._device))
