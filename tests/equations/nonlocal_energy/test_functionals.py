import numpy as np
from numpy.testing import assert_allclose


def test_token_similarity_in_matrix_form_nt_e3():
    X = np.random.default_rng(0).standard_normal((6, 3))
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    loop = sum(X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j]) for i, j in pairs) / 30
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert_allclose(((unit.sum(axis=0) ** 2).sum() - 6) / 30, loop, atol=1e-10)
