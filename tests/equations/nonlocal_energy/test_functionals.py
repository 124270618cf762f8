import numpy as np
from numpy.testing import assert_allclose

from .formulas import fitted_asymmetry


def test_l2_attention_with_one_projection_is_a_gradient_step_nt_14():
    X = np.random.default_rng(0).standard_normal((7, 3))
    logits = -((X[:, None] - X) ** 2).sum(axis=-1)
    assert fitted_asymmetry(logits) < 1e-12
    assert fitted_asymmetry(2 * X @ X.T) < 1e-12
    assert fitted_asymmetry(2 * X @ X.T - (X**2).sum(axis=1)) < 1e-12  # the row offset cancels


def test_token_similarity_in_matrix_form_nt_e3():
    X = np.random.default_rng(0).standard_normal((6, 3))
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    loop = sum(X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j]) for i, j in pairs) / 30
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert_allclose(((unit.sum(axis=0) ** 2).sum() - 6) / 30, loop, atol=1e-10)
