"""Formulas that the statements on nonlocal energy share with the tests of its solvers."""

import numpy as np
from scipy.special import softmax


def fitted_asymmetry(logits):
    """How far A is from ``diag(d)^-1 K`` with K symmetric, d fitted on the first row and column.

    A step ``v - P grad J(v)`` with P diagonal is ``(I - P L) v`` with L symmetric: it needs
    ``A_ij / p_i = A_ji / p_j``, and the first row and column leave one candidate for p.
    """
    A = softmax(logits, axis=1)
    p = np.append(1, A[1:, 0] / A[0, 1:])
    scaled = A / p[:, None]
    return np.abs(scaled / scaled.T - 1).max()


def attention(n=8, std=1.0, seed=0):
    """Attention matrix with q != k; logits have the given standard deviation."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, n, 16))
    return softmax(std * q @ k.T / 4, axis=1), rng.standard_normal((n, 3))


def kernel(n=8, seed=0, scale=1.0):
    """``exp(k_i . k_j / sqrt(d))``: symmetric, positive definite."""
    X = scale * np.random.default_rng(seed).standard_normal((n, 3))
    return np.exp(X @ X.T / np.sqrt(3))


def transition(K):
    return K / K.sum(axis=1, keepdims=True)


def eigenbasis(K):
    """Eigenvalues of A in rising order, and its eigenvectors as columns."""
    root = np.sqrt(K.sum(axis=1))
    mu, vectors = np.linalg.eigh(K / np.outer(root, root))
    return mu, vectors / root[:, None]
