"""Where and with what a launch ran, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Where a job ran and where files lie changes no result.
_NO_SETTINGS = ("SLURM_", "NUMBA_", "NUMPY_", "OPAL_PREFIX")


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and with what a launch ran: words for a reader, equal for launches that may be averaged.

    Attributes:
        library: the back end's library with its version, "" when the file does not say.
        hosts: host names in order of ranks, each once.
        hardware: "2 x AMD EPYC 9354, 8 x NVIDIA H200" of the first host; more hosts only where they differ.
        environment: variables that steer a library, as "NCCL_ALGO=Tree".
        source: the imported file, where nothing else tells its setting from that of another.
    """

    library: str = ""
    hosts: tuple[str, ...] = ()
    hardware: str = ""
    environment: tuple[str, ...] = ()
    source: str = ""

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Setting:
        """The setting of a "run" line; what is missing or of another type than ours is left out."""
        libraries, variables = _dict(run.get("libraries")), _dict(run.get("environment"))
        used = _gpus_used([rank for rank in _list(run.get("placement")) if isinstance(rank, dict)])
        nodes = [node for node in _list(run.get("nodes")) if isinstance(node, dict)]
        return cls(
            library=_library(str(run.get("backend", "")), libraries),
            hosts=tuple(dict.fromkeys(str(node["hostname"]) for node in nodes if node.get("hostname"))),
            hardware=" | ".join(dict.fromkeys(_hardware(node, used) for node in nodes if _hardware(node, used))),
            environment=tuple(f"{k}={v}" for k, v in sorted(variables.items()) if not k.startswith(_NO_SETTINGS)),
            source=str(run.get("source", "")),
        )


UNKNOWN = Setting()


def _library(backend: str, libraries: Mapping[str, Any]) -> str:
    """The library that moves the data: the one that has the back end's name, else the first."""
    name = backend if backend in libraries else next(iter(libraries), "")
    return str(libraries.get(name, ""))


def _gpus_used(placement: list[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Host -> the models of the GPUs that its ranks had, each GPU once however many ranks were on it.

    A rank has one as "gpu", or several as "gpus".
    """
    found: dict[str, dict[str, str]] = {}
    for rank in placement:
        for gpu in filter(None, map(_dict, [rank.get("gpu"), *_list(rank.get("gpus"))])):
            found.setdefault(str(rank.get("host", "")), {})[str(gpu.get("uuid"))] = str(gpu.get("name"))
    return {host: list(gpus.values()) for host, gpus in found.items()}


def _hardware(node: Mapping[str, Any], used: Mapping[str, list[str]]) -> str:
    """Its processors, and the GPUs that were measured; where none was, those that it has."""
    gpus = used.get(str(node.get("hostname"))) or [str(gpu) for gpu in _list(node.get("gpus"))]
    parts = [_times(node.get("sockets"), node.get("cpu_model"))]
    parts += [_times(gpus.count(gpu), gpu) for gpu in dict.fromkeys(gpus)]
    return ", ".join(filter(None, parts))


def _times(count: Any, model: Any) -> str:
    return f"{count} x {model}" if model and isinstance(count, int) and count > 1 else str(model or "")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
