"""GPUs and network interfaces as the kernel lists them: names and rates, no addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from commbench.measure import procfs
from commbench.measure.procfs import ROOT


def nvidia_gpus(root: Path = ROOT) -> list[tuple[str, str]]:
    """(model, UUID) of the GPUs that NVIDIA's kernel driver lists, without touching CUDA."""
    directory = root / "proc/driver/nvidia/gpus"
    listed = [procfs.fields(procfs.text(path)) for path in sorted(directory.glob("*/information"))]
    return [(gpu["Model"], gpu.get("GPU UUID", "")) for gpu in listed if "Model" in gpu]


def nvidia_driver(root: Path = ROOT) -> str | None:
    """The version of NVIDIA's kernel driver."""
    match = re.search(r"\s(\d+\.[\d.]+)\s", procfs.text(root / "proc/driver/nvidia/version") or "")
    return match[1] if match else None


def nvidia_hardware(root: Path = ROOT) -> tuple[int, int]:
    """(GPUs, NVSwitches) of NVIDIA on the PCI bus, whether a driver knows them or not."""
    found = [0, 0]
    for device in (root / "sys/bus/pci/devices").glob("*"):
        if procfs.text(device / "vendor") == "0x10de":
            kind = procfs.text(device / "class") or ""
            found[0] += kind.startswith(("0x0300", "0x0302"))  # display and 3D controllers
            found[1] += kind.startswith("0x0680")  # other bridges: NVSwitches are the only ones NVIDIA makes
    return found[0], found[1]


def runs(program: str, root: Path = ROOT) -> bool:
    """Whether a program runs here; a container sees its own ones only."""
    name = program[:15]  # all that the kernel keeps
    return any(procfs.text(path) == name for path in (root / "proc").glob("[0-9]*/comm"))


def networks(root: Path = ROOT) -> list[dict[str, Any]]:
    """Interfaces and RDMA ports: name, kind, state, bytes_per_second (None when unknown or down), mtu."""
    return _interfaces(root) + _rdma_ports(root)


def _interfaces(root: Path) -> list[dict[str, Any]]:
    found = []
    for interface in sorted((root / "sys/class/net").glob("*")):
        state = procfs.text(interface / "operstate")
        virtual = not (interface / "device").exists()
        # A host of containers has one end of a veth pair for each; what is virtual and down says nothing either.
        if interface.name == "lo" or interface.name.startswith(("veth", "cali")) or (virtual and state != "up"):
            continue
        megabits = procfs.integer(interface / "speed")  # unreadable or -1 when the link is down or has no rate
        found.append(
            {
                "name": interface.name,
                "kind": "ethernet",
                "state": state,
                "bytes_per_second": megabits * 1e6 / 8 if megabits and megabits > 0 else None,
                "mtu": procfs.integer(interface / "mtu"),
            }
        )
    return found


def _rdma_ports(root: Path) -> list[dict[str, Any]]:
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        gigabits = re.match(r"([\d.]+) Gb/sec", procfs.text(port / "rate") or "")
        found.append(
            {
                "name": f"{port.parent.parent.name}:{port.name}",
                "kind": (procfs.text(port / "link_layer") or "infiniband").lower(),
                "state": (procfs.text(port / "state") or "").rpartition(": ")[2].lower() or None,
                "bytes_per_second": float(gigabits[1]) * 1e9 / 8 if gigabits else None,
                "mtu": None,
            }
        )
    return found
