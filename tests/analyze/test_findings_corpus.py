"""Every curve of real outputs of OSU, IMB, gloo and nccl-tests, read by eye and by rule.

The corpus lies beside the checkout and is no part of it. `ODD` is the reading by eye: what an expert would point
at. `UNSEEN` are those of them that the rule is not certain enough of. Whatever the rule says beyond `ODD` is a
false cry, and there must be none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commbench.analyze.datasets import Dataset
from commbench.analyze.diagnose import diagnose, findings_of_shape
from commbench.analyze.lines import samples_of
from commbench.analyze.setting import Setting
from commbench.analyze.shape import MIN_SIZES
from commbench.analyze.summary import Curve
from commbench.records import Seconds

CHECKOUT = Path(__file__).resolve().parents[2]
CORPUS = next(
    (path for path in (CHECKOUT.parent / "shared/corpus", Path("/work/shared/corpus")) if path.is_dir()), Path("none")
)

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of other tools' outputs is not here")

Times = list[tuple[int, float]]
K, M = 1 << 10, 1 << 20
SINKS = "sinks"  # "cliff" or "sinking_plateau", from about this size on
SLOW = "slow"  # "dip" or "time_falls", with this size among the slow ones

# (file, column): what is odd. Columns: mean and p50 of OSU, mean of IMB, p50 of gloo, nccl-tests out of and in place.
ODD: dict[tuple[str, str], list[tuple[str, int]]] = {
    # The MPICH fault: 221 us at 256 KiB in all, between 24 us at 128 KiB and 49 us at 512 KiB.
    ("osu/reduce_scatter.n2.r1", "mean"): [(SLOW, 256 * K), (SINKS, 8 * M)],
    ("osu/reduce_scatter.n2.r1", "p50"): [(SLOW, 256 * K), (SINKS, 8 * M)],
    ("osu/reduce_scatter.n2.r2", "mean"): [(SLOW, 256 * K), (SINKS, 8 * M)],
    ("osu/reduce_scatter.n2.r2", "p50"): [(SLOW, 256 * K), (SINKS, 8 * M)],
    ("imb/Reduce_scatter.n2.r1", "mean"): [(SLOW, 128 * K), (SINKS, 8 * M)],  # IMB's bytes are a rank's part
    ("imb/Reduce_scatter.n2.r2", "mean"): [(SLOW, 128 * K), (SINKS, 8 * M)],
    # Time falls by a fifth from 32 to 64 KiB, and buffers outgrow the cache.
    ("osu/alltoall.n2.r1", "mean"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    ("osu/alltoall.n2.r1", "p50"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    ("osu/alltoall.n2.r2", "mean"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    ("osu/alltoall.n2.r2", "p50"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    ("imb/Alltoall.n2.r1", "mean"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    ("imb/Alltoall.n2.r2", "mean"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    # Buffers outgrow the cache: a half of the bandwidth or more is gone at 16 MiB.
    **{(f"osu/allgather.n2.{run}", column): [(SINKS, 8 * M)] for run in ("r1", "r2") for column in ("mean", "p50")},
    **{(f"osu/allreduce.n2.{run}", column): [(SINKS, 8 * M)] for run in ("r1", "r2") for column in ("mean", "p50")},
    **{(f"imb/{op}.n2.{run}", "mean"): [(SINKS, 8 * M)] for op in ("Allgather", "PingPong") for run in ("r1", "r2")},
    ("imb/Allreduce.n2.r1", "mean"): [(SINKS, 8 * M)],
    ("imb/Allreduce.n2.r2", "mean"): [(SLOW, 32 * K), (SINKS, 8 * M)],
    ("osu/latency.n2.r1", "mean"): [(SLOW, 16), (SINKS, 8 * M)],  # the first three sizes, not so in the second run
    ("osu/latency.n2.r1", "p50"): [(SLOW, 16), (SINKS, 8 * M)],
    ("osu/latency.n2.r2", "mean"): [(SINKS, 8 * M)],
    ("osu/latency.n2.r2", "p50"): [(SINKS, 8 * M)],
    ("gloo/allgather.n2", "p50"): [(SINKS, 8_000_000)],
    ("gloo/allgather_ring.n2", "p50"): [(SINKS, 8_000_000)],
    ("gloo/allreduce_halving_doubling.n2", "p50"): [(SINKS, 8_000_000)],
    ("gloo/allreduce_ring_chunked.n2", "p50"): [(SINKS, 8_000_000)],
    ("gloo/reduce_scatter.n2", "p50"): [(SINKS, 8_000_000)],
    # One size that was hit in one of the two columns.
    ("nccl_tests/01-allreduce-a100-8gpu-old-error-col", "in"): [(SLOW, 128)],
    ("nccl_tests/10-allreduce-h100-2node-info-interleaved-split-row", "out"): [(SLOW, 16 * K)],
    ("nccl_tests/14-allgather-a100-2node-slingshot-fast", "out"): [(SLOW, 32 * K), (SLOW, 128 * K)],
    ("nccl_tests/28-broadcast-2080ti-2gpu-pcie", "in"): [(SLOW, 1 * M)],
    ("nccl_tests/39-allreduce-h100-8gpu-extra-header-fields", "out"): [(SLOW, 32), (SLOW, 4 * K)],
    ("nccl_tests/43-allreduce-gh200-8rank-libfabric", "in"): [(SLOW, 512 * K)],
    ("nccl_tests/55-rtx4090-2gpu-shm-all_reduce-busy-gpus", "in"): [(SLOW, 64)],
    ("nccl_tests/11-allreduce-h100-16rank-efa-mpirun-tag-midline", "out"): [(SLOW, 8)],  # the first size: warm-up
    # Algorithms that were badly chosen: 100 us up to 1 KiB, then 57; 921 us at 1 MiB, 129 at 2 MiB.
    ("nccl_tests/15-alltoall-a100-2node-slingshot", "out"): [(SLOW, 1 * K)],
    ("nccl_tests/15-alltoall-a100-2node-slingshot", "in"): [(SLOW, 1 * K)],
    ("nccl_tests/21-allreduce-gh200-8rank-srun-l-prefix", "out"): [(SLOW, 1 * M)],
    ("nccl_tests/21-allreduce-gh200-8rank-srun-l-prefix", "in"): [(SLOW, 1 * M)],
    ("nccl_tests/57-a100-4node-ibext-allreduce-nonmonotonic", "out"): [(SLOW, 16), (SLOW, 4 * K), (SLOW, 1 * M)],
    ("nccl_tests/57-a100-4node-ibext-allreduce-nonmonotonic", "in"): [(SLOW, 256), (SLOW, 64 * K), (SLOW, 1 * M)],
}

# A fifth in mean values that scatter, one bad moment, a curve whose neighbours are no better.
UNSEEN: dict[tuple[str, str], list[tuple[str, int]]] = {
    ("osu/alltoall.n2.r1", "mean"): [(SLOW, 32 * K)],
    ("osu/alltoall.n2.r2", "mean"): [(SLOW, 32 * K)],
    ("imb/Alltoall.n2.r1", "mean"): [(SLOW, 32 * K)],
    ("imb/Alltoall.n2.r2", "mean"): [(SLOW, 32 * K)],
    ("imb/Allreduce.n2.r2", "mean"): [(SLOW, 32 * K)],
    ("gloo/allreduce_halving_doubling.n2", "p50"): [(SINKS, 8_000_000)],
    ("gloo/allreduce_ring_chunked.n2", "p50"): [(SINKS, 8_000_000)],
    ("nccl_tests/14-allgather-a100-2node-slingshot-fast", "out"): [(SLOW, 32 * K)],
    ("nccl_tests/57-a100-4node-ibext-allreduce-nonmonotonic", "in"): [(SLOW, 256), (SLOW, 64 * K)],
}

KINDS = {SINKS: {"cliff", "sinking_plateau"}, SLOW: {"dip", "time_falls"}}


def osu(lines: list[str]) -> Iterator[tuple[str, int, float]]:
    names: list[str] = []
    for line in lines:
        if line.startswith("# Size"):
            names = re.split(r"\s{2,}", line[2:].strip())
        words = line.split()
        if names and len(words) == len(names) and words[0].isdigit():
            yield "mean", int(words[0]), float(words[1])
            if "P50 Tail Lat(us)" in names:
                yield "p50", int(words[0]), float(words[names.index("P50 Tail Lat(us)")])


def imb(lines: list[str]) -> Iterator[tuple[str, int, float]]:
    names: list[str] = []
    for line in lines:
        words = line.split()
        if "#bytes" in words:
            names = words
        elif names and len(words) == len(names) and words[0].isdigit() and words[0] != "0":
            name = "t_avg[usec]" if "t_avg[usec]" in names else "t[usec]"
            yield "mean", int(words[0]), float(words[names.index(name)])


def gloo(lines: list[str]) -> Iterator[tuple[str, int, float]]:
    for line in lines:
        if re.fullmatch(r"\s*[\d.]+(\s+[\d.]+){7}\s*", line):
            words = line.split()
            yield "p50", int(words[0]), float(words[3])


def nccl_tests(lines: list[str]) -> Iterator[tuple[str, int, float]]:
    table, last = 0, 0
    for line in lines:
        row = re.search(r"(?:^|\s)([1-9]\d*)\s+\d+\s+(?:float|int8|uint8|half|bfloat16|double)\s+(.*)$", line)
        cells = row[2].split() if row and not line.startswith("#") else []
        if row and len(cells) >= 8:
            table, last = table + (int(row[1]) < last), int(row[1])
            for column, cell in (("out", cells[-8]), ("in", cells[-4])):
                if re.fullmatch(r"[\d.]+", cell) and float(cell) > 0:
                    yield column + ("" if table == 0 else str(table)), int(row[1]), float(cell)


READERS: dict[str, Callable[[list[str]], Iterator[tuple[str, int, float]]]] = {
    "osu": osu, "imb": imb, "gloo": gloo, "nccl_tests": nccl_tests,
}  # fmt: skip


def curves_in(tool: str) -> dict[tuple[str, str], Times]:
    found: dict[tuple[str, str], Times] = {}
    for file in sorted((CORPUS / tool).glob("*.txt")):
        for column, size, microseconds in READERS[tool](file.read_text(errors="replace").splitlines()):
            found.setdefault((f"{tool}/{file.stem}", column), []).append((size, microseconds * 1e-6))
    return {name: times for name, times in found.items() if len(times) >= MIN_SIZES and "-1rank-" not in name[0]}


def built(times: Times, record: Any, **changes: Any) -> list[Any]:
    return [record(size, seconds=Seconds(median=time), **changes) for size, time in dict(times).items()]


def cried(curve: Curve) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.kind, finding.sizes) for finding in findings_of_shape(curve, samples_of(curve))]


def is_it(expected: tuple[str, int], cry: tuple[str, tuple[int, ...]]) -> bool:
    return cry[0] in KINDS[expected[0]] and expected[1] in cry[1]


@pytest.mark.parametrize("tool", READERS)
def test_what_an_expert_would_point_at_is_found_and_nothing_else(tool: str, curve_of: Any, record: Any) -> None:
    false_cries: list[Any] = []
    missed: list[Any] = []
    curves = curves_in(tool)
    for name, times in curves.items():
        by_eye, unseen, cries = ODD.get(name, []), UNSEEN.get(name, []), cried(curve_of(built(times, record, ranks=2)))
        missed += [(name, odd) for odd in by_eye if odd not in unseen and not any(is_it(odd, cry) for cry in cries)]
        false_cries += [(name, cry) for cry in cries if not any(is_it(odd, cry) for odd in by_eye)]
    assert curves
    assert (missed, false_cries) == ([], [])


def test_the_reading_covers_the_corpus() -> None:
    """Of 131 curves of six sizes and more, and two ranks, 49 have something odd: 70 things, 60 of them found."""
    curves = {name for tool in READERS for name in curves_in(tool)}

    assert set(ODD) <= curves
    assert all(set(unseen) <= set(ODD[name]) for name, unseen in UNSEEN.items())
    counts = len(curves), len(ODD), sum(map(len, ODD.values())), sum(map(len, UNSEEN.values()))
    assert counts == (131, 49, 70, 10)


@pytest.mark.parametrize("run", ["r1", "r2"])
def test_mpich_breaks_three_rules_across_operations(run: str, record: Any) -> None:
    """Medians in us: allgather 17 against alltoall 10 at 64 KiB; both others 1.4 against allreduce 0.3 at 8 B."""
    records: list[Any] = []
    for op in ("allgather", "allreduce", "alltoall", "reduce_scatter"):
        times = curves_in("osu")[f"osu/{op}.n2.{run}", "p50"]
        kind = {"dtype": "float32", "redop": "sum"} if "reduce" in op else {"dtype": "int8", "redop": None}
        records += built(times, record, op=op, ranks=2, **kind)

    found = diagnose(Dataset(Setting("MPICH 5.0.2"), (), tuple(records)))

    rules = {
        (finding.key.op, re.findall("as long as ([a-z]+)", finding.text)[0]): finding
        for finding in found
        if finding.kind == "guideline"
    }
    assert set(rules) == {("allgather", "alltoall"), ("allgather", "allreduce"), ("reduce_scatter", "allreduce")}
    assert rules["allgather", "alltoall"].sizes == (64 * K, 128 * K, 256 * K, 512 * K)
    assert {8, 1 * K, 4 * K} <= set(rules["allgather", "allreduce"].sizes)
    assert 256 * K not in rules["reduce_scatter", "allreduce"].sizes  # that one has been told as a dip
    assert found[0].kind == "dip"
