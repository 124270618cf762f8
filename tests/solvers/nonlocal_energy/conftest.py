"""Weights of every kind that a bound may break on."""

import numpy as np
import pytest

KINDS = ["random", "sparse", "gram", "bipartite", "star", "near disconnected", "path", "loops"]


def make_weights(kind, n=9, seed=0):
    """Symmetric nonnegative K without zero rows."""
    rng = np.random.default_rng(seed)
    K = rng.random((n, n))
    if kind == "sparse":
        K = K * (rng.random((n, n)) < 0.15) + np.eye(n, k=1)
    elif kind == "gram":
        X = 3 * rng.standard_normal((n, 2))
        logits = X @ X.T / np.sqrt(2)
        K = np.exp(logits - logits.max()) / 2  # spans many orders of magnitude
    elif kind == "bipartite":
        K[: n // 2, : n // 2] = K[n // 2 :, n // 2 :] = 0
    elif kind == "star":
        K[1:, 1:] = 0
        K[0, 0] = 0
    elif kind == "near disconnected":
        K[: n // 2, n // 2 :] = K[n // 2 :, : n // 2] = 0
        K[0, -1] = 1e-9
    elif kind == "path":
        K = np.eye(n, k=1)
    elif kind == "loops":
        K += np.diag(10.0 ** rng.integers(-6, 7, n))
    return K + K.T


def make_tokens(n=9, n_features=3, seed=0):
    """Columns: random, an indicator of half the tokens, and signs that alternate."""
    rng = np.random.default_rng(seed)
    f = rng.standard_normal((n, n_features))
    if n_features > 1:
        f[:, 1] = np.arange(n) < n // 2
    if n_features > 2:
        f[:, 2] = (-1.0) ** np.arange(n)
    return f


@pytest.fixture(params=["random", "gram", "bipartite", "loops"])
def K(request):
    """A matrix of each kind that has failed by itself."""
    return make_weights(request.param)


@pytest.fixture(scope="session")
def weights_of():
    """The function ``(kind, n, seed) -> K``."""
    return make_weights


@pytest.fixture(scope="session")
def tokens_of():
    """The function ``(n, n_features, seed) -> f``."""
    return make_tokens


@pytest.fixture(scope="session")
def kinds():
    return KINDS
