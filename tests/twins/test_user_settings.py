"""Right layers at settings that no twin is built with: `check` must accuse none."""

import numpy as np
import pytest

import twinsolve
from twinsolve.unrolled import (
    CrissCross,
    Kernel,
    Local,
    Sinkhorn,
    Sparsemax,
    TopK,
    Twicing,
)
from twinsolve.unrolled.kernel_smoothing import Entmax

X = np.random.default_rng(0).standard_normal((24, 8))
# Keys without weight: a column of zeros, which no factor balances.
SPARSE = {
    "sparsemax": Sparsemax,
    "entmax": Entmax,
    "top-k": lambda: TopK(4),
    "window": lambda: Local(1),
    "criss-cross": lambda: CrissCross(6),
    "kernel that vanishes": lambda: Kernel("gaussian", 1.0),
}


def breaks(layer):
    return [(x.law, x.error, x.why) for x in twinsolve.check(layer, X).broken]


@pytest.mark.parametrize("name", SPARSE)
def test_balanced_matrices_with_columns_of_zeros_are_right(name):
    assert breaks(Sinkhorn(SPARSE[name]())) == []


@pytest.mark.parametrize(
    "layer",
    [CrissCross(3), CrissCross(6), Local(1, width=5), Twicing(CrissCross(6))],
    ids=lambda x: f"{type(x).__name__}({x.extra_repr()})",
)
def test_queries_whose_neighbours_are_all_hidden_have_the_output_zero(layer):
    assert breaks(layer) == []
