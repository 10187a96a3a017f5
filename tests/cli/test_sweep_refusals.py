"""What `commbench sweep` refuses: one line, one hint, the right exit code, nothing written, and no rank started."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commbench.cli import run
from commbench.jobs import launch, plan
from commbench.jobs.probe import Absent, Torch

EMULATED = ("--backend", "emulated", "--ranks", "2")
GLOO = ("--backend", "gloo", "--ranks", "2")
OP = ("--op", "allreduce")
NAMES = (
    "one of: allreduce, allgather, reduce_scatter, alltoall, alltoallv, broadcast, reduce, gather, scatter, sendrecv"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to stand in, which must stay empty, and no launch."""

    def start(*_: Any) -> None:
        pytest.fail("ranks were started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.subprocess, "Popen", start)
    monkeypatch.setattr(plan, "visible_gpus", list)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    yield tmp_path
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == before


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """(exit code, what is wrong, the hint) of a sweep."""
    code = run(["sweep", *options])
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("emulated on host", "gloo on host"))]
    assert [line.partition(": ")[0] for line in lines] == ["error", "hint"], err
    return code, lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


USAGE = [
    # what to measure
    ((), "--op is missing", "commbench sweep --op allreduce, or --op all"),
    (("--op", ""), "--op: unknown operation ''", NAMES),
    (("--op", "alreduce"), "--op: unknown operation 'alreduce'", "did you mean 'allreduce'?"),
    (("--op", "allreduce,All-To-Al"), "--op: unknown operation 'All-To-Al'", "did you mean 'alltoall'?"),
    (("--op", "zzz"), "--op: unknown operation 'zzz'", NAMES),
    (("--op", "sum"), "--op is the collective, 'sum' is a reduction", "use --redop sum"),
    (("--op", "MAX"), "--op is the collective, 'max' is a reduction", "use --redop max"),
    ((*OP, "--redop", "mean"), "--redop: unknown reduction 'mean'", "one of: sum, prod, min, max, avg"),
    ((*OP, "-d", "float80"), "--dtype: unknown type 'float80'", "one of: float32, float64, float16, bfloat16, int8"),
    (
        (*OP, "--backend", "magic"),
        "--backend: unknown back end 'magic'",
        "one of: auto, nccl, torch-nccl, mpi, gloo, copies, emulated",
    ),
    ((*OP, *EMULATED, "--in-place", "maybe"), "--in-place: unknown 'maybe'", "no, yes or both"),
    ((*OP, *GLOO, "--in-place", "no"), "--in-place no: gloo has allreduce in place only", "leave --in-place out"),
    ((*OP, *GLOO, "-o", "avg", "-d", "int32"), "gloo has no allreduce with avg of int32", "it has float32, float64"),
    (("--op", "reduce", *EMULATED, "-r", "2"), "--root 2: there are only 2 ranks", "use a root below 2"),
    (("--op", "reduce", *EMULATED, "-r", "-1"), "--root -1: not below 0", "use -r 0"),
    (("--op", "p2p", *EMULATED, "--pair", "0,2"), "--pair: there are only 2 ranks", "use ranks below 2"),
    (("--op", "p2p", *EMULATED, "--pair", "1,1"), "--pair 1,1: two different ranks", "use --pair 0,1"),
    (("--op", "p2p", *EMULATED, "--pair", "0"), "--pair: '0' is not two ranks", "use --pair 0,1"),
    (("--op", "p2p", *EMULATED, "--path", "peer"), "--path peer: emulated takes the interconnect", "leave --path out"),
    (("--op", "p2p", "--backend", "emulated", "--ranks", "1"), "--op p2p needs two ranks", "use --ranks 2"),
    (("--op", "alltoallv", *EMULATED, "--imbalance", "0.5"), "--imbalance 0.5: the hottest rank", "use 1 or more"),
    (("--op", "alltoallv", *EMULATED, "--imbalance", "3"), "--imbalance 3: with 2 ranks", "use --imbalance 2 or less"),
    ((*OP, *GLOO, "--emulate", "alpha=1us"), "--emulate describes the emulated", "add --backend emulated"),
    ((*OP, *EMULATED, "--emulate", "alpha=much"), "--emulate alpha: 'much' is not a duration", "write it as 5us"),
    ((*OP, *EMULATED, "--emulate", "hang=1"), "--emulate: 'hang=1' is not understood", "words: alpha=5us"),
    ((*OP, *EMULATED, "--emulate", "speed=9"), "--emulate: unknown word 'speed'", "words: alpha=5us"),
    ((*OP, *EMULATED, "--emulate", "alpha=1e99s"), "--emulate: a call of more than 1e+18 s", "words: alpha=5us"),
    # sizes
    ((*OP, "-b", "1M", "-e", "1K"), "--min-bytes 1048576 is larger than --max-bytes 1024", "swap -b and -e"),
    ((*OP, "-b", "0"), "--min-bytes: 0 is below one byte", "use -b 8"),
    ((*OP, "-b", "x"), "--min-bytes: 'x' is not a size", "write bytes, or a number with K, M or G: 8, 64K, 1G"),
    ((*OP, "-e", "1.3"), "--max-bytes: '1.3' is not a whole number of bytes", "write it in bytes"),
    ((*OP, "-f", "1"), "--factor 1 would never reach --max-bytes", "use -f 2, or -i for a fixed step"),
    ((*OP, "-f", "nan"), "--factor nan would never reach --max-bytes", "use -f 2, or -i for a fixed step"),
    ((*OP, "-f", "1.0001"), "the sweep has more than 4096 sizes", "raise -f or -i"),
    ((*OP, "-i", "0"), "--step-bytes 0 would never reach --max-bytes", "use -i 1M, or -f 2 for a factor"),
    # how
    ((*OP, "--mode", "fast"), "--mode: 'fast' is not known", "one of: sync, pipe, graph, or several: sync,pipe"),
    ((*OP, "--cache", "cold"), "--cache: unknown 'cold'", "one of: hot, rotated"),
    ((*OP, "--loop", "c"), "--loop: unknown 'c'", "one of: auto, compiled, python"),
    ((*OP, "--precision", "0"), "--precision 0: between 0% and 100%", "use --precision 2%"),
    ((*OP, "--precision", "200%"), "--precision: '200%' must be at least 0%", "write it as 2% or 0.02"),
    ((*OP, "--budget", "0"), "--budget 0 s: more than 0", "use --budget 5s"),
    ((*OP, "--total-budget", "0s"), "--total-budget 0 s: more than 0", "use --total-budget 60s"),
    ((*OP, "--total-budget", "soon"), "--total-budget: 'soon' is not a duration", "write it as 5us, 20ms, 60s"),
    ((*OP, "-n", "0"), "--iters 0: at least 1", "leave -n out to stop by precision"),
    ((*OP, "-n", "many"), "valid integer", "commbench sweep --help"),
    ((*OP, "-w", "-1"), "--warmup-iters -1: not below 0", "use -w 10"),
    ((*OP, "--seed", "-1"), "--seed -1: not below 0", "use --seed 1"),
    ((*OP, "--timeout", "0"), "--timeout 0 s: more than 0", "use --timeout 60s"),
    ((*OP, "--init-timeout", "0"), "--init-timeout 0 s: more than 0", "use --init-timeout 10m"),
    ((*OP, "--on-hang", "cry"), "--on-hang: unknown 'cry'", "stop or skip"),
    ((*OP, "--mpi-thread-level", "most"), "--mpi-thread-level: unknown 'most'", "one of: single, funneled"),
    # ranks
    ((*OP, "--ranks", "0"), "--ranks 0: at least 1", "use --ranks 2"),
    ((*OP, "--runs", "0"), "--runs 0: at least 1", "use --runs 3"),
    ((*OP, "--launcher", ""), "--launcher: no command", "use --launcher 'mpirun -n 4', or leave it out"),
    ((*OP, "--launcher", "mpirun -H 'a"), "is not a command: No closing quotation", "quote it once"),
    # output
    ((*OP, "--output", "a", "--append", "b"), "--output and --append name two files", "give one of them"),
    ((*OP, "--output", "a", "--resume", "b"), "--output and --resume name two files", "give one of them"),
    # letters of nccl-tests, and what does not exist
    ((*OP, "-R"), "-R: registered buffers are not built yet", "leave -R out"),
    ((*OP, "-G"), "-G: CUDA graphs are a mode here", "use --mode graph"),
    ((*OP, "--no-such-flag"), "No such option", "commbench sweep --help"),
    ((*OP, "--confidence", "99%"), "No such option", "commbench sweep --help"),
    ((*OP, "file.jsonl"), "Got unexpected extra argument", "commbench sweep --help"),
]


