"""Sparse mixture of experts as a sparse code in a dictionary (IF-32, IF-33), and IF-KSVD."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import softmax

from .formulas import update_atom

SEED = st.integers(0, 500)


N, D, M, HIDDEN = 7, 4, 5, 3


def experts(seed):
    """Tokens X (N, d), P (M, d, k'), Q (M, k', d) and router scores (N, M)."""
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((N, D)),
        rng.standard_normal((M, D, HIDDEN)),
        rng.standard_normal((M, HIDDEN, D)),
        rng.standard_normal((N, M)),
    )


def gates(scores, k, *, renormalized=False):
    """Top k of the softmax over all experts, or the softmax over the top k."""
    kept = scores >= np.sort(scores, axis=1)[:, [-k]]
    if renormalized:
        return softmax(np.where(kept, scores, -np.inf), axis=1)
    return np.where(kept, softmax(scores, axis=1), 0)


def mixture(X, P, Q, g):
    """Literally: each expert P_j relu(Q_j x), weighted by its gate."""
    Y = np.zeros_like(X)
    for i, x in enumerate(X):
        for j in range(M):
            Y[i] += g[i, j] * P[j] @ np.maximum(Q[j] @ x, 0)
    return Y


def code(X, Q, g):
    return np.concatenate([g[:, [j]] * np.maximum(X @ Q[j].T, 0) for j in range(M)], axis=1)


@pytest.mark.parametrize("renormalized", [False, True])
@given(seed=SEED, k=st.integers(1, M))
def test_is_a_sparse_code_in_a_dictionary_if32_if33(renormalized, seed, k):
    X, P, Q, scores = experts(seed)
    g = gates(scores, k, renormalized=renormalized)
    Z, dictionary = code(X, Q, g), np.concatenate(list(P), axis=1)
    assert dictionary.shape == (D, M * HIDDEN)
    assert_allclose(Z @ dictionary.T, mixture(X, P, Q, g), atol=1e-12)
    assert (np.count_nonzero(Z, axis=1) <= k * HIDDEN).all()
    assert (Z >= 0).all()


def test_number_of_nonzeros_is_attained():
    X, _, Q, scores = experts(0)
    Z = code(np.abs(X), np.abs(Q), gates(scores, 2))
    assert (np.count_nonzero(Z, axis=1) == 2 * HIDDEN).all()


@pytest.mark.parametrize("k", [1, 2, M - 1])
def test_printed_width_of_the_dictionary_does_not_fit_e0o(k):
    """d x (M k) is printed, with k experts active: the first M k atoms do not give the mixture."""
    X, P, Q, scores = experts(0)
    g = gates(scores, k)
    Z, dictionary = code(X, Q, g), np.concatenate(list(P), axis=1)
    width = M * k
    printed = Z[:, :width] @ dictionary[:, :width].T
    fits = np.allclose(printed, mixture(X, P, Q, g), atol=1e-12)
    assert fits == (k >= HIDDEN)


@given(seed=SEED, k=st.integers(1, M - 1))
def test_readings_of_the_router_differ_by_the_mass_that_was_kept_e0p(seed, k):
    X, P, Q, scores = experts(seed)
    first, second = gates(scores, k), gates(scores, k, renormalized=True)
    mass = first.sum(axis=1, keepdims=True)
    assert (mass < 1).all()
    assert_allclose(second, first / mass, rtol=1e-12)
    Y = mixture(X, P, Q, second)
    assert_allclose(mixture(X, P, Q, first), mass * Y, atol=1e-12)
    assert np.abs((mass - 1) * Y).max() > 1e-3 * np.abs(Y).max()


@pytest.mark.parametrize("signals", ["random", "rank one", "zero", "duplicated", "huge"])
@given(seed=SEED, j=st.integers(0, 3))
def test_updating_an_atom_never_increases_the_error_if_ksvd(signals, seed, j):
    """From any codes and atoms, good or not, and the support only shrinks."""
    rng = np.random.default_rng(seed)
    S = rng.standard_normal((9, 5))
    if signals == "rank one":
        S = np.outer(S[:, 0], S[0])
    elif signals == "zero":
        S = 0 * S
    elif signals == "duplicated":
        S[1:] = S[0]
    elif signals == "huge":
        S *= 1e6
    C = rng.standard_normal((9, 4)) * (rng.random((9, 4)) < 0.5)
    dictionary = rng.standard_normal((4, 5))
    before = np.linalg.norm(S - C @ dictionary)
    new, atoms = update_atom(S, C, dictionary, j)
    assert np.linalg.norm(S - new @ atoms) <= before * (1 + 1e-12)
    assert not new[C == 0].any()
