"""The job that travels from the parent to every rank, as one word of the command line."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from commbench.spec import Point, Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One launch: what the parent hands to every rank, on its command line.

    Attributes:
        run: the replicate's number, from 1.
        seconds: what this launch may measure for: its share of the total budget.
        session: one id for all launches of one parent.
        launch: this launch's own id.
        launches: how many launches this run has had, with this one (2 after a resume).
        path: the interconnect asked for.
        environment: set in every rank before any library loads.
        only: the points to measure when the run goes on from an earlier launch; None for all.
        expect: facts that an earlier launch recorded and this one must share, or it is refused.
        command: the user's command line, for the record.
        pair, side: of a gate: which pair of launches this is one of, and which of the two ("a" or "b").
        visits: every point gets exactly so many, and rank 0 asks the parent before each: two launches take turns.
    """

    sweep: Sweep
    run: int
    seconds: float
    session: str
    launch: str
    launches: int = 1
    path: str = "auto"
    environment: Mapping[str, str] = field(default_factory=dict)
    only: tuple[Point, ...] | None = None
    expect: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    pair: int | None = None
    side: str = ""
    visits: int | None = None

    def encode(self) -> str:
        """One word without blanks, quotes or shell characters: it survives ssh, srun and nested shells."""
        return base64.urlsafe_b64encode(zlib.compress(json.dumps(asdict(self)).encode())).decode()

    @classmethod
    def decode(cls, word: str) -> Job:
        """The job that `encode` wrote."""
        plain = json.loads(zlib.decompress(base64.urlsafe_b64decode(word)))
        sweep = plain.pop("sweep")
        only = plain.pop("only")
        command = tuple(plain.pop("command"))
        return cls(
            sweep=sweep_from_json(sweep),
            only=None if only is None else tuple(Point(**point) for point in only),
            command=command,
            **plain,
        )


def sweep_from_json(plain: Mapping[str, Any]) -> Sweep:
    """The sweep of a JSON object as `dataclasses.asdict` made it; unknown keys are a newer version's."""
    known = {f.name for f in fields(Sweep)}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items() if key in known}
    return Sweep(**cast("dict[str, Any]", values))
