"""Filters as attention: data-dependent filters, bilateral filter, NLM, BSA and their limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from twinsolve.solvers import nadaraya_watson
from twinsolve.solvers.kernel_smoothing import weighted_least_squares_residual

from ...equations.kernel_smoothing.formulas import (
    attention,
    concatenated,
    draw,
    on_sphere,
)


def bilateral(y, p, v, h_y, h_p):
    """Bilateral filter on tokens by kernel regression: ``h^2 = 2 s^2`` at s^2 = 1/2."""
    features = np.hstack([y / h_y, p / h_p])
    return nadaraya_watson(features, features, v, bandwidth=np.sqrt(0.5))


def test_without_positive_mass_there_is_no_minimiser_if12():
    K, y = np.array([[1.0, -2.0]]), np.array([[0.0], [1.0]])
    stationary = K @ y / K.sum()
    values = [(K @ (y - u) ** 2).item() for u in (stationary, stationary + 5)]
    assert values[1] < values[0]
    with pytest.raises(ValueError, match="weights: must be >= 0"):
        weighted_least_squares_residual(K, y, stationary)


def test_attention_is_the_filter_with_kernel_k_sa_if17_theorem_iii1(tokens, encode, sdpa, rounding):
    p = encode(len(tokens), 4)
    x = tokens + p
    u = sdpa(x, x, tokens)
    logits = x @ x.T / 2
    # The scale of a row of K_SA is free, so exp does not overflow.
    K = np.exp(logits - logits.max(axis=1, keepdims=True))
    tolerance = max(1e-10, rounding(np.ones(1), logits))
    assert weighted_least_squares_residual(K, tokens, u).max() < tolerance


def test_values_must_be_y_and_not_x_theorem_iii1_erratum_e0c(encode, sdpa):
    y, p = draw(8, 4), encode(8, 4)
    x = y + p
    A = softmax(x @ x.T / 2, axis=1)
    assert_allclose(sdpa(x, x, x) - sdpa(x, x, y), A @ p, atol=1e-13)
    assert np.abs(A @ p).max() > 0.5
    assert weighted_least_squares_residual(A, y, sdpa(x, x, y)).max() < 1e-14
    assert weighted_least_squares_residual(A, y, sdpa(x, x, x)).min() > 1e-2


def test_natural_bandwidth_of_bsa_is_not_that_of_the_filter_erratum_e0q(encode):
    """Equation 21 needs ``h^2 = sqrt d`` where equation 13 needs ``2 sqrt d``."""
    y, p = draw(8, 4), encode(8, 4)
    q, _ = concatenated(y, p, np.eye(4), np.eye(4), 2, 2)
    whole, cross = (y + p) @ (y + p).T / 2, (y @ p.T + p @ y.T) / 2
    assert np.abs(attention(q @ q.T, y) - attention(whole - cross, y)).max() > 1e-2
    y = on_sphere(y)
    h = np.sqrt(2 * 2)
    assert_allclose(bilateral(y, p, y, h, h), attention(y @ y.T / 2 + p @ p.T / 2, y), atol=1e-13)
    wrong = bilateral(y, p, y, np.sqrt(2), np.sqrt(2))
    assert np.abs(wrong - attention(y @ y.T / 2 + p @ p.T / 2, y)).max() > 1e-2
