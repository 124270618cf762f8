"""Formulas that the statements on spectral filtering share with the tests of its solvers."""

import numpy as np
from scipy.special import softmax


def fourier(n):
    """The unitary transform, entry by entry."""
    return np.array(
        [[np.exp(-2j * np.pi * j * k / n) / np.sqrt(n) for k in range(n)] for j in range(n)]
    )


def smoother(n, seed, scale=1.0):
    return softmax(scale * np.random.default_rng(seed).standard_normal((n, n)), axis=1)


def mean_absolute_cosine(rows):
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    n = len(rows)
    return (np.abs(unit @ unit.T).sum() - n) / (n * (n - 1))


def logits_of(kind, n, alpha, seed):
    """Logits in [-alpha, alpha], random and adversarial."""
    rng = np.random.default_rng(seed)
    if kind == "gaussian":
        P = rng.standard_normal((n, n))
        return alpha * P / np.abs(P).max()
    if kind == "signs":
        return alpha * rng.choice([-1.0, 1.0], (n, n))
    if kind == "two groups":
        P = np.full((n, n), -alpha)
        P[: n // 2, 0] = P[n // 2 :, -1] = alpha
        return P
    if kind == "one hot":
        return alpha * (2 * np.eye(n) - 1)
    if kind == "constant":
        return np.full((n, n), alpha)
    return alpha * rng.uniform(-1, 1, (n, 1)) * np.ones((n, n))


def high(X):
    return X - X.mean(axis=0)
