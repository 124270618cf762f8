"""Data whose squares are no normal numbers are refused, in the name that they were given by."""

import numpy as np
import pytest

from twinsolve.solvers import (
    basis_pursuit_self_expression,
    least_squares_self_expression,
    low_rank_self_expression,
    low_rank_sparse_self_expression,
    omp_self_expression,
    outlier_self_expression,
    robust_low_rank_self_expression,
    sparse_self_expression,
)
from twinsolve.solvers.self_expression import (
    admm_low_rank_self_expression,
    admm_outlier_self_expression,
    admm_self_expression,
)


def test_data_out_of_range_are_refused_by_their_name():
    for solve, settings in [
        (sparse_self_expression, {"lam": 1.0}),
        (sparse_self_expression, {"lam": 1.0, "affine": True}),
        (basis_pursuit_self_expression, {}),
        (basis_pursuit_self_expression, {"affine": True}),
        (robust_low_rank_self_expression, {"lam": 1.0}),
        (low_rank_sparse_self_expression, {"lam": 1.0, "beta": 1.0}),
        (outlier_self_expression, {"lam": 1.0, "lam_outlier": 1.0}),
        (admm_self_expression, {"lam": 1.0, "penalty": 1.0}),
        (admm_outlier_self_expression, {"lam": 1.0, "lam_outlier": 1.0, "penalty": 1.0}),
        (admm_low_rank_self_expression, {"lam": 1.0, "penalty": 1.0}),
        (least_squares_self_expression, {"lam": 1.0}),
        (low_rank_self_expression, {"lam": 1.0}),
        (omp_self_expression, {"n_nonzero": 2}),
    ]:
        X = np.random.default_rng(0).standard_normal((9, 5))
        words = r"^X: the largest entry of row 0 is .* rescale to between"
        for scale in (1e-160, 1e160):
            with pytest.raises(ValueError, match=words):
                solve(scale * X, **settings)
