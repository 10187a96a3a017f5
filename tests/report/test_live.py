"""What a sweep shows while it runs: plain lines for a log, a picture for a person's terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from commbench.report import live
from commbench.report.live import Counted, LogView, TerminalView

HEADER = {"kind": "run", "run": 1, "points": 3, "ranks": 4}


def beat(**changes: Any) -> dict[str, Any]:
    usual = {
        "kind": "now", "phase": "timing", "what": "allreduce 4M", "point": None, "median": 312e-6, "finished": 12,
        "points": 24, "elapsed": 6.0, "seconds": 20.0,
    }  # fmt: skip
    return usual | changes


# -- how far it is -----------------------------------------------------------------------------------------------


def counted(runs: int, run: int | None, doing: dict[str, Any]) -> Counted:
    one = Counted(runs)
    if run is not None:
        one.take_run(HEADER | {"run": run})
    one.doing = doing
    return one


@pytest.mark.parametrize(
    ("runs", "run", "doing", "share"),
    [
        (1, None, {}, 0.0),
        (1, 1, beat(elapsed=5.0), 0.25),
        (3, 2, beat(elapsed=10.0), 0.5),  # one whole run and half of another, of three
        (3, 3, beat(elapsed=20.0), 1.0),
        (3, 3, beat(elapsed=99.0), 1.0),
        (3, 2, {"phase": "meeting the other ranks"}, 1 / 3),
        (2, 5, beat(elapsed=10.0), 1.0),  # --append numbers the runs on
    ],
)
def test_the_share_that_is_done_is_of_time(runs: int, run: int | None, doing: dict[str, Any], share: float) -> None:
    assert counted(runs, run, doing).share_done() == pytest.approx(share)


@pytest.mark.parametrize(
    ("runs", "run", "doing", "words"),
    [
        (3, None, {}, "starting"),
        (3, None, {"phase": "meeting the other ranks", "what": ""}, "meeting the other ranks"),
        # 14 s of this run and 20 of the next.
        (3, 2, beat(), "run 2 of 3 · timing allreduce 4M · 12 of 24 points · 312 us · 34 s left"),
        (1, 1, beat(median=None), "timing allreduce 4M · 12 of 24 points · 14 s left"),
        (1, 1, beat(elapsed=25.0), "timing allreduce 4M · 12 of 24 points · 312 us · 0 s left"),
    ],
)
def test_one_line_says_what_how_far_and_how_long_still(
    runs: int, run: int | None, doing: dict[str, Any], words: str
) -> None:
    assert counted(runs, run, doing).words() == words


def test_a_row_is_over_all_runs_so_far_and_a_point_without_any_is_itself(record: Any, point: Any) -> None:
    one = Counted(2)
    assert one.row(point(8)) == point(8)

    for run, median in ((1, 1e-5), (2, 4e-5)):
        one.take_record(record(8, median, run=run))
    row: Any = one.row(point(8))
    assert (row.runs, row.seconds.median) == (2, pytest.approx(2e-5))  # geometric


# -- a log -------------------------------------------------------------------------------------------------------


class Log:
    """A log view and what it has written."""

    def __init__(self, runs: int = 1) -> None:
        self.out = io.StringIO()
        self.view = LogView(runs, Console(file=self.out, width=80, markup=False, highlight=False, emoji=False))

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def test_a_log_has_one_header_a_curve_and_one_row_a_finished_point(record: Any) -> None:
    log = Log()
    with log.view as view:
        view.run(HEADER)
        view.record(record(8, flags=("partial",)))
        view.record(record(8, 1e-5))
        view.record(record(1 << 20, 1048.576e-6))
        view.record(record(8, 1e-5, mode="pipe"))

    assert [" ".join(line.split()) for line in log.lines] == [
        "run 1 of 1: 3 points, 4 ranks",
        "allreduce, sum, float32, 4 ranks, mpi, cpu, path auto, mode sync, cache hot, in place",
        "size count time(us) ±% algbw busbw p95 check",
        "8 2 10.00 10 0.000800 0.00120 12.00 ok",
        "1M 262144 1049 10 1.00 1.50 1258 ok",
        "allreduce, sum, float32, 4 ranks, mpi, cpu, path auto, mode pipe, cache hot, in place",
        "size count time(us) ±% algbw busbw p95 check",
        "8 2 10.00 10 0.000800 0.00120 12.00 ok",
    ]


def test_each_run_begins_with_its_own_header(record: Any) -> None:
    log = Log(2)
    for run in (1, 2):
        log.view.run(HEADER | {"run": run})
        log.view.record(record(8, run=run))

    assert [line for line in log.lines if line.startswith("run")] == [
        "run 1 of 2: 3 points, 4 ranks",
        "run 2 of 2: 3 points, 4 ranks",
    ]
    assert sum(line.startswith("allreduce") for line in log.lines) == 2


def test_a_failed_point_is_a_row_too(record: Any) -> None:
    log = Log()
    log.view.record(record(8, None, status="hung", check="skipped", reason="no progress"))

    assert log.lines[-1].split() == ["8", "2", "-", "-", "-", "-", "-", "hung"]


def test_a_log_says_what_it_is_at_after_five_seconds_of_silence(monkeypatch: pytest.MonkeyPatch, record: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    log = Log()
    log.view.run(HEADER)

    for now[0] in (101.0, 104.9, 105.0, 106.0, 109.9):
        log.view.now(beat())
    assert log.lines[1:] == ["now: timing allreduce 4M · 12 of 24 points · 312 us · 14 s left"]

    log.view.record(record(8))
    now[0] = 112.0
    log.view.now(beat())  # the row was two seconds ago
    assert sum(line.startswith("now: ") for line in log.lines) == 1


def test_notes_are_one_line_each_whatever_is_in_them() -> None:
    log = Log()
    log.view.note("mpi differs:\n\x1b[31mred " + "x" * 100)

    assert log.lines == ["note: mpi differs: [31mred " + "x" * 100]


def test_words_of_a_rank_cannot_speak_to_the_terminal() -> None:
    one = Counted(1)
    one.doing = {"phase": "timing\x1b[2J", "what": "a\rb"}

    assert one.words() == "timing[2J a b"


# -- a terminal --------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Callable[..., TerminalView]:
    """A function: the view of `runs` runs on a terminal of `height` lines."""

    def build(runs: int = 1, height: int = 25) -> TerminalView:
        return TerminalView(runs, Console(file=io.StringIO(), width=80, height=height, force_terminal=True))

    return build


def picture_of(view: TerminalView) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=120, markup=False, highlight=False).print(view._picture())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_before_the_first_point_there_is_a_bar_with_words(terminal: Any) -> None:
    [line] = picture_of(terminal())

    assert line.endswith(" starting")


def test_rows_fill_as_they_are_measured(terminal: Any, record: Any, point: Any) -> None:
    view = terminal()
    view.run(HEADER)
    view.record(record(8, 1e-5))
    view.record(record(16, 2e-5, flags=("partial",)))
    view.now(beat(point=point(32).key()))
    lines = picture_of(view)

    assert lines[0] == "allreduce, sum, float32, 4 ranks, mpi, cpu, path auto, mode sync, cache hot, in place"
    assert [line.split() for line in lines if line.strip().startswith(("8", "16", "32"))] == [
        ["8", "2", "10.00", "10", "0.000800", "0.00120", "12.00", "ok"],
        ["16", "4", "20.00", "10", "0.000800", "0.00120", "24.00", "ok", "*"],
        ["32", "8"],  # being measured
    ]
    assert lines[-1].endswith("timing allreduce 4M · 12 of 24 points · 312 us · 14 s left")


def test_only_the_curve_at_work_is_shown(terminal: Any, record: Any, point: Any) -> None:
    view = terminal()
    view.record(record(8))
    view.now(beat(point=point(8, mode="pipe").key()))
    lines = picture_of(view)

    assert "mode pipe" in lines[0]
    assert sum(line.strip().startswith("8 ") for line in lines) == 1


@pytest.mark.parametrize(("at", "first", "last"), [(0, 0, 11), (6, 0, 11), (12, 6, 17), (29, 18, 29)])
def test_on_a_low_terminal_the_rows_around_the_point_at_work_are_shown(
    terminal: Any, record: Any, point: Any, at: int, first: int, last: int
) -> None:
    """Eighteen lines hold twelve of thirty rows, beside title, names, bar and room for the prompt."""
    view = terminal(height=18)
    powers = [8 << k for k in range(30)]
    for size in powers:
        view.record(record(size))
    view.now(beat(point=point(powers[at]).key()))
    lines = picture_of(view)

    shown = [size for size in powers if any(line.split()[:2][1:] == [str(size // 4)] for line in lines)]
    assert (shown[0], shown[-1], len(shown)) == (powers[first], powers[last], 12)


def test_sizes_ascend_though_they_are_measured_in_any_order(terminal: Any, record: Any, point: Any) -> None:
    view = terminal()
    for size in (64, 8, 32):
        view.record(record(size))
    view.now(beat(point=point(16).key()))
    counts = [line.split()[1] for line in picture_of(view)[1:-1] if line.split()[1:2] and line.split()[1].isdigit()]

    assert counts == ["2", "4", "8", "16"]


def test_the_picture_is_gone_when_the_sweep_is_over_and_notes_stay(record: Any, point: Any) -> None:
    out = io.StringIO()
    view = TerminalView(1, Console(file=out, width=80, height=25, force_terminal=True, markup=False, highlight=False))
    with view:
        view.run(HEADER)
        view.note("the smallest size was raised")
        view.record(record(8))
        view.now(beat(point=point(8).key()))

    assert "note: the smallest size was raised" in out.getvalue()
    assert out.getvalue().endswith("\x1b[1A\x1b[2K")  # the last of the picture's lines is erased
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1  # and the cursor is back
