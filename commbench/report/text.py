"""Words about curves that tables, Markdown and plots share. All text out of files is cleaned here."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from commbench.analyze.setting import Setting
from commbench.analyze.summary import Curve
from commbench.spec import UNKNOWN, Point

SEPARATOR = " · "
_LONGEST = 120
_MOST_HOSTS = 3
KEYS = ("op", "redop", "root", "variant", "dtype", "ranks", "backend", "device", "path", "mode", "cache", "in_place")
_ONE_PROCESS = ("copies",)  # its two "ranks" are the endpoints of a copy
# These follow from the operation: they tell curves apart only where the operation does not.
_OF_THE_OPERATION = ("redop", "root", "variant", "in_place")


def clean(value: object, longest: int = _LONGEST) -> str:
    """`value` as text that moves no cursor, changes no colour and turns no line around.

    Control, format and surrogate characters go, blanks of any kind become one space: a results file from a
    stranger must not speak to the terminal.
    """
    text = "".join(c for c in " ".join(str(value).split()) if not unicodedata.category(c).startswith("C"))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def header_lines(curve: Curve) -> list[str]:
    """Lines above a table: what and on which ranks, through which library on what, and how, as far as known."""
    key, setting = curve.key, curve.setting
    proven = ", ".join(dict.fromkeys(clean(p.proven_path) for p in curve.points if p.proven_path))
    proof = f"proven {proven}" if proven else "not proven"
    how = words(key, ("mode", "cache", "in_place", "path"))
    line = SEPARATOR.join(filter(None, (*how, proof if how or proven else "")))
    return [*what_and_where(key, setting), *filter(None, [line])]


def what_and_where(key: Point, setting: Setting) -> list[str]:
    """The first two of `header_lines`."""
    operation = " ".join(words(key, ("op", "redop", "root", "variant")))
    hosts = ranks_and_hosts(key.ranks, setting.hosts)
    if key.backend in _ONE_PROCESS:
        hosts = hosts.partition(" on ")[2]
    library = ", ".join((*words(key, ("backend",)), *filter(None, [clean(setting.library)])))
    on = " on ".join(filter(None, (library, *words(key, ("device",)))))
    lines = [(operation, *words(key, ("dtype",)), hosts), (on, clean(setting.hardware), clean(setting.source))]
    return [line for line in (SEPARATOR.join(filter(None, parts)) for parts in lines) if line]


def ranks_and_hosts(ranks: int, hosts: Sequence[str]) -> str:
    """The line "16 ranks on 2 hosts: node1, node2", as far as the file knows."""
    text = "1 rank" if ranks == 1 else f"{ranks or 'unknown'} ranks"
    if not hosts:
        return text if ranks else ""
    if len(hosts) == 1:
        return f"{text} on {clean(hosts[0])}"
    shown = hosts if len(hosts) <= _MOST_HOSTS else (hosts[0], "…", hosts[-1])
    return f"{text} on {len(hosts)} hosts: {', '.join(clean(host, 40) for host in shown)}"


def words(key: Point, names: Sequence[str] = KEYS) -> list[str]:
    """The values of some keys in words, without those an operation does not have."""
    return [word for word in (_word(key, name) for name in names) if word]


def _word(key: Point, name: str) -> str:
    value = getattr(key, name)
    if value is None or value == "":
        return ""
    if value == UNKNOWN:
        return "unknown operation" if name == "op" else ""
    if name == "in_place":  # who does not say how it was measured has not said this either
        return "in place" if value else "" if key.mode == UNKNOWN else "out of place"
    if name == "ranks":
        return "" if key.backend in _ONE_PROCESS else ranks_and_hosts(value, ())
    if name == "variant":
        return clean(value.replace("=", " ").replace(";", ", "))
    return clean(f"{name} {value}" if name in ("root", "path", "mode", "cache") else value)


def setting_words(setting: Setting) -> list[str]:
    """A setting in words: library, hosts, hardware, environment, as far as they are known."""
    hosts = ranks_and_hosts(1, setting.hosts).removeprefix("1 rank on ") if setting.hosts else ""
    known = (setting.library, hosts, setting.hardware, *setting.environment, setting.source)
    return [clean(word, 60) for word in known if word]


def labels(curves: Sequence[Curve]) -> list[str]:
    """For each curve the words that tell it from the others: "allreduce, mode pipe"; "" for a single one."""
    if not curves:
        return []
    differing = [name for name in KEYS if _differs(name, [curve.key for curve in curves])]
    settings = [setting_words(curve.setting) for curve in curves]
    common = common_settings(curves)
    return [
        ", ".join(words(curve.key, differing) + [word for word in own if word not in common])
        for curve, own in zip(curves, settings, strict=True)
    ]


def common_words(curves: Sequence[Curve], names: Sequence[str] = KEYS) -> list[str]:
    """The words that all curves share, of some keys: with `labels` they say everything once."""
    keys = [curve.key for curve in curves]
    return words(keys[0], [name for name in names if len({getattr(key, name) for key in keys}) == 1])


def common_settings(curves: Sequence[Curve]) -> list[str]:
    """The words of the settings that all curves share."""
    first, *others = [setting_words(curve.setting) for curve in curves]
    return [word for word in first if all(word in other for other in others)]


def _differs(name: str, keys: Sequence[Point]) -> bool:
    if name not in _OF_THE_OPERATION:
        return len({getattr(key, name) for key in keys}) > 1
    return any(len({getattr(key, name) for key in keys if key.op == op}) > 1 for op in {key.op for key in keys})
