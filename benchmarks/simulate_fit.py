"""What the fit is worth, on curves whose truth is known.

    python benchmarks/simulate_fit.py [--curves 2000] [--seed 1] [--output results/statistics-fit.md]

Every curve goes the whole way from records to `fit_curve`. Times are a model's, times lognormal noise, times an
outlier's factor here and there, times a factor common to all sizes of a run. Beside it: ordinary least squares of T
on D, one line for every curve, and other prices of a break. Seeded: the same arguments give the same table.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commbench.analyze.fit import CurveFit, Estimate, fit_curve
from commbench.analyze.segments import SIMPLE_BREAKS, best_cuts, price_of_a_break
from commbench.analyze.summary import Curve, curves, points
from commbench.records import Record, Seconds
from commbench.spec import Point
from commbench.stats import t_quantile
from commbench.units import format_size

Vector = npt.NDArray[np.float64]

POINT = Point(
    op="allreduce", in_place=True, dtype="float32", redop="sum", root=None, bytes=0, ranks=2, backend="mpi",
    device="cpu", path="auto", mode="sync", cache="hot",
)  # fmt: skip
