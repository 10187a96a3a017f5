"""One finding of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["works", "missing", "broken", "warning", "note"]
Section = Literal["back ends", "launchers", "GPUs", "machine"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        state: "missing" and "broken" do not work; "warning" works, but spoils measurements; "note" is a fact.
        fix: the command or the step that helps, "" when nothing needs to.
    """

    section: Section
    name: str
    state: State
    finding: str
    fix: str = ""
