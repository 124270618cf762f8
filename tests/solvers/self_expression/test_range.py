"""Data whose squares are no normal numbers are refused, in the name that they were given by."""

import numpy as np
import pytest

from twinsolve.solvers import (
    basis_pursuit_self_expression,
    robust_low_rank_self_expression,
    sparse_self_expression,
)


@pytest.mark.parametrize("scale", [1e-160, 1e160])
@pytest.mark.parametrize(
    ("solve", "settings"),
    [
        (sparse_self_expression, {"lam": 1.0}),
        (sparse_self_expression, {"lam": 1.0, "affine": True}),
        (basis_pursuit_self_expression, {}),
        (basis_pursuit_self_expression, {"affine": True}),
        (robust_low_rank_self_expression, {"lam": 1.0}),
    ],
)
def test_data_out_of_range_are_refused_by_their_name(solve, settings, scale):
    X = scale * np.random.default_rng(0).standard_normal((9, 5))
    with pytest.raises(
        ValueError, match=r"^X: the largest entry of row 0 is .* rescale to between"
    ):
        solve(X, **settings)
