"""Real curves of other tools, by way of CSV: every one is fitted or refused in words.

Skipped where ../shared/corpus is not there; nothing of it is in this repository.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from commbench.analyze.datasets import curves_of, datasets
from commbench.analyze.fit import CurveFit, fit_curves
from commbench.importers import load

_ROOT = Path(__file__).resolve().parent.parent
_PLACES = (_ROOT.parent / "shared" / "corpus", Path("/work/shared/corpus"))
CORPUS = next((place for place in _PLACES if place.is_dir()), _PLACES[0])

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real outputs is not on this machine")

# The column of the time in microseconds, by folder.
_TIME = {"osu": 1, "imb": 4, "gloo": 3}
FILES = sorted(path for folder in _TIME for path in (CORPUS / folder).glob("*.txt"))


def as_csv(source: Path, target: Path) -> Path:
    """The sizes and times of an output, as `bytes,seconds`."""
    column = 2 if "PingPong" in source.name else _TIME[source.parent.name]
    rows = []
    for line in source.read_text().splitlines():
        cells = line.split()
        if len(cells) > column and all(re.fullmatch(r"\d+(\.\d+)?", cell) for cell in cells[: column + 1]):
            rows.append(f"{cells[0]},{float(cells[column]) * 1e-6!r}")
    target.write_text("\n".join(["bytes,seconds", *rows]) + "\n")
    return target


def fit_of(source: Path, folder: Path) -> tuple[list[CurveFit], list[str]]:
    fits, refusals = fit_curves(curves_of(datasets([load(as_csv(source, folder / "x.csv"))])))
    return fits, [refusal.message for refusal in refusals]


@pytest.mark.parametrize("source", FILES, ids=[f"{path.parent.name}/{path.name}" for path in FILES])
def test_every_curve_is_fitted_or_refused_in_words(source: Path, tmp_path: Path) -> None:
    if source.name.startswith("barrier"):
        pytest.skip("a barrier has no size")
    fits, refusals = fit_of(source, tmp_path)

    assert len(fits) + len(refusals) == 1
    for message in refusals:
        assert "a fit needs 4 sizes" in message
    for fitted in fits:
        for estimate in (fitted.alpha, fitted.bandwidth, fitted.n_half):
            known = [x for x in (estimate.value, estimate.low, estimate.high, estimate.upper, estimate.lower) if x]
            assert all(math.isfinite(x) and x > 0 for x in known)
        # No alpha above the slowest small message, no B that no size came near.
        assert (fitted.alpha.value or 0) < 2 * max(p.seconds.median for p in fitted.curve.points[:8] if p.seconds)
        assert (fitted.bandwidth.value or 0) < 3 * max(p.algbw or 0 for p in fitted.curve.points)


@pytest.mark.parametrize("run", ["r1", "r2"])
def test_the_slow_size_of_mpichs_reduce_scatter_is_the_largest_residual(run: str, tmp_path: Path) -> None:
    """221 us at 256 KiB between 24 us at 128 KiB and 49 us at 512 KiB."""
    [fitted], _ = fit_of(CORPUS / "osu" / f"reduce_scatter.n2.{run}.txt", tmp_path)

    assert fitted.largest_residual[0] == 256 << 10
    assert fitted.largest_residual[1] > 4