@pytest.mark.parametrize(("options", "message", "hint"), USAGE, ids=[" ".join(row[0]) or "nothing" for row in USAGE])
def test_nonsense_is_refused_with_2(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str, hint: str
) -> None:
    code, said, advice = refusal(capsys, *options)
    assert code == 2
    assert message in said
    assert advice.startswith(hint)


def test_sizes_beyond_memory_are_refused_before_anything_is_allocated_with_the_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All-gather out of place: each of two ranks sends its half of 1 TiB and receives the whole."""
    monkeypatch.setattr(plan, "_mpi_for", lambda *_: None)
    monkeypatch.setattr(plan, "available_memory_bytes", lambda: 3 << 30)
    code, said, advice = refusal(capsys, "--op", "allgather", "-e", "1T", *GLOO)
    assert code == 2
    assert said == "--max-bytes 1T: 2 ranks need 3072.0 GiB of buffers, 3.0 GiB are available"
    assert advice == "use a smaller -e, or fewer --ranks"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("there.jsonl", "exists already"),
        ("there.jsonl/x.jsonl", "cannot be written: "),
        ("/proc/x.jsonl", "cannot be written: "),
    ],
)
def test_an_output_that_cannot_be_is_found_before_measuring(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str, problem: str
) -> None:
    Path("there.jsonl").write_text("precious\n")
    code = run(["sweep", *OP, *EMULATED, "--output", name])
    said, advice = capsys.readouterr().err.splitlines()
    assert code == 1
    assert said.startswith(f"error: {name}: {problem}")
    assert "--output" in advice or "--force" in advice
    assert Path("there.jsonl").read_text() == "precious\n"
    Path("there.jsonl").unlink()


@pytest.mark.parametrize("flag", ["--append", "--resume"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x89PNG\r\n\xff\xfe", "not text, so not a results file"),
        (b"hello\n", "not a results file"),
        (b'{"kind":"run","schema":99,"run":1}\n', "written in schema 99"),
        (b'{"kind":"record","run":1}\n', "a record line is not what schema 1 says"),
        (b'{"kind":"end"}\nnonsense\n{"kind":"end"}\n', "line 2 is damaged"),
    ],
)
def test_a_file_that_is_not_ours_is_neither_continued_nor_touched(
    capsys: pytest.CaptureFixture[str], flag: str, content: bytes, problem: str
) -> None:
    file = Path("strange.jsonl")
    file.write_bytes(content)
    code = run(["sweep", *OP, *EMULATED, flag, str(file)])
    said, _hint = capsys.readouterr().err.splitlines()
    assert code == 1
    assert problem in said
    assert file.read_bytes() == content
    file.unlink()


def test_an_empty_file_and_none_at_all_cannot_be_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "--resume", "none.jsonl"]) == 1
    assert capsys.readouterr().err.startswith("error: none.jsonl: No such file or directory")
    Path("empty.jsonl").touch()
    assert run(["sweep", "--resume", "empty.jsonl"]) == 1
    assert capsys.readouterr().err.startswith("error: empty.jsonl: the file is empty")
    Path("empty.jsonl").unlink()


# -- what is not installed -----------------------------------------------------------------------------------------

MPICH_LINE = "pip install 'commbench[mpich]'"
TORCH_LINE = "pip install 'commbench[torch]'"


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more))


@pytest.mark.usefixtures("without_torch")
def test_gloo_without_torch_names_the_line_that_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, *OP, *GLOO) == (1, "--backend gloo: torch is not installed", TORCH_LINE)


def test_mpi_without_mpi4py_names_the_line_that_brings_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "probe_mpi", lambda **_: Absent("mpi4py is not installed", MPICH_LINE, installed=False))
    assert refusal(capsys, *OP, "--backend", "mpi") == (1, "--backend mpi: mpi4py is not installed", MPICH_LINE)


@pytest.mark.usefixtures("without_torch")
def test_auto_without_anything_names_both_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "probe_mpi", lambda **_: Absent("mpi4py is not installed", MPICH_LINE, installed=False))
    code, said, advice = refusal(capsys, *OP)
    assert code == 1
    assert said == "no back end works here: mpi4py is not installed; torch is not installed"
    assert MPICH_LINE in advice
    assert TORCH_LINE in advice


def test_a_gpu_is_not_measured_as_if_it_were_the_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "visible_gpus", lambda: ["NVIDIA H200"] * 2)
    monkeypatch.setattr(plan, "probe_torch", lambda: Torch("2.13.0", gloo=True, cuda=None))
    code, said, advice = refusal(capsys, *OP)
    assert code == 1
    assert said.startswith("2 GPUs here, but neither CuPy nor a torch for CUDA")
    assert "--device cpu measures the host" in advice
