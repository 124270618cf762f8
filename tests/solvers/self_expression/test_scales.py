"""Penalties on the scales of the literature."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import outlier_self_expression, sparse_code, sparse_self_expression
from twinsolve.solvers.self_expression import (
    lam_from_alpha,
    lam_from_gamma,
    outlier_lams_from_alpha,
)
from twinsolve.solvers.sparse_coding import lam_max


def test_outlier_scale_is_that_of_the_circulated_code_cl3():
    """SSC on ``[X; I / g]`` at ``mu = alpha / m`` gives C, and ``E = C_e / g``."""
    X = np.random.default_rng(0).standard_normal((9, 5))
    g = 20 / np.abs(X).sum(axis=1).max()
    dictionary = np.vstack([X, np.eye(5) / g])
    G = np.abs(X @ dictionary.T)
    G[np.arange(9), np.arange(9)] = 0
    lam = 2 * G.max(axis=1).min() / 20
    codes = np.zeros((9, 14))
    for i, x in enumerate(X):
        others = np.delete(dictionary, i, axis=0)
        codes[i] = np.insert(sparse_code([x], others, lam=lam, tol=1e-12).coef.toarray(), i, 0)
    penalties = dict(zip(("lam", "lam_outlier"), outlier_lams_from_alpha(X, 20.0), strict=True))
    found = outlier_self_expression(X, tol=1e-12, **penalties)
    C = found.coef.toarray()
    assert_allclose(C, codes[:, :9], atol=1e-5)
    missed = X - C @ X
    E = np.sign(missed) * np.maximum(np.abs(missed) - penalties["lam_outlier"] / 2, 0)
    assert_allclose(E, codes[:, 9:] / g, atol=1e-5)


def test_scales_of_the_literature():
    X = np.random.default_rng(0).standard_normal((9, 5))
    G = np.abs(X @ X.T)
    np.fill_diagonal(G, 0)
    m = G.max(axis=1).min()
    # SSC paper: |C|_1 + mu/2 |X - CX|^2 with mu = alpha / m.
    assert lam_from_alpha(X, 7.0) == pytest.approx(2 / (7.0 / m))
    counts = np.diff(sparse_self_expression(X, lam=lam_from_alpha(X, 0.999)).coef.indptr)
    assert (counts == 0).any()
    assert (np.diff(sparse_self_expression(X, lam=lam_from_alpha(X, 1.05)).coef.indptr) > 0).all()
    # EnSC: 1/2 |x - cX|^2 + lam_i |c|_1 with lam_i = max |x_i . x_j| / gamma.
    assert_allclose(lam_from_gamma(X, 3.0), 2 * G.max(axis=1) / 3.0)
    assert_allclose(lam_from_gamma(X, 1.0), lam_max(X, X, zero_diagonal=True))
    # Circulated faces: g = alpha / max |x|_1, mu = alpha / m over [X; I / g], E = C_e / g.
    g = 20 / np.abs(X).sum(axis=1).max()
    extended = np.maximum(G.max(axis=1), np.abs(X).max(axis=1) / g).min()
    lam, lam_outlier = outlier_lams_from_alpha(X, 20.0)
    assert lam == pytest.approx(2 * extended / 20)
    assert lam / lam_outlier == pytest.approx(1 / g)
