"""Verdicts on two files of records with a known truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from commbench.analyze.gate import compare, judge, undecided
from commbench.analyze.verdicts import CurveVerdict, GateReport, worst
from commbench.records import Record
from commbench.results import Results
from tests.conftest import POWERS, record_of

Slowdown = Callable[[int], float]


def nothing(_size: int) -> float:
    return 1.0


def by(percent: float, sizes: Iterable[int] = POWERS) -> Slowdown:
    """So much slower at some sizes."""
    chosen = set(sizes)
    return lambda size: 1 + percent / 100 if size in chosen else 1.0


@dataclass
class World:
    """Draws both sides: T = alpha + D/B, a factor common to a pair, one to a launch, one of each point."""

    session: float = 0.05
    run: float = 0.005
    within: float = 0.01
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def side(
        self,
        name: str,
        *,
        pairs: int = 5,
        slowdown: Slowdown = nothing,
        header: Mapping[str, Any] | None = None,
        sizes: Iterable[int] = POWERS,
        changed: Callable[[Record], Record | None] = lambda record: record,
        **point: Any,
    ) -> Results:
        """One side; `header` are facts of its launches, `changed` has the last word on each record."""
        records, runs, ends = [], [], []
        for number in range(1, pairs + 1):
            factor = math.exp(self.run * self.draw.gauss(0, 1) + self.session * number)
            launch = f"{name}{number}"
            for size in sizes:
                time = (5e-6 + size / 1e10) * factor * slowdown(size) * math.exp(self.within * self.draw.gauss(0, 1))
                record = changed(record_of(size, time, number, launch=launch, **point))
                records += [record] if record is not None else []
            usual: dict[str, Any] = {"session": "one", "pair": number, "nodes": [{"cpu_model": "EPYC"}]}
            given = {k: value(number) if callable(value) else value for k, value in (header or {}).items()}
            runs.append({"kind": "run", "schema": 1, "run": number, "launch": launch} | usual | given)
            ends.append({"kind": "end", "launch": launch, "status": "complete", "fault": ""})
        return Results(name, runs, records, ends, [])

    def sides(self, **candidate: Any) -> tuple[Results, Results]:
        """A baseline and a candidate with changes."""
        shared = {name: candidate[name] for name in ("pairs", "sizes") if name in candidate}
        return self.side("a", **shared), self.side("b", **candidate)


def the_curve(report: GateReport) -> CurveVerdict:
    [curve] = report.curves
    return curve


# -- the rule on records -------------------------------------------------------------------------------------------


def test_what_did_not_change_passes_and_says_what_would_have_been_seen() -> None:
    report = judge(*World().sides(pairs=8))
    curve = the_curve(report)

    assert (report.verdict, curve.verdict, curve.hits) == ("pass", "pass", ())
    assert (curve.pairs, curve.sizes, curve.replicates) == (8, len(POWERS), "pairs")
    assert curve.level.low is not None
    assert curve.level.high is not None
    assert curve.level.low < 1 < curve.level.high
    assert curve.smallest_detectable is not None
    assert 1.03 < curve.smallest_detectable < 1.10
    assert curve.pairs_needed is None


def test_a_slowdown_of_all_sizes_is_a_regression_of_the_level() -> None:
    curve = the_curve(judge(*World().sides(pairs=8, slowdown=by(6))))

    assert curve.verdict == "regression"
    [hit] = [hit for hit in curve.hits if hit.family == "level"]
    assert (hit.where, hit.sizes) == ("all sizes", (8, 64 << 20))
    assert hit.ratio.value == pytest.approx(1.06, abs=0.015)
    assert hit.ratio.low is not None
    assert hit.ratio.low > 1.03
    assert hit.p is not None
    assert hit.p < 0.008


def test_a_slowdown_of_large_messages_is_one_of_their_band() -> None:
    curve = the_curve(judge(*World().sides(pairs=8, slowdown=by(7, POWERS[16:]))))

    assert "512K-64M" in [hit.where for hit in curve.hits if hit.family == "band"]


def test_a_slowdown_of_one_size_names_it() -> None:
    curve = the_curve(judge(*World().sides(pairs=8, slowdown=by(15, [64 << 10]))))

    assert [(hit.family, hit.where, hit.sizes) for hit in curve.hits] == [("size", "64K", (65536, 65536))]


def test_an_improvement_is_reported_and_fails_nothing() -> None:
    curve = the_curve(judge(*World().sides(pairs=8, slowdown=by(-8))))

    assert (curve.verdict, curve.hits) == ("pass", ())
    [better] = [hit for hit in curve.improvements if hit.family == "level"]
    assert better.ratio.value == pytest.approx(0.92, abs=0.015)
    assert better.ratio.low is not None
    assert better.ratio.high is not None
    assert better.ratio.low < better.ratio.value < better.ratio.high < 1


def test_what_noise_hides_is_inconclusive_and_says_how_many_pairs_it_takes() -> None:
    curve = the_curve(judge(*World(run=0.1, draw=random.Random(7)).sides(pairs=6)))

    assert curve.verdict == "inconclusive"
    assert curve.pairs_needed is not None
    assert curve.pairs_needed > 6
    assert "a pass must rule out 5 %" in curve.reasons[0]


def test_a_wider_margin_lets_a_noisy_machine_pass() -> None:
    sides = World(run=0.1, draw=random.Random(7)).sides(pairs=6)

    assert the_curve(judge(*sides, margin=0.5)).verdict == "pass"


def test_more_pairs_are_asked_for_only_in_doubt() -> None:
    [clear], [doubt], [slower] = (
        compare(*World(run=run).sides(slowdown=by(percent))) for run, percent in ((0.003, 0), (0.05, 0), (0.003, 8))
    )

    assert not undecided(clear)
    assert undecided(doubt)
    assert undecided(slower)  # five pairs suspect, ten convict


def test_a_second_look_at_what_the_first_has_settled_says_the_same() -> None:
    sides = World(run=0.003).sides()
    [one] = compare(*sides)
    assert not undecided(one)

    first, again = judge(*sides, settled=[one.key]), judge(*sides)
    assert (the_curve(first).stage, the_curve(again).stage) == (1, 2)
    assert first.verdict == again.verdict == "pass"


# -- what needs no statistics --------------------------------------------------------------------------------------


def at(size: int, **changes: Any) -> Callable[[Record], Record]:
    return lambda record: replace(record, **changes) if record.point.bytes == size else record


@pytest.mark.parametrize(
    ("changes", "family", "text"),
    [
        ({"check": "wrong", "status": "failed", "reason": "element 3 is 2"}, "wrong", "wrong answer: element 3 is 2"),
        ({"status": "hung", "reason": "no progress", "seconds": None}, "hang", "hung: no progress"),
        ({"status": "failed", "reason": "rank 1 died", "seconds": None}, "hang", "failed: rank 1 died"),
    ],
)
def test_a_wrong_answer_or_a_hang_where_the_baseline_is_clean_is_a_regression(
    changes: dict[str, Any], family: str, text: str
) -> None:
    curve = the_curve(judge(*World().sides(changed=at(4096, **changes))))

    assert curve.verdict == "regression"
    [hit] = curve.hits
    assert (hit.family, hit.where, hit.p, hit.ratio.value) == (family, "4K", None, None)
    assert hit.text.startswith(text)


def test_one_pair_is_enough_to_see_a_wrong_answer() -> None:
    report = judge(*World().sides(pairs=1, changed=at(8, check="wrong", status="failed", reason="why")))

    assert report.verdict == "regression"


def test_a_baseline_that_is_wrong_is_no_baseline() -> None:
    world = World()
    bad = world.side("a", changed=at(4096, check="wrong", status="failed", reason="element 3"))
    report = judge(bad, world.side("b"))

    assert report.verdict == "refused"
    assert the_curve(report).reasons == ("the baseline is bad: a wrong answer at 4K: element 3",)


def test_what_is_wrong_on_both_sides_is_not_the_candidates_fault() -> None:
    world, wrong = World(), at(4096, check="wrong", status="failed", reason="element 3")

    assert judge(world.side("a", changed=wrong), world.side("b", changed=wrong)).verdict == "refused"


def test_a_worse_proven_path_is_a_regression() -> None:
    world = World()
    baseline = world.side("a", changed=at(1 << 20, proven_path="net/ib"))
    curve = the_curve(judge(baseline, world.side("b", changed=at(1 << 20, proven_path="net/socket"))))

    assert curve.verdict == "regression"
    assert [(hit.family, hit.where) for hit in curve.hits] == [("path", "1M")]


def crashed(side: Results, launch: str, reason: str = "rank 0 is gone") -> Results:
    ends = [
        end | {"status": "failed", "fault": "failed", "reason": reason} if end["launch"] == launch else end
        for end in side.ends
    ]
    return replace(side, ends=ends)


def test_a_candidate_that_crashed_without_a_record_is_a_regression() -> None:
    baseline, candidate = World().sides(pairs=1)
    report = judge(baseline, crashed(replace(candidate, records=[]), "b1"))

    assert report.verdict == "regression"
    assert [(hit.where, hit.text) for hit in the_curve(report).hits] == [("the launch", "rank 0 is gone")]


def test_a_baseline_that_crashed_is_no_baseline() -> None:
    baseline, candidate = World().sides()

    assert judge(crashed(baseline, "a1"), candidate).verdict == "refused"


def test_a_launch_that_the_user_stopped_is_nobodys_crash() -> None:
    baseline, candidate = World().sides(pairs=6)
    ends = [candidate.ends[0] | {"status": "interrupted", "fault": "stopped"}, *candidate.ends[1:]]

    assert judge(baseline, replace(candidate, ends=ends)).verdict == "pass"


# -- refusals ------------------------------------------------------------------------------------------------------


def test_three_pairs_are_too_few() -> None:
    report = judge(*World().sides(pairs=3))

    assert report.verdict == "refused"
    assert the_curve(report).reasons == ("3 pairs, at least 4 are needed",)


def test_seven_sizes_are_too_few() -> None:
    report = judge(*World().sides(sizes=POWERS[:7]))

    assert the_curve(report).reasons == ("7 sizes in common, at least 8 are needed",)


def test_one_rank_is_refused_since_nothing_travels() -> None:
    world = World()
    report = judge(world.side("a", ranks=1), world.side("b", ranks=1))

    assert "nothing travels" in the_curve(report).reasons[0]


def test_a_time_that_is_none_counts_at_no_size() -> None:
    def zero(record: Record) -> Record:
        assert record.seconds is not None
        return replace(record, seconds=replace(record.seconds, median=0.0)) if record.point.bytes < 64 else record

    world = World()
    report = judge(world.side("a", pairs=8), world.side("b", pairs=8, changed=zero))

    assert report.verdict == "pass"
    assert the_curve(report).sizes == len(POWERS) - 3


def test_a_file_is_not_its_own_baseline() -> None:
    baseline, _ = World().sides()
    report = judge(baseline, baseline)

    assert (report.verdict, report.curves) == ("refused", ())
    assert "same launches" in report.reasons[0]


def test_unlike_questions_are_refused_by_the_key_that_differs() -> None:
    report = judge(*World().sides(mode="pipe"))

    assert report.reasons == ("the two sides ask different questions: mode is sync and pipe",)


def test_pairs_of_other_jobs_have_no_partners() -> None:
    """Each side of another gate: they fall back to runs, of different sessions."""
    report = judge(*World().sides(header={"session": "two", "nodes": [{"cpu_model": "Xeon"}]}))

    assert report.verdict == "refused"
    assert "nodes.cpu_model is EPYC and Xeon" in report.reasons[0]


def test_too_many_sizes_that_are_too_unstable_are_refused() -> None:
    """A pass is only one where the detector looked."""
    report = judge(*World(run=0.0, within=0.4).sides(pairs=8), margin=0.9)

    assert report.verdict == "refused"
    assert "too unstable" in the_curve(report).reasons[0]


def test_a_median_and_a_mean_do_not_compare() -> None:
    world = World()
    header = {"pair": None}
    report = judge(
        world.side("a", header=header), world.side("b", header=header, changed=lambda r: replace(r, statistic="mean"))
    )

    assert report.verdict == "refused"
    assert "statistic is median_of_max and mean" in report.reasons[0]


def test_a_side_with_nothing_in_it_is_refused() -> None:
    baseline, candidate = World().sides()

    assert judge(baseline, replace(candidate, records=[])).verdict == "refused"
    assert judge(replace(baseline, records=[]), candidate).verdict == "refused"


# -- states --------------------------------------------------------------------------------------------------------


def in_state(record: Record, name: str, factor: float) -> Record:
    assert record.seconds is not None
    median = record.seconds.median * factor
    states = ({"seconds": 1e-7, "state": name, "after": name, "median": median, "samples": 9},)
    return replace(record, states=states, seconds=replace(record.seconds, median=median))


def flipping(seed: int, probability: float = 0.05) -> Callable[[Record], Record]:
    """Cores that change state from point to point, three times as slow in the other one."""
    draw, state = random.Random(seed), [0]

    def change(record: Record) -> Record:
        state[0] ^= draw.random() < probability
        return in_state(record, ("near", "far")[state[0]], (1.0, 3.0)[state[0]])

    return change


def test_states_of_the_cores_are_never_divided_by_each_other() -> None:
    """Half of the cells are lost; what is left of ten pairs passes, where medians would differ by three."""
    world = World()
    sides = world.side("a", pairs=12, changed=flipping(1)), world.side("b", pairs=12, changed=flipping(2))
    curve = the_curve(judge(*sides))

    assert curve.verdict == "pass"
    assert curve.level.value == pytest.approx(1.0, abs=0.02)


def test_cells_whose_states_differ_are_named_to_be_measured_again() -> None:
    world = World()
    slow = world.side("b", changed=lambda r: in_state(r, "far" if r.point.bytes == 8 and r.run < 3 else "near", 1.0))
    [one] = compare(world.side("a", changed=lambda r: in_state(r, "near", 1.0)), slow)

    assert {pair: [p.bytes for p in points] for (_, pair), points in one.unmatched().items()} == {1: [8], 2: [8]}


def test_sides_that_never_met_the_same_state_cannot_be_told() -> None:
    world = World()
    report = judge(
        world.side("a", changed=lambda r: in_state(r, "near", 1.0)),
        world.side("b", changed=lambda r: in_state(r, "far", 3.0)),
    )

    assert report.verdict == "inconclusive"
    assert "0 sizes have 4 pairs in one state of the cores" in the_curve(report).reasons[0]


# -- sessions ------------------------------------------------------------------------------------------------------


def test_files_of_different_sessions_get_the_spread_between_sessions() -> None:
    world = World(session=0.0, run=0.002, within=0.002)
    header = {"pair": None, "session": "other"}
    baseline = world.side("a", header={"pair": None})
    slower = world.side("b", header=header, slowdown=by(4))
    report = judge(baseline, slower)

    assert the_curve(report).verdict == "inconclusive"  # 4 % is what sessions differ by
    assert report.session_spread == 0.02
    assert the_curve(report).pairs_needed is None  # more runs of two sessions would not help
    assert the_curve(judge(baseline, slower, session_spread=0.0)).verdict == "regression"


def test_runs_of_one_session_are_compared_without_it() -> None:
    world = World(session=0.0, run=0.002, within=0.002)
    report = judge(world.side("a", header={"pair": None}), world.side("b", header={"pair": None}, slowdown=by(4)))

    assert the_curve(report).replicates == "runs"
    assert the_curve(report).verdict == "regression"
    assert report.session_spread is None


def test_four_sessions_of_a_baseline_show_their_own_spread() -> None:
    world = World(session=0.0, run=0.003, within=0.003)
    stored = world.side("a", pairs=8, header={"pair": None, "session": lambda number: f"day{number % 4}"})
    candidate = world.side("b", pairs=2, header={"pair": None, "session": "today"}, slowdown=by(10))
    curve = the_curve(judge(stored, candidate))

    assert (curve.replicates, curve.pairs, curve.verdict) == ("sessions", 4, "regression")


def test_a_session_of_fewer_runs_is_no_session_like_the_others() -> None:
    world = World(session=0.0, run=0.003, within=0.003)
    stored = world.side("a", pairs=8, header={"pair": None, "session": lambda number: f"day{number % 4}"})
    curve = the_curve(judge(stored, world.side("b", pairs=1, header={"pair": None, "session": "today"})))

    assert curve.reasons == ("a session of the candidate has 1 runs, those of the baseline have 2: --runs 2",)


# -- several curves ------------------------------------------------------------------------------------------------


def test_one_regression_is_a_regression_whatever_the_others_are() -> None:
    assert worst(["pass", "refused", "regression", "inconclusive"]) == "regression"
    assert worst(["pass", "inconclusive", "refused"]) == "refused"
    assert worst(["pass", "inconclusive"]) == "inconclusive"


def joined(one: Results, other: Results) -> Results:
    return replace(one, records=[*one.records, *other.records])


def test_each_curve_gets_its_own_verdict_and_what_is_alone_is_named() -> None:
    world = World()
    baseline = joined(world.side("a", pairs=8), world.side("a", pairs=8, op="allgather"))
    candidate = joined(world.side("b", pairs=8, slowdown=by(8)), world.side("b", pairs=8, op="allgather"))
    report = judge(joined(baseline, world.side("a", op="reduce")), candidate)

    assert {curve.key.op: curve.verdict for curve in report.curves} == {"allreduce": "regression", "allgather": "pass"}
    assert report.reasons == ("reduce (float32, mode sync) is only in the baseline: not judged",)


def test_a_library_that_changed_is_named() -> None:
    world = World()
    sides = [world.side(name, header={"libraries": {"mpi": f"MPICH 5.0.{name}"}}) for name in "ab"]

    assert [(change.fact, change.values) for change in judge(*sides).changed] == [
        ("libraries.mpi", ("MPICH 5.0.a", "MPICH 5.0.b"))
    ]
