"""The circumstances of a measurement as flat facts, and which of them differ between measurements.

A fact is named as its place in the results file: "libraries.mpi", "nodes.kernel", "environment.UCX_TLS".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.analyze.setting import Setting
from commbench.records import Record

Facts = Mapping[str, str]

_PLAIN = ("commbench", "launcher")
_HOW_MEASURED = ("iters", "warmup_iters", "precision", "budget", "total_budget", "check", "loop")
# Readings of a moment, and names of one machine or one start of it.
_NO_FACTS = ("load", "runnable", "memory_available_bytes", "frequency_current_hertz", "machine_id", "boot_id", "pid")
_NAMES_OF_ENTRIES = ("name", "node")
_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Change:
    """A fact that is not the same everywhere: one value a measurement, None where it is not known or not set."""

    fact: str
    values: tuple[str | None, ...]


def facts_of(runs: Sequence[Mapping[str, Any]], records: Iterable[Record] = ()) -> dict[str, str]:
    """The facts of some launches, from their "run" lines and their records.

    Nodes that agree in a fact give one value; what differs between them or between the launches is joined.
    """
    found: dict[str, dict[str, None]] = {}
    for name, value in (fact for run in runs for fact in _facts(run)):
        found.setdefault(name, {})[value] = None
    for record in records:
        for name, known in (("how.loop", record.how.get("loop")), ("proven_path", record.proven_path)):
            if known:
                found.setdefault(name, {})[str(known)] = None
    return {name: " | ".join(values) for name, values in found.items()}


def changes(measurements: Sequence[Facts]) -> list[Change]:
    """The facts that differ. Measurements without any facts, as from other tools, have no say."""
    known = [facts for facts in measurements if facts]
    names = dict.fromkeys(name for facts in known for name in facts)
    differing = [name for name in names if len({facts.get(name) for facts in known}) > 1]
    return [Change(name, tuple(facts.get(name) for facts in measurements)) for name in differing]


def _facts(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _PLAIN:
        yield from _flat(name, run.get(name))
    sweep, key, clock = (_dict(run.get(name)) for name in ("sweep", "key", "calibration"))
    yield from _flat("calibration.clock", clock.get("clock"))
    yield from _flat("key.ranks_per_node", key.get("ranks_per_node"))
    yield from _flat("libraries", _dict(run.get("libraries")))
    for variable in Setting.of(run).environment:
        name, _, value = variable.partition("=")
        yield f"environment.{name}", value
    for node in _dicts(run.get("nodes")):
        yield from _flat("nodes", {name: value for name, value in node.items() if name not in _NO_FACTS})
    yield from _placement(_dicts(run.get("placement")))
    yield from _flat("sweep", {name: sweep[name] for name in _HOW_MEASURED if name in sweep})


def _placement(ranks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Each fact of the ranks, once where all share it, else in their order."""
    for name in dict.fromkeys(name for rank in ranks for name in rank if name not in (*_NO_FACTS, "host")):
        values = [_text(rank.get(name)) for rank in ranks]
        if any(values):
            yield f"placement.{name}", values[0] if len(set(values)) == 1 else ", ".join(v or "?" for v in values)


def _flat(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The leaves below `name`; entries of a list of objects are called by their own names."""
    if depth > _DEEPEST:  # none of ours
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner, depth + 1)
    elif _dicts(value):
        for number, entry in enumerate(_dicts(value)):
            called = next((key for key in _NAMES_OF_ENTRIES if key in entry), None)
            rest = {key: inner for key, inner in entry.items() if key != called}
            yield from _flat(f"{name}.{number if called is None else entry[called]}", rest, depth + 1)
    elif text := _text(value):
        yield name, text


def _text(value: Any) -> str:
    """A leaf in words, "" for none; of a list its plain entries."""
    if isinstance(value, list):
        return ", ".join(filter(None, (_text(entry) for entry in value if not isinstance(entry, list | dict))))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None or isinstance(value, dict) else str(value)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
