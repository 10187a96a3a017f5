"""What a gate needs no statistics for: wrong answers, hangs, crashes, and a worse interconnect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from commbench.analyze.cells import Measured, Replicate, is_sound
from commbench.analyze.path_order import worse_path
from commbench.analyze.verdicts import Family, Hit, Ratio
from commbench.records import Record
from commbench.results import Results
from commbench.units import format_size


def exact_hits(baseline: Measured, candidate: Measured) -> Iterator[Hit]:
    """What needs no statistics, at sizes where the baseline is clean."""
    for size, group in sorted(candidate.records.items()):
        ours = baseline.records.get(size, {}).values()
        if not ours or not all(is_sound(record) for record in ours):
            continue
        for family, text in _faults(group):
            yield Hit(family, format_size(size), (size, size), Ratio(None), text=text)
        if worse := worse_path(_proven(ours), _proven(group.values())):
            yield Hit("path", format_size(size), (size, size), Ratio(None), text=worse)


def _faults(group: Mapping[Replicate, Record]) -> Iterator[tuple[Family, str]]:
    wrong = [record for record in group.values() if record.check == "wrong"]
    failed = [record for record in group.values() if record.status != "ok" and record.check != "wrong"]
    for kind, records in (("wrong", wrong), ("hang", failed)):
        if records:
            times = f" (in {len(records)} of {len(group)} launches)" if len(group) > 1 else ""
            name: Family = "wrong" if kind == "wrong" else "hang"
            what = "wrong answer" if name == "wrong" else records[0].status
            yield name, f"{what}: {records[0].reason or 'no reason given'}{times}"


def _proven(records: Iterable[Record]) -> list[str]:
    return [record.proven_path for record in records if record.proven_path]


def crashes(side: Results) -> list[str]:
    """Why launches ended that no record tells of: a rank 0 that died writes none."""
    told = {record.launch for record in side.records if record.status != "ok"}
    return [
        str(end.get("reason") or "no reason given")
        for end in side.ends
        if end.get("status") == "failed" and end.get("fault") and end.get("launch") not in told
    ]
