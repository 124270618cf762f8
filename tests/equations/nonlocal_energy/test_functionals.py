import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import expm


def test_token_similarity_in_matrix_form_nt_e3():
    X = np.random.default_rng(0).standard_normal((6, 3))
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    loop = sum(X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j]) for i, j in pairs) / 30
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert_allclose(((unit.sum(axis=0) ** 2).sum() - 6) / 30, loop, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_the_flow_of_j_ends_in_one_mean_token_nt_remark_1(seed):
    """Eq. 9 is ``du/dt = -(D - K) u``: tokens come nearer to each other, and end equal."""
    rng = np.random.default_rng(seed)
    k, f = np.exp(rng.standard_normal((7, 7))), rng.standard_normal((7, 2))
    K = k + k.T
    flow = K - np.diag(K.sum(axis=1))
    spreads = [np.ptp(expm(time * flow) @ f, axis=0) for time in (0.0, 0.02, 0.1)]
    assert (np.diff(spreads, axis=0) < 0).all()
    assert_allclose(expm(100 * flow) @ f, np.broadcast_to(f.mean(axis=0), f.shape), atol=1e-10)
