"""`commbench sweep`: measure, then show, fit and plot."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from commbench.errors import UsageError
from commbench.ops import DTYPES, OPERATIONS, REDUCTIONS, parse_dtype, parse_operations, parse_reduction
from commbench.spec import CACHES, DEVICES, LOOPS, THREAD_LEVELS
from commbench.units import parse_duration, parse_share, parse_size


def _option(*names: str, panel: str, help: str, metavar: str, **more: Any) -> Any:  # noqa: A002 - Typer's word
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, show_default=False, **more)


def _parsed(parse: Callable[[str, str], Any], *names: str, panel: str, help: str, metavar: str) -> Any:  # noqa: A002
    """An option whose text `parse(text, flag)` turns into base units."""

    def parser(text: str) -> Any:
        return parse(text, names[0]) if isinstance(text, str) else text

    return _option(*names, panel=panel, help=help, metavar=metavar, parser=parser)


def _words(parse: Callable[[str], Any], *names: str, panel: str, help: str, metavar: str) -> Any:  # noqa: A002
    return _parsed(lambda text, _flag: parse(text), *names, panel=panel, help=help, metavar=metavar)


def _pair(text: str, flag: str) -> tuple[int, int]:
    from commbench.backends.routes import parse_pair

    try:
        return parse_pair(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r} is not two ranks", "use --pair 0,1") from error


def _command(text: str, flag: str) -> str:
    """A command line, as it is; `shlex.split` must be able to read it when the ranks are started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{flag}: {text!r} is not a command: {error}", "quote it once: --launcher 'mpirun -n 4'"
        ) from error
    if not words:
        raise UsageError(f"{flag}: no command", "use --launcher 'mpirun -n 4', or leave it out")
    return text


def _path(text: str) -> str:
    """A file's absolute path: ranks may run in another folder. Whether it is there, each of them finds out."""
    return str(Path(text).expanduser().absolute())


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip().lower() for word in text.split(",")))


def _not_yet(what: str, hint: str) -> Callable[[bool], None]:
    """A letter of nccl-tests that means something else here would mislead: it is refused in words."""

    def refuse(asked: bool) -> None:
        if asked:
            raise UsageError(what, hint)

    return refuse


_REGISTERED = _not_yet(
    "-R: registered buffers are not built yet", "leave -R out; the buffers are not registered with NCCL"
)
_GRAPH = _not_yet("-G: CUDA graphs are a mode here", "use --mode graph")
_SIZES, _WHAT, _RANKS, _TIMING, _FAULTS, _OUTPUT = "Sizes", "What", "Ranks", "Timing", "Faults", "Output"
_OP_HELP = f"What to measure, a list or 'all': {', '.join(OPERATIONS)}."
_BACKEND_HELP = "auto, nccl, torch-nccl, mpi, gloo, copies, emulated. auto: nccl where GPUs are, else mpi, else gloo."
_EMULATE_HELP = "The emulated back end's truth: alpha=5us,bandwidth=10GB/s,noise=5%,..."
_PATH_HELP = "copies: peer, staged, read, local, pinned, pageable (all that are here)."
_IN_PLACE_HELP = "no, yes or both; left out, each operation as the back end has it."
_BUDGET_HELP = "Measuring time of the whole command, shared out over runs and points (60s)."

