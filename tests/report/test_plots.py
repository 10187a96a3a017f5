from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from commbench.analyze.setting import Setting
from commbench.errors import CannotTellError, ResultsError
from commbench.report import plots
from commbench.report.canvas import our_style
from commbench.report.plots import draw


def texts(path: Path) -> list[str]:
    """Everything written in an SVG."""
    return ["".join(element.itertext()) for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_png_and_svg_are_written_and_named(curve_of: Any, tmp_path: Path) -> None:
    written = draw([curve_of(runs=3, noise=0.03)], tmp_path / "deep" / "name")

    assert written == [tmp_path / "deep" / "name.png", tmp_path / "deep" / "name.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG")
    assert written[1].read_text().startswith("<?xml")


def test_a_dot_in_the_name_is_no_ending(curve_of: Any, tmp_path: Path) -> None:
    [path] = draw([curve_of()], tmp_path / "nccl-2.27", ["svg"])

    assert path.name == "nccl-2.27.svg"


def test_the_same_input_gives_the_same_bytes(curve_of: Any, tmp_path: Path) -> None:
    curve = curve_of(runs=3, noise=0.03)

    first, second = (draw([curve], tmp_path / name) for name in "ab")

    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_text_stays_text_and_says_what_was_measured(curve_of: Any, tmp_path: Path) -> None:
    """T = 10 us + D / 1.024 GB/s, n_1/2 = 10K."""
    curve = curve_of(alpha=1e-5, bandwidth=1.024e9)
    placed = type(curve)(curve.key, curve.points, Setting("MPICH 5.0.1", ("node1",), "2 x AMD EPYC 9354"))

    [path] = draw([placed], tmp_path / "x", ["svg"])

    found = texts(path)
    for expected in ("allreduce sum · mpi · 4 ranks", "T = 10.0 us + D / 1.02 GB/s", "n½ = 10.0K", "time (us)", "64"):
        assert expected in found
    assert any("2 x AMD EPYC 9354" in text for text in found)


def test_the_legend_names_only_what_differs(curve_of: Any, tmp_path: Path) -> None:
    [path] = draw([curve_of(), curve_of(alpha=9e-6, mode="pipe")], tmp_path / "x", ["svg"])

    assert {"mode sync: 5.00 us + D / 10.0 GB/s", "mode pipe: 9.00 us + D / 10.0 GB/s"} <= set(texts(path))


def test_the_drawn_points_are_the_medians_and_the_rates_they_give(curve_of: Any) -> None:
    curve = curve_of(alpha=1e-5, bandwidth=1.024e9, sizes=[1 << i for i in range(10, 24)])
    with our_style():
        times, rates = plots._figure([curve]).axes

    assert list(times.lines[0].get_ydata()[:3]) == pytest.approx([11, 12, 14])
    assert list(rates.lines[0].get_ydata()[:1]) == pytest.approx([1.5 * 1024 / 11e-6 / 1e9])


def test_a_switch_is_a_gap_in_the_line_and_is_named(curve_of: Any, record: Any, tmp_path: Path) -> None:
    sizes = [8 << i for i in range(31)]
    curve = curve_of([record(s, 5e-6 + s / 5e9 if s < 1 << 18 else 20e-6 + s / 1e10) for s in sizes])

    [path] = draw([curve], tmp_path / "x", ["svg"])
    with our_style():
        times, _ = plots._figure([curve]).axes

    assert {"switch at 256K", "T = 5.00 us + D / 10.0 GB/s, 2 segments"} <= set(texts(path))
    lines = [line for line in times.lines if len(line.get_xdata()) == 128]
    assert [(round(line.get_xdata()[0]), round(line.get_xdata()[-1])) for line in lines] == [
        (8, 128 << 10), (256 << 10, 8 << 30),
    ]  # fmt: skip


def test_without_a_known_factor_the_rates_are_algorithm_bandwidth(curve_of: Any, tmp_path: Path) -> None:
    [path] = draw([curve_of(ranks=0), curve_of(op="reduce", ranks=0)], tmp_path / "x", ["svg"])

    assert "algorithm bandwidth (GB/s)" in texts(path)


def test_many_curves_get_a_picture_an_operation(curve_of: Any, tmp_path: Path) -> None:
    operations = ("allreduce", "allgather", "alltoall")
    curves = [
        curve_of(op=op, mode=mode, cache=cache)
        for op in operations
        for mode in ("sync", "pipe")
        for cache in ("hot", "rotated")
    ]

    written = draw(curves, tmp_path / "x", ["svg"])

    assert [path.name for path in written] == ["x-allgather.svg", "x-allreduce.svg", "x-alltoall.svg"]


def test_curves_without_a_fit_or_with_one_size_are_drawn_all_the_same(
    curve_of: Any, record: Any, tmp_path: Path
) -> None:
    draw([curve_of(sizes=[1000])], tmp_path / "one", ["svg"])
    draw([curve_of([record(8, 0.0), record(16, 1e-6), record(32, 1e-6, check="wrong")])], tmp_path / "odd", ["svg"])


def test_text_from_a_stranger_is_no_formula_no_markup_and_no_missing_glyph(curve_of: Any, tmp_path: Path) -> None:
    curve = curve_of(backend="$\\frac{$ <b>&amp;\x1b[2J 漢字", path="$x^$")

    [path] = draw([curve], tmp_path / "x", ["svg"])

    assert any("$\\frac{$ <b>&amp;[2J ??" in text for text in texts(path))


def test_nothing_to_draw_is_said(curve_of: Any, record: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="nothing to draw"):
        draw([curve_of([record(8, None, status="failed", check="skipped")])], tmp_path / "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(curve_of: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ResultsError, match="cannot be written"):
        draw([curve_of()], tmp_path / "x")


def test_a_file_in_the_place_of_a_folder_is_said(curve_of: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot be written"):
        draw([curve_of()], tmp_path / "file" / "x")
