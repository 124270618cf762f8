import numpy as np


def test_erratum_e4_n_the_least_singular_value_need_not_be_below_one():
    X = np.random.default_rng(0).standard_normal((20, 200, 10))
    assert np.linalg.svd(X, compute_uv=False)[:, -1].min() > 9