Ops = Annotated[Any, _words(parse_operations, "--op", panel=_WHAT, help=_OP_HELP, metavar="OP,...")]
Backend = Annotated[str | None, _option("--backend", panel=_WHAT, help=_BACKEND_HELP, metavar="NAME")]
MinBytes = Annotated[
    Any, _parsed(parse_size, "--min-bytes", "-b", panel=_SIZES, help="First size (8).", metavar="SIZE")
]
MaxBytes = Annotated[
    Any, _parsed(parse_size, "--max-bytes", "-e", panel=_SIZES, help="Last size (64M; 1G on GPUs).", metavar="SIZE")
]
Factor = Annotated[float | None, _option("--factor", "-f", panel=_SIZES, help="Each size times this (2).", metavar="F")]
StepBytes = Annotated[
    Any, _parsed(parse_size, "--step-bytes", "-i", panel=_SIZES, help="Instead: each size plus this.", metavar="SIZE")
]
Dtype = Annotated[
    Any, _words(parse_dtype, "--dtype", "-d", panel=_WHAT, help=f"{', '.join(DTYPES)} (float32).", metavar="TYPE")
]
Redop = Annotated[
    Any, _words(parse_reduction, "--redop", "-o", panel=_WHAT, help=f"{', '.join(REDUCTIONS)} (sum).", metavar="OP")
]
Root = Annotated[
    int | None, _option("--root", "-r", panel=_WHAT, help="Root of rooted operations (0).", metavar="RANK")
]
Device = Annotated[
    str | None,
    _option("--device", panel=_WHAT, help=f"Buffers on {' or '.join(DEVICES)} (by back end).", metavar="DEV"),
]
NcclLib = Annotated[
    Any,
    _words(
        _path, "--nccl-lib", panel=_WHAT, help="Measure this libnccl.so.2 instead of the one found.", metavar="FILE"
    ),
]
AllowSharedGpu = Annotated[
    bool | None,
    _option("--allow-shared-gpu", panel=_RANKS, help="Several ranks on one GPU: answers, no speed.", metavar=""),
]
Staged = Annotated[
    bool | None,
    _option("--staged", panel=_WHAT, help="MPI on GPUs: copy through host memory around each call.", metavar=""),
]
InPlace = Annotated[str | None, _option("--in-place", panel=_WHAT, help=_IN_PLACE_HELP, metavar="FORM")]
Imbalance = Annotated[
    float | None,
    _option("--imbalance", panel=_WHAT, help="alltoallv: rank 0 gets F times the mean (1.5).", metavar="F"),
]
Pair = Annotated[
    Any,
    _parsed(
        _pair,
        "--pair",
        panel=_WHAT,
        help="p2p: which two ranks (0 and the last); copies: GPUs or host (all).",
        metavar="A,B",
    ),
]
Way = Annotated[
    Any,
    _words(_list, "--path", panel=_WHAT, help=_PATH_HELP, metavar="WAY,..."),
]
Bidirectional = Annotated[
    bool | None, _option("--bidirectional", panel=_WHAT, help="p2p: both directions at once.", metavar="")
]
Emulate = Annotated[str | None, _option("--emulate", panel=_WHAT, help=_EMULATE_HELP, metavar="SPEC")]
Ranks = Annotated[
    int | None, _option("--ranks", panel=_RANKS, help="How many to start (one a core, 2 to 8; one a GPU).", metavar="N")
]
Launcher = Annotated[
    Any,
    _parsed(
        _command,
        "--launcher",
        panel=_RANKS,
        help="Start ranks by this: 'srun -N2 -n16', 'mpirun -np 4'.",
        metavar="CMD",
    ),
]
Runs = Annotated[
    int | None, _option("--runs", panel=_RANKS, help="Launches to average over (3; 1 for a rank).", metavar="N")
]
ThreadLevel = Annotated[
    str | None,
    _option("--mpi-thread-level", panel=_RANKS, help=f"{', '.join(THREAD_LEVELS)} (single).", metavar="LEVEL"),
]
Mode = Annotated[
    Any,
    _words(
        _list,
        "--mode",
        panel=_TIMING,
        help="sync, pipe, graph, or several: sync,pipe (sync; pipe on GPUs).",
        metavar="MODE",
    ),
]
Cache = Annotated[
    str | None,
    _option("--cache", panel=_TIMING, help=f"Buffers: {' or '.join(CACHES)} (hot; rotated on GPUs).", metavar="MODE"),
]
Precision = Annotated[
    Any,
    _parsed(parse_share, "--precision", panel=_TIMING, help="Stop a size at this half-width (2%).", metavar="SHARE"),
]
Budget = Annotated[
    Any, _parsed(parse_duration, "--budget", panel=_TIMING, help="At most this per size (5s).", metavar="TIME")
]
TotalBudget = Annotated[
    Any, _parsed(parse_duration, "--total-budget", panel=_TIMING, help=_BUDGET_HELP, metavar="TIME")
]
Iters = Annotated[
    int | None, _option("--iters", "-n", panel=_TIMING, help="Exactly this many samples instead.", metavar="N")
]
Warmup = Annotated[
    int | None,
    _option("--warmup-iters", "-w", panel=_TIMING, help="Calls before the first sample (10 and 5 ms).", metavar="N"),
]
CheckAnswers = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check", "-c", rich_help_panel=_TIMING, help="Check answers before and after.", show_default=False
    ),
]
Seed = Annotated[int | None, _option("--seed", panel=_TIMING, help="Of the order of sizes (1).", metavar="N")]
Loop = Annotated[
    str | None, _option("--loop", panel=_TIMING, help=f"The timed loop: {', '.join(LOOPS)} (auto).", metavar="LOOP")
]
Timeout = Annotated[
    Any,
    _parsed(
        parse_duration, "--timeout", "-T", panel=_FAULTS, help="A size without progress hangs (60s).", metavar="TIME"
    ),
]
InitTimeout = Annotated[
    Any, _parsed(parse_duration, "--init-timeout", panel=_FAULTS, help="For all ranks to come (10m).", metavar="TIME")
]
OnHang = Annotated[
    str | None, _option("--on-hang", panel=_FAULTS, help="stop, or skip the size and go on (stop).", metavar="WHAT")
]
OutputFile = Annotated[
    Path | None, _option("--output", panel=_OUTPUT, help="Results file (results/TIME-OP-...jsonl).", metavar="FILE")
]
Append = Annotated[Path | None, _option("--append", panel=_OUTPUT, help="Add runs to this file.", metavar="FILE")]
Resume = Annotated[
    Path | None, _option("--resume", panel=_OUTPUT, help="Measure what this file still lacks.", metavar="FILE")
]
Force = Annotated[bool, _option("--force", panel=_OUTPUT, help="Overwrite an existing file.", metavar="")]
AsJson = Annotated[bool, _option("--json", panel=_OUTPUT, help="One JSON document instead of tables.", metavar="")]
NoPlot = Annotated[bool, _option("--no-plot", panel=_OUTPUT, help="Draw nothing.", metavar="")]
Quick = Annotated[bool, _option("--quick", panel=_TIMING, help="One run, 10 s, ±5%: a first look.", metavar="")]
Expect = Annotated[
    list[str] | None,
    _option(
        "--expect", panel=_OUTPUT, help="A limit: 'allreduce@1G busbw>=440GB/s'; exit 3 when missed.", metavar="LIMIT"
    ),
]
Registered = Annotated[bool, typer.Option("-R", hidden=True, callback=_REGISTERED)]
Graph = Annotated[bool, typer.Option("-G", hidden=True, callback=_GRAPH)]


