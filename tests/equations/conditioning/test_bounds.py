import numpy as np
import pytest
import scipy.linalg


def test_erratum_e4_n_the_least_singular_value_need_not_be_below_one():
    X = np.random.default_rng(0).standard_normal((20, 200, 10))
    assert np.linalg.svd(X, compute_uv=False)[:, -1].min() > 9


def test_erratum_e4_o_channels_of_a_depthwise_convolution_have_their_own_matrices():
    """Filters (0, 1, 0) and (1, e, 1), zero padding, on two tokens that are the identity."""
    e = 1e-3
    maps = [np.eye(2), np.array([[e, 1], [1, e]])]
    output = np.stack([T @ x for T, x in zip(maps, np.eye(2), strict=True)], axis=1)
    printed = np.linalg.cond(scipy.linalg.block_diag(*maps)) * np.linalg.cond(np.eye(2))
    assert printed == pytest.approx(1.002, abs=1e-5)
    assert np.linalg.cond(output) == pytest.approx(2000, rel=1e-6)
