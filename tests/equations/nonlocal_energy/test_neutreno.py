import numpy as np
from numpy.testing import assert_allclose

from .formulas import attention, eigenbasis, kernel, transition


def test_difference_form_has_the_coefficient_lam_minus_one_eq_29_b3():
    """``u' = sum_j A_ij (u_j - u_i) + lam f_i - (lam - 1) u_i``; lam in its place is wrong."""
    A, f = attention()
    u, lam = np.random.default_rng(1).standard_normal(f.shape), 0.6
    pulled = np.stack([sum(A[i, j] * (u[j] - u[i]) for j in range(8)) for i in range(8)])
    step = A @ u + lam * (f - u)
    assert_allclose(pulled + lam * f - (lam - 1) * u, step, atol=1e-14)
    assert np.abs(pulled + lam * f - lam * u - step).max() > 0.1


def test_attention_scale_response_in_the_eigenbasis():
    """``(1 + w) A - w 11^T/N`` has the eigenvalues (1 + w) mu, but 1 for the constant tokens.

    In A's eigenbasis it is diagonal but for the row of the constants, into which the other vectors'
    means go; without that row wherever A is doubly stochastic.
    """
    K, omega = kernel(7, scale=0.8), 0.4
    mu, V = eigenbasis(K)
    scaled = (1 + omega) * transition(K) - omega / 7
    inside = np.linalg.solve(V, scaled @ V)
    response = np.append((1 + omega) * mu[:-1], 1)
    assert_allclose(inside.diagonal(), response, atol=1e-10)
    assert_allclose(inside[:-1], np.diag(response)[:-1], atol=1e-10)
    assert np.abs(inside[-1, :-1]).max() > 1e-3
    eigenvalues = np.sort(np.linalg.eigvals(scaled).real)
    assert_allclose(eigenvalues, np.sort(response), atol=1e-10)
    ring = np.exp(-np.minimum(np.arange(7), 7 - np.arange(7)))
    S = transition(np.stack([np.roll(ring, i) for i in range(7)]))
    mu, V = eigenbasis(S)
    response = np.append((1 + omega) * mu[:-1], 1)
    assert_allclose(((1 + omega) * S - omega / 7) @ V, response * V, atol=1e-10)
