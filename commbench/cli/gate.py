"""`commbench gate`: a verdict for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.cli.arguments import AsJson, AsMarkdown, Export
from commbench.errors import UsageError
from commbench.units import parse_share

_MEASURE, _JUDGE, _TELL = "Measure pairs", "Judge", "Tell"
_SIDE = "[NAME=VALUE ...] [COMMAND [--]] [SWEEP OPTIONS]"


def _option(*names: str, panel: str, help: str, metavar: str, **more: Any) -> Any:  # noqa: A002 - Typer's word
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, show_default=False, **more)


def _share(*names: str, panel: str, help: str) -> Any:  # noqa: A002 - Typer's word
    def parser(text: str) -> Any:
        return parse_share(text, names[0]) if isinstance(text, str) else text

    return _option(*names, panel=panel, help=help, metavar="SHARE", parser=parser)


Words = Annotated[
    list[str] | None, typer.Argument(metavar="[BASELINE CANDIDATE | RESULTS | -- SWEEP OPTIONS]", show_default=False)
]
A = Annotated[str | None, _option("--a", panel=_MEASURE, help=f"The baseline: {_SIDE}.", metavar="SIDE")]
B = Annotated[str | None, _option("--b", panel=_MEASURE, help="The candidate, likewise.", metavar="SIDE")]
PairCount = Annotated[
    int, _option("--pairs", panel=_MEASURE, help="Pairs of launches; as many again in doubt (5).", metavar="N")
]
Alternate = Annotated[
    str | None,
    _option(
        "--alternate",
        panel=_MEASURE,
        help="visits: both sides run at once and take turns; launches: one after the other (visits; launches with "
        "--launcher).",
        metavar="HOW",
    ),
]
OutputFile = Annotated[
    Path | None, _option("--output", panel=_MEASURE, help="Results: NAME-a.jsonl and NAME-b.jsonl.", metavar="NAME")
]
Force = Annotated[bool, _option("--force", panel=_MEASURE, help="Overwrite existing files.", metavar="")]
Expect = Annotated[
    list[str] | None,
    _option("--expect", panel=_JUDGE, help="'allreduce@1G busbw>=440GB/s'; several are possible.", metavar="LIMIT"),
]
Margin = Annotated[Any, _share("--margin", panel=_JUDGE, help="The slowdown that a pass rules out (5%).")]
SessionSd = Annotated[
    Any, _share("--session-sd", panel=_JUDGE, help="Spread between sessions, where files differ in it (2%).")
]
OnInconclusive = Annotated[
    str, _option("--on-inconclusive", panel=_TELL, help="fail (exit 4) or pass (exit 0) (fail).", metavar="WHAT")
]
Junit = Annotated[Path | None, _option("--junit", panel=_TELL, help="Write a JUnit report here.", metavar="FILE")]


def gate(
    words: Words = None, a: A = None, b: B = None, pairs: PairCount = 5, alternate: Alternate = None,
    output: OutputFile = None, force: Force = False, expect: Expect = None, margin: Margin = None,
    session_sd: SessionSd = None, on_inconclusive: OnInconclusive = "fail", as_json: AsJson = False,
    as_markdown: AsMarkdown = False, junit: Junit = None, export: Export = None,
) -> int:  # fmt: skip
    """Say whether curves got slower: exit 0 pass, 3 regression, 4 cannot tell, 1 could not measure.

    Measure two sides in one job (a COMMAND is a Python with commbench, as of another environment or in a container):

        commbench gate --a 'NCCL_ALGO=Ring' --b 'NCCL_ALGO=Tree' -- --op allreduce
        commbench gate --a /opt/old/bin/python --b /opt/new/bin/python -- --op allreduce,alltoall --ranks 2

    Judge what was measured: two files, or one against limits.

        commbench gate old.jsonl new.jsonl
        commbench gate new.jsonl --expect 'allreduce@1G busbw>=440GB/s' --expect 'allreduce alpha<=12us'

    A stored baseline costs: measured on another day or in another job, machines differ by some per cent as a whole.
    Rules that ignore it raise a false alarm in 9 to 17 % of the cases; this one allows for the spread between
    sessions, and so often cannot tell. Pairs in one job are wrong in less than 1 %.
    """
    from commbench.cli.gating import Telling, check_limits, judge_files, tell

    if on_inconclusive not in ("fail", "pass"):
        raise UsageError(f"--on-inconclusive: unknown {on_inconclusive!r}", "fail or pass")
    telling = Telling(as_json, as_markdown, export, junit, inconclusive_passes=on_inconclusive == "pass")
    margin = 0.05 if margin is None else margin
    if a is not None or b is not None:
        from commbench.cli.gate_sides import Asked, measure_pairs

        _refuse_with_sides(expect, session_sd)
        turns = _turns(alternate)
        asked = Asked((a or "", b or ""), tuple(words or ()), pairs, turns, output, force, margin)
        report, files = measure_pairs(asked)
        return tell(report, telling, files)
    names = _files(words, 1 if expect else 2)
    if expect:
        return tell(check_limits(names, expect), telling)
    spread = 0.02 if session_sd is None else session_sd
    return tell(judge_files(names, session_spread=spread, margin=margin), telling)


def _files(words: list[str] | None, count: int) -> list[Path]:
    found = words or []
    if len(found) == count:
        return [Path(word) for word in found]
    what = "--expect takes one results file" if count == 1 else "two results files are needed: a baseline, a candidate"
    hint = "or --a and --b, to measure both sides now" if count > 1 else "commbench gate RESULTS --expect '...'"
    raise UsageError(f"{what}; {len(found)} are given", hint)


def _turns(alternate: str | None) -> bool | None:
    if alternate not in (None, "visits", "launches"):
        raise UsageError(f"--alternate: unknown {alternate!r}", "visits or launches")
    return None if alternate is None else alternate == "visits"


def _refuse_with_sides(expect: list[str] | None, session_sd: float | None) -> None:
    if expect:
        raise UsageError("--expect judges one results file, --a and --b measure two sides", "leave one out")
    if session_sd is not None:
        raise UsageError("--session-sd: pairs are of one session", "leave it out")
