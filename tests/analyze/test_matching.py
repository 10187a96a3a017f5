from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from commbench.analyze.matching import KEYS, Candidate, Side, candidates, groups, parse_keys
from commbench.errors import CannotTellError, UsageError
from commbench.records import Record
from commbench.results import load

SIZES = (8, 64, 512, 4096)


@pytest.fixture
def sides_of(records_of: Any, record: Any) -> Any:
    """A function: of each side the curves as changes of the usual point; a header may be among them as "header"."""
    numbers = count()

    def build(*sides: Iterable[dict[str, Any]]) -> list[Side]:
        found = []
        for number, curves in enumerate(sides):
            files = []
            for changes in curves:
                changed = dict(changes)
                header = changed.pop("header", None)
                records: list[Record] = [record(size, **changed) for size in SIZES]
                files.append(load(records_of(records, name=f"{next(numbers)}.jsonl", header=header)))
            found.append(Side("ABC"[number], tuple(files)))
        return found

    return build


def matched(sides: list[Side], *across: str) -> tuple[list[list[str]], list[str]]:
    """Each group as side and whatever key tells its curves apart, and what was left out."""
    made, left = groups(candidates(sides), across)
    return [[_word(c) for c in group] for group in made], [_word(one.candidate) for one in left]


def _word(candidate: Candidate) -> str:
    key = candidate.curve.key
    return f"{candidate.name} {key.op} {key.mode} {key.dtype} {key.path} {key.ranks} {'in' if key.in_place else 'out'}"


def test_one_curve_a_side_makes_one_group_whatever_may_differ(sides_of: Any) -> None:
    sides = sides_of(
        [{"path": "shm"}],
        [{"path": "tcp", "backend": "gloo", "dtype": "bfloat16", "in_place": False}],
        [{"header": {"environment": {"UCX_TLS": "tcp"}}}],
    )

    assert matched(sides) == (
        [
            [
                "A allreduce sync float32 shm 4 in",
                "B allreduce sync bfloat16 tcp 4 out",
                "C allreduce sync float32 auto 4 in",
            ]
        ],
        [],
    )


def test_curves_that_both_sides_have_are_compared_each_with_its_own_kind(sides_of: Any) -> None:
    both = [{"op": op, "dtype": dtype} for op in ("allreduce", "reduce") for dtype in ("float32", "bfloat16")]

    made, left = matched(sides_of(both, both))

    assert left == []
    assert [[word.split()[1:4] for word in group] for group in made] == [
        [[op, "sync", dtype]] * 2 for op in ("allreduce", "reduce") for dtype in ("float32", "bfloat16")
    ]


def test_a_curve_that_one_side_alone_has_is_left_out(sides_of: Any) -> None:
    made, left = matched(sides_of([{}, {"mode": "pipe"}, {"dtype": "bfloat16"}], [{}]))

    assert made == [["A allreduce sync float32 auto 4 in", "B allreduce sync float32 auto 4 in"]]
    assert left == ["A allreduce sync bfloat16 auto 4 in", "A allreduce pipe float32 auto 4 in"]


def test_paths_of_which_no_two_sides_share_one_are_all_compared(sides_of: Any) -> None:
    made, left = matched(sides_of([{"path": "shm"}, {"path": "p2p"}], [{"path": "tcp"}]))

    assert [word.split()[4] for word in made[0]] == ["shm", "p2p", "tcp"]
    assert left == []


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"mode": "pipe"}, "mode is sync and pipe", "--across mode"),
        ({"ranks": 8}, "ranks is 4 and 8", "--across ranks"),
        ({"cache": "rotated"}, "cache is hot and rotated", "--across cache"),
        ({"statistic": "mean"}, "statistic is median_of_max and mean", "--across statistic"),
        ({"redop": "max"}, "redop is sum and max", "--across redop"),
        ({"op": "alltoall", "redop": None}, "op is allreduce and alltoall, redop is sum and none", "--across op"),
    ],
)
def test_unlike_questions_are_refused_by_name_unless_asked_across(
    sides_of: Any, changes: dict[str, Any], said: str, hint: str
) -> None:
    sides = sides_of([{}], [changes])

    with pytest.raises(CannotTellError, match="A and B hold nothing alike") as refusal:
        matched(sides)
    assert refusal.value.message.endswith(said)
    assert refusal.value.hint.endswith(hint)
    made, left = matched(sides, hint.removeprefix("--across "))
    assert (len(made), len(made[0]), left) == (1, 2, [])


def test_two_differences_need_both_keys(sides_of: Any) -> None:
    with pytest.raises(CannotTellError) as refusal:
        matched(sides_of([{}], [{"mode": "pipe", "ranks": 8}]))
    assert refusal.value.hint.endswith("--across ranks --across mode")


def test_of_three_sides_the_one_that_is_unlike_is_named(sides_of: Any) -> None:
    with pytest.raises(CannotTellError, match="A and C hold nothing alike: ranks is 4 and 8"):
        matched(sides_of([{}], [{}], [{"ranks": 8}]))


def test_one_side_is_compared_along_the_one_key_in_which_its_curves_differ(sides_of: Any) -> None:
    made, left = matched(sides_of([{"mode": "sync"}, {"mode": "pipe"}]))

    assert [[word.split()[2] for word in group] for group in made] == [["sync", "pipe"]]
    assert left == []


