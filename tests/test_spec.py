"""Points, sweeps and jobs: what a command line means, what is refused, and what travels to the ranks."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.errors import UsageError
from commbench.job import Job, sweep_from_json
from commbench.ops import DTYPES, OPERATIONS, REDUCTIONS
from commbench.spec import HOST, Capabilities, Point, Sweep

EVERYTHING = Capabilities(
    forms=dict.fromkeys(OPERATIONS, (False, True)),
    moves=frozenset(DTYPES),
    reduces=dict.fromkeys(REDUCTIONS, frozenset(DTYPES)),
)


def sweep_of(**changes: Any) -> Sweep:
    return Sweep(**{"ops": ("allreduce",), "backend": "mpi"} | changes)


def sizes_of(points: list[Point]) -> list[int]:
    return [point.bytes for point in points]


# -- points ------------------------------------------------------------------------------------------------------


def test_a_point_and_its_key_are_the_same_thing(point: Any) -> None:
    for one in (point(), point(op="p2p", redop=None, variant="pair=0,3;bidirectional")):
        assert Point.from_key(one.key()) == one


def test_a_key_has_a_variant_only_where_there_is_one(point: Any) -> None:
    assert list(point().key()) == [
        "op", "in_place", "dtype", "redop", "root", "bytes", "ranks", "backend", "device", "path", "mode", "cache",
    ]  # fmt: skip
    assert point(variant="imbalance=2").key()["variant"] == "imbalance=2"


def test_points_that_differ_in_bytes_alone_are_on_one_curve(point: Any) -> None:
    assert point(8).curve == point(1 << 20).curve
    assert point(8).curve != point(8, mode="pipe").curve


def test_a_block_is_a_ranks_share_or_the_message(point: Any) -> None:
    assert point(4096, op="allgather").block == 256  # of 4 ranks and 4 bytes
    assert point(4096, op="allreduce", dtype="float64").block == 512
    assert point(op="allreduce").bus_factor == 1.5


def test_options_of_a_variant_are_found_by_name(point: Any) -> None:
    one = point(op="p2p", variant="pair=0,3;bidirectional")

    assert one.option("pair") == "0,3"
    assert one.option("bidirectional") == ""
    assert one.option("imbalance") is None
    assert point().option("pair") is None


# -- sizes -------------------------------------------------------------------------------------------------------


def test_the_usual_sizes_are_8_bytes_to_64m_in_powers_of_two() -> None:
    assert list(sweep_of().sizes()) == [1 << k for k in range(3, 27)]


def test_a_step_adds_and_a_factor_multiplies() -> None:
    assert list(sweep_of(min_bytes=100, max_bytes=400, step_bytes=100).sizes()) == [100, 200, 300, 400]
    assert list(sweep_of(min_bytes=10, max_bytes=1000, factor=10).sizes()) == [10, 100, 1000]
    assert list(sweep_of(min_bytes=8, max_bytes=8).sizes()) == [8]


def test_a_factor_that_is_no_whole_number_keeps_its_fractions() -> None:
    """8, 12, 18, 27, 40.5, 60.75: each is rounded down, none is built on the rounded one before."""
    assert list(sweep_of(min_bytes=8, max_bytes=64, factor=1.5).sizes()) == [8, 12, 18, 27, 40, 60]


@given(
    first=st.integers(1, 1 << 16),
    last=st.integers(1, 1 << 30),
    factor=st.floats(1.01, 100),
    step=st.none() | st.integers(1 << 19, 1 << 30),
)
def test_sizes_ascend_within_the_limits_or_the_sweep_is_refused(
    first: int, last: int, factor: float, step: int | None
) -> None:
    try:
        sizes = list(sweep_of(min_bytes=first, max_bytes=last, factor=factor, step_bytes=step).sizes())
    except UsageError:
        assert first > last
        return
    assert sizes[0] == first
    assert sizes == sorted(sizes)
    assert sizes[-1] <= last


def test_a_size_is_rounded_down_to_what_the_operation_can_split() -> None:
    """Three ranks of float32 take multiples of 12."""
    points, notes = sweep_of(ops=("allgather",), min_bytes=100, max_bytes=400, step_bytes=100).points(3, EVERYTHING)

    assert sizes_of(points) == [96, 192, 300, 396]
    assert notes == []


def test_what_would_become_nothing_is_raised_to_one_element_a_rank_once() -> None:
    """Four ranks of float32: 1, 2, 4, 8 and 16 bytes all become 16."""
    points, notes = sweep_of(ops=("alltoall",), min_bytes=1, max_bytes=64).points(4, EVERYTHING)

    assert sizes_of(points) == [16, 32, 64]
    assert notes == [
        "alltoall: the smallest size was raised to 16 bytes, one float32 a rank",
        "alltoall: 4 sizes were left out, they repeat others once rounded to whole elements",
    ]


@given(
    name=st.sampled_from(list(OPERATIONS)),
    dtype=st.sampled_from(list(DTYPES)),
    ranks=st.integers(2, 300),
    factor=st.floats(1.1, 8),
)
def test_every_point_is_a_whole_number_of_blocks_and_none_repeats(
    name: str, dtype: str, ranks: int, factor: float
) -> None:
    points, _ = sweep_of(ops=(name,), dtype=dtype, min_bytes=1, factor=factor, imbalance=1).points(ranks, EVERYTHING)

    assert all(point.block > 0 for point in points)
    assert sizes_of(points) == [OPERATIONS[name].bytes_of(p.block, p.itemsize, ranks) for p in points]
    assert sizes_of(points) == sorted(set(sizes_of(points)))


# -- points of a sweep -------------------------------------------------------------------------------------------


def test_points_come_by_operation_form_mode_and_size() -> None:
    sweep = sweep_of(ops=("broadcast", "allreduce"), min_bytes=8, max_bytes=16, modes=("sync", "pipe"), in_place="both")
    points, _ = sweep.points(4, EVERYTHING)

    assert [(p.op, p.in_place, p.mode, p.bytes) for p in points] == [
        (op, form, mode, size)
        for op in ("broadcast", "allreduce")
        for form in (False, True)
        for mode in ("sync", "pipe")
        for size in (8, 16)
    ]


def test_only_operations_that_reduce_have_a_reduction_and_rooted_ones_a_root() -> None:
    points, _ = sweep_of(ops=tuple(OPERATIONS), max_bytes=8, redop="max", root=2).points(4, EVERYTHING)
    found = {point.op: (point.redop, point.root) for point in points}

    assert found == {
        "allreduce": ("max", None),
        "allgather": (None, None),
        "reduce_scatter": ("max", None),
        "alltoall": (None, None),
        "alltoallv": (None, None),
        "broadcast": (None, 2),
        "reduce": ("max", 2),
        "gather": (None, 2),
        "scatter": (None, 2),
        "sendrecv": (None, None),
        "p2p": (None, None),
    }


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({"ops": ("p2p",)}, "pair=0,3"),
        ({"ops": ("p2p",), "pair": (2, 1), "bidirectional": True}, "pair=2,1;bidirectional"),
        ({"ops": ("alltoallv",), "imbalance": 2.0}, "imbalance=2"),
        ({"ops": ("allreduce",), "pair": (0, 1), "bidirectional": True}, ""),
        ({"device": "cuda", "staged": True}, "staged"),
        ({"ops": ("p2p",), "device": "cuda", "staged": True, "bidirectional": True}, "pair=0,3;bidirectional;staged"),
    ],
)
def test_the_variant_holds_what_only_some_points_have(changes: dict[str, Any], variant: str) -> None:
    points, _ = sweep_of(max_bytes=8, **changes).points(4, replace(EVERYTHING, devices=("cpu", "cuda")))

    assert {point.variant for point in points} == {variant}


@pytest.mark.parametrize(
    ("asked", "forms", "expected"),
    [
        ("native", (True,), [True]),
        ("native", (False, True), [False]),
        ("both", (False, True), [False, True]),
        ("both", (True,), [True]),
        ("yes", (False, True), [True]),
        ("no", (False, True), [False]),
    ],
)
def test_in_place_is_a_question_to_the_back_end(asked: str, forms: tuple[bool, ...], expected: list[bool]) -> None:
    able = replace(EVERYTHING, forms={"allreduce": forms})
    points, _ = sweep_of(max_bytes=8, in_place=asked).points(2, able)

    assert [point.in_place for point in points] == expected


@pytest.mark.parametrize(("asked", "forms", "only"), [("no", (True,), "in place"), ("yes", (False,), "out of place")])
def test_a_form_that_the_back_end_lacks_is_refused(asked: str, forms: tuple[bool, ...], only: str) -> None:
    able = replace(EVERYTHING, forms={"allreduce": forms})

    with pytest.raises(UsageError, match=f"mpi has allreduce {only} only"):
        sweep_of(in_place=asked).points(2, able)


# -- refused at birth --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ops": ()}, "--op names no operation"),
        ({"min_bytes": 0}, "--min-bytes: 0 is below one byte"),
        ({"min_bytes": 16, "max_bytes": 8}, "--min-bytes 16 is larger than --max-bytes 8"),
        ({"factor": 1.0}, "--factor 1 would never reach --max-bytes"),
        ({"factor": float("nan")}, "--factor nan would never reach --max-bytes"),
        ({"factor": float("inf")}, "--factor inf would never reach --max-bytes"),
        ({"step_bytes": 0}, "--step-bytes 0 would never reach --max-bytes"),
        ({"step_bytes": 1}, "the sweep has more than 4096 sizes"),
        ({"factor": 1.0000001}, "the sweep has more than 4096 sizes"),
        ({"redop": "xor"}, "--redop: unknown 'xor'"),
        ({"dtype": "float8"}, "--dtype: unknown 'float8'"),
        ({"modes": ()}, "--mode: '' is not known"),
        ({"modes": ("sync", "warp")}, "--mode: 'sync,warp' is not known"),
        ({"cache": "cold"}, "--cache: unknown 'cold'"),
        ({"in_place": "maybe"}, "--in-place: unknown 'maybe'"),
        ({"thread_level": "many"}, "--mpi-thread-level: unknown 'many'"),
        ({"loop": "fast"}, "--loop: unknown 'fast'"),
        ({"on_hang": "pray"}, "--on-hang: unknown 'pray'"),
        ({"ranks": 0}, "--ranks 0: at least 1"),
        ({"runs": 0}, "--runs 0: at least 1"),
        ({"root": -1}, "--root -1: not below 0"),
        ({"seed": -1}, "--seed -1: not below 0"),
        ({"iters": 0}, "--iters 0: at least 1"),
        ({"warmup_iters": -1}, "--warmup-iters -1: not below 0"),
        ({"imbalance": 0.5}, "--imbalance 0.5: the hottest rank gets at least its share"),
        ({"imbalance": float("nan")}, "--imbalance nan: the hottest rank gets at least its share"),
        ({"imbalance": float("inf")}, "--imbalance inf: the hottest rank gets at least its share"),
        ({"precision": 0.0}, "--precision 0: between 0% and 100%"),
        ({"precision": 1.0}, "--precision 1: between 0% and 100%"),
        ({"budget": 0.0}, "--budget 0 s: more than 0"),
        ({"total_budget": 0.0}, "--total-budget 0 s: more than 0"),
        ({"timeout": 0.0}, "--timeout 0 s: more than 0"),
        ({"init_timeout": 0.0}, "--init-timeout 0 s: more than 0"),
    ],
)
def test_nonsense_is_refused_at_birth_by_the_name_of_its_flag(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}") as caught:
        sweep_of(**changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "ranks", "message"),
    [
        ({"ops": ("broadcast",), "root": 4}, 4, "--root 4: there are only 4 ranks"),
        ({"ops": ("alltoallv",), "imbalance": 4.5}, 4, "--imbalance 4.5: with 4 ranks one can get at most 4 times"),
        ({"ops": ("p2p",), "pair": (0, 4)}, 4, "--pair: there are only 4 ranks"),
        ({"ops": ("p2p",), "pair": (1, 1)}, 4, "--pair 1,1: two different ranks"),
        ({"ops": ("p2p",), "pair": (HOST, 1)}, 4, "--pair host,1: two different ranks"),
        ({"ops": ("p2p",)}, 1, "--op p2p needs two ranks"),
        ({"ops": ("sendrecv",)}, 1, "--op sendrecv needs two ranks"),
        ({"modes": ("pipe",)}, 2, "--mode: mpi can do sync"),
        ({"staged": True}, 2, "--staged copies GPU memory through the host around MPI"),
        ({"staged": True, "device": "cuda", "backend": "nccl"}, 2, "--staged copies GPU memory through the host"),
        ({"staged": True, "device": "cuda", "ops": ("p2p",), "modes": ("sync", "pipe")}, 2, "--staged: a p2p message"),
        ({"cache": "rotated"}, 2, "--cache: mpi can do hot"),
        ({"redop": "avg"}, 2, "mpi has no allreduce with avg of float32"),
        ({"dtype": "bfloat16"}, 2, "mpi has no allreduce with sum of bfloat16"),
        ({"ops": ("allgather",), "dtype": "int8"}, 2, "mpi has no allgather of int8"),
        ({"paths": ("peer",)}, 2, "--path peer: mpi takes the interconnect that it chooses itself"),
    ],
)
def test_what_this_back_end_or_rank_count_cannot_do_is_refused(
    changes: dict[str, Any], ranks: int, message: str
) -> None:
    able = replace(
        EVERYTHING,
        moves=frozenset({"float32", "bfloat16"}),
        reduces={"sum": frozenset({"float32", "float64"})},
        modes=("sync",),
        caches=("hot",),
        devices=("cpu", "cuda"),
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}") as caught:
        sweep_of(**changes).points(ranks, able)
    assert caught.value.hint


def test_what_an_operation_does_not_use_is_not_held_against_it() -> None:
    sweep = sweep_of(max_bytes=8, root=7, imbalance=9.0, pair=(8, 9))

    assert len(sweep.points(2, EVERYTHING)[0]) == 1


# -- endpoints ---------------------------------------------------------------------------------------------------

COPIES = Capabilities(
    forms={"p2p": (False,)}, moves=frozenset({"float32"}), reduces={}, devices=("cuda",), modes=("pipe", "sync"),
    paths=("peer", "read", "pinned"),
)  # fmt: skip


def copies(**changes: Any) -> Sweep:
    return Sweep(**{"ops": ("p2p",), "backend": "copies", "modes": ("pipe",), "max_bytes": 16} | changes)


def test_every_route_is_a_curve_between_two_endpoints_whatever_the_number_of_processes() -> None:
    sweep = copies(routes=("peer:0,1", "pinned:host,0"))
    points, _ = sweep.points(1, COPIES)

    assert [(point.path, point.variant, point.bytes, point.ranks) for point in points] == [
        ("peer", "pair=0,1", 8, 2), ("peer", "pair=0,1", 16, 2),
        ("pinned", "pair=host,0", 8, 2), ("pinned", "pair=host,0", 16, 2),
    ]  # fmt: skip
    both, _ = replace(sweep, bidirectional=True).points(1, COPIES)
    assert {point.variant for point in both} == {"pair=0,1;bidirectional", "pair=host,0;bidirectional"}


def test_the_latency_of_a_load_is_one_point_of_an_address() -> None:
    sweep = copies(routes=("read:0,1",), modes=("pipe", "sync"), cache="rotated", min_bytes=64, max_bytes=256)

    [point] = sweep.points(1, COPIES)[0]
    assert (point.bytes, point.mode, point.cache) == (8, "sync", "hot")


def test_what_a_back_end_between_endpoints_does_not_have_is_refused() -> None:
    for changes, message in (
        ({"ops": ("allreduce",)}, "copies has no allreduce"),
        ({"paths": ("peer", "warp")}, "--path: unknown 'warp'"),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(message)}") as caught:
            copies(**changes).points(1, COPIES)
        assert caught.value.hint
    assert len(copies(pair=(0, 0)).points(1, COPIES)[0]) == 2  # a GPU and itself are a pair there


# -- travelling --------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=20)


@given(
    sweep=st.builds(
        Sweep,
        ops=st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, unique=True).map(tuple),
        backend=WORDS,
        ranks=st.none() | st.integers(1, 1000),
        pair=st.none() | st.just((0, 3)),
        paths=st.sampled_from([(), ("peer", "staged")]),
        routes=st.sampled_from([(), ("peer:0,1",)]),
        modes=st.sampled_from([("sync",), ("pipe", "sync")]),
        budget=st.floats(1e-3, 1e6),
        seed=st.integers(0, 1 << 40),
        emulate=WORDS,
    ),
    environment=st.dictionaries(WORDS, WORDS, max_size=3),
    command=st.lists(WORDS, max_size=3).map(tuple),
    with_points=st.sampled_from([None, 0, 2]),
)
def test_a_job_arrives_as_it_was_sent_in_a_word_that_no_shell_touches(
    sweep: Sweep, environment: dict[str, str], command: tuple[str, ...], with_points: int | None
) -> None:
    points = sweep_of(max_bytes=16).points(4, EVERYTHING)[0]
    job = Job(
        sweep=sweep, run=2, seconds=1.5, session="s", launch="l", launches=3, environment=environment, command=command,
        only=None if with_points is None else tuple(points[:with_points]), expect={"cpu_model": "Xeon", "gpus": []},
    )  # fmt: skip
    word = job.encode()

    assert Job.decode(word) == job
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", word)


def test_a_sweep_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    sweep = sweep_of(pair=(0, 1))

    assert sweep_from_json(asdict(sweep) | {"telepathy": True}) == sweep
