"""Right layers at settings that no twin is built with: `check` must accuse none."""

import numpy as np
import pytest
import torch

import twinsolve
from twinsolve.unrolled import (
    Attention,
    CrissCross,
    Kernel,
    Linformer,
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


# By the tokens, by their places, and by underflow; the others are zero for the same reasons.
ZEROS = "sparsemax", "window", "kernel that vanishes"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ZEROS)) for name in SPARSE],
)
def test_balanced_matrices_with_columns_of_zeros_are_right(name):
    assert breaks(Sinkhorn(SPARSE[name]())) == []


@pytest.mark.parametrize(
    "layer",
    [CrissCross(3), CrissCross(6), Local(1, width=5), Twicing(CrissCross(6))],
    ids=lambda x: f"{type(x).__name__}({x.extra_repr()})",
)
def test_queries_whose_neighbours_are_all_hidden_have_the_output_zero(layer):
    assert breaks(layer) == []


@pytest.mark.filterwarnings("ignore:Twicing. Linformer is not row stochastic")
@pytest.mark.parametrize("max_length", [24, 32, 64])
@pytest.mark.parametrize("wrap", [lambda x: x, Twicing], ids=["plain", "wrapped"])
def test_laws_on_more_tokens_than_a_layer_takes_are_not_judged(wrap, max_length):
    report = twinsolve.check(wrap(Linformer(max_length, 6)), X)
    unjudged = {x.law for x in report.findings if x.verdict == "not judged"}
    assert report, report
    assert {"sizes", "many tokens", "padding of nan"} <= unjudged
    assert ("far tokens" in unjudged) == (max_length < 40)
    assert f"not judged, on more drawn tokens than the {max_length} that it takes" in str(report)


def test_no_law_is_judged_on_a_layer_for_a_handful_of_tokens():
    report = twinsolve.check(Linformer(9, 3), X[:9])
    assert report, report
    assert [(x.law, x.verdict) for x in report.findings[1:]] == [("all laws", "not judged")]
    batch = torch.from_numpy(X[:9]).float().expand(2, 9, 8)
    report = twinsolve.check(Attention(8, 2, operator=Linformer(9, 3)), (batch,) * 3)
    assert report, report
    assert "not judged, on more drawn tokens than the 9 that it takes: all laws" in str(report)


def test_a_law_broken_on_few_tokens_is_found_where_many_are_not_taken():
    class Doubled(Linformer):
        def attend(self, call):
            return super().attend(call) * (2 if call.k.shape[-2] == 4 else 1)

    broken = twinsolve.check(Doubled(24, 6), X).broken
    assert "sizes" in {x.law for x in broken}