def sweep(
    ops: Ops = None, backend: Backend = None, dtype: Dtype = None, redop: Redop = None, root: Root = None,
    in_place: InPlace = None, imbalance: Imbalance = None, pair: Pair = None, paths: Way = None,
    bidirectional: Bidirectional = None,
    emulate: Emulate = None, device: Device = None, staged: Staged = None, nccl_lib: NcclLib = None,
    min_bytes: MinBytes = None, max_bytes: MaxBytes = None, factor: Factor = None, step_bytes: StepBytes = None,
    ranks: Ranks = None, launcher: Launcher = None, allow_shared_gpu: AllowSharedGpu = None,
    runs: Runs = None, thread_level: ThreadLevel = None,
    modes: Mode = None, cache: Cache = None, precision: Precision = None, budget: Budget = None,
    total_budget: TotalBudget = None, iters: Iters = None, warmup_iters: Warmup = None, check: CheckAnswers = None,
    seed: Seed = None, loop: Loop = None, quick: Quick = False,
    timeout: Timeout = None, init_timeout: InitTimeout = None, on_hang: OnHang = None,
    output: OutputFile = None, append: Append = None, resume: Resume = None, force: Force = False,
    as_json: AsJson = False, no_plot: NoPlot = False, expect: Expect = None,
    _registered: Registered = False, _graph: Graph = False,
) -> int:  # fmt: skip
    """Measure collectives over message sizes, check the answers, fit alpha + D/B, write results and plots.

    Alone it starts its own ranks. Under mpirun, torchrun or srun it is one of theirs, for one run.
    Example: `commbench sweep --op allreduce,alltoall -e 16M --ranks 2`
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from commbench.analyze.expectations import parse_expectation
    from commbench.cli.measuring import Output, measure

    for name in (
        "launcher",
        "quick",
        "output",
        "append",
        "resume",
        "force",
        "as_json",
        "no_plot",
        "expect",
        "_registered",
        "_graph",
    ):
        given.pop(name, None)
    if quick:
        given = {"runs": 1, "total_budget": 10.0, "precision": 0.05} | given
    limits = tuple(map(parse_expectation, expect or ()))
    where = Output(output, append, resume, force=force, as_json=as_json, plot=not no_plot, limits=limits)
    return measure(given, where, launcher)