def test_one_side_of_several_operations_is_compared_within_each(sides_of: Any) -> None:
    curves = [
        {"op": op, "redop": redop, "mode": mode, "in_place": op != "alltoall"}
        for op, redop in (("allreduce", "sum"), ("alltoall", None))
        for mode in ("sync", "pipe")
    ]

    by_mode, _ = matched(sides_of(curves))
    by_operation, _ = matched(sides_of(curves), "op")

    assert [[word.split()[1:3] for word in group] for group in by_mode] == [
        [["allreduce", "sync"], ["allreduce", "pipe"]],
        [["alltoall", "sync"], ["alltoall", "pipe"]],
    ]
    assert [[word.split()[1:3] for word in group] for group in by_operation] == [
        [["allreduce", "sync"], ["alltoall", "sync"]],
        [["allreduce", "pipe"], ["alltoall", "pipe"]],
    ]


def test_one_side_of_operations_alone_compares_these(sides_of: Any) -> None:
    made, _ = matched(sides_of([{"op": "allreduce"}, {"op": "alltoall", "redop": None, "in_place": False}]))

    assert [[word.split()[1] for word in group] for group in made] == [["allreduce", "alltoall"]]


def test_in_place_and_out_of_place_of_several_operations_are_compared_like_with_like(sides_of: Any) -> None:
    curves = [{"op": op, "in_place": form} for op in ("allreduce", "reduce") for form in (True, False)]

    by_form, _ = matched(sides_of(curves))
    by_operation, _ = matched(sides_of(curves), "op")

    assert [[word.split()[-1] for word in group] for group in by_form] == [["in", "out"], ["in", "out"]]
    assert [{word.split()[-1] for word in group} for group in by_operation] == [{"in"}, {"out"}]


def test_one_side_that_differs_in_its_setting_alone_compares_the_settings(sides_of: Any) -> None:
    made, _ = matched(sides_of([{}, {"header": {"environment": {"UCX_TLS": "tcp"}}}]))

    assert len(made[0]) == 2


def test_paths_with_environments_of_their_own_are_compared_by_path(sides_of: Any) -> None:
    made, _ = matched(sides_of([{"path": "shm"}, {"path": "tcp", "header": {"environment": {"UCX_TLS": "tcp"}}}]))

    assert [word.split()[4] for word in made[0]] == ["shm", "tcp"]


def test_one_side_that_differs_in_two_keys_asks_for_one(sides_of: Any) -> None:
    curves = [{"mode": mode, "dtype": dtype} for mode in ("sync", "pipe") for dtype in ("float32", "float64")]

    with pytest.raises(CannotTellError, match="differ in mode and dtype") as refusal:
        matched(sides_of(curves))
    assert refusal.value.hint.endswith("--across mode")
    made, _ = matched(sides_of(curves), "mode")
    assert [[word.split()[2:4] for word in group] for group in made] == [
        [["sync", "float32"], ["pipe", "float32"]],
        [["sync", "float64"], ["pipe", "float64"]],
    ]


def test_one_curve_is_compared_with_nothing(sides_of: Any) -> None:
    with pytest.raises(CannotTellError, match="one curve"):
        matched(sides_of([{}]))


def test_a_key_in_which_nothing_differs_is_refused_within_one_side(sides_of: Any) -> None:
    with pytest.raises(CannotTellError, match="no two of its curves differ in ranks alone"):
        matched(sides_of([{"mode": "sync"}, {"mode": "pipe"}]), "ranks")


def test_one_rank_is_no_curve_to_compare(sides_of: Any) -> None:
    with pytest.raises(CannotTellError, match="B: on 1 rank nothing travels"):
        matched(sides_of([{}], [{"ranks": 1}]))
    with pytest.raises(CannotTellError, match="A: on 1 rank nothing travels"):
        matched(sides_of([{"ranks": 1}]))


def test_rank_counts_leave_the_single_rank_out(sides_of: Any) -> None:
    made, left = matched(sides_of([{"ranks": ranks} for ranks in (1, 2, 4)]), "ranks")

    assert [word.split()[5] for word in made[0]] == ["2", "4"]
    assert [word.split()[5] for word in left] == ["1"]


def test_a_side_without_records_is_refused_by_name(sides_of: Any, records_of: Any) -> None:
    empty = Side("nothing", (load(records_of([], name="empty.jsonl")),))

    with pytest.raises(CannotTellError, match="nothing: no record in it"):
        candidates([*sides_of([{}]), empty])


def test_files_of_one_side_are_further_runs_and_those_of_two_sides_are_not(records_of: Any) -> None:
    files = [load(records_of(name=f"{number}.jsonl")) for number in range(4)]

    found = candidates([Side("A", tuple(files[:2])), Side("B", tuple(files[2:]))])

    assert [(c.name, c.curve.runs) for c in found] == [("A", 2), ("B", 2)]
    assert not found[0].shares_launches_with(found[1])


def test_keys_are_read_in_any_spelling_and_unknown_ones_refused() -> None:
    assert parse_keys(["In-Place", "mode,ranks", "mode"]) == ("in_place", "mode", "ranks")
    with pytest.raises(UsageError, match="unknown key 'bytes'") as refusal:
        parse_keys(["bytes"])
    assert all(key in refusal.value.hint for key in KEYS)
