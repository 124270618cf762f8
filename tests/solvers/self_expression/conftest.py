import numpy as np
import pytest

KINDS = ["random", "wide", "coherent", "duplicated", "zero padded", "rank deficient"]


def make_points(kind, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((9, 14 if kind == "wide" else 5))
    if kind == "coherent":
        X = 1 + 0.05 * X
    elif kind == "duplicated":
        X[5:] = X[:4]
    elif kind == "zero padded":
        X[3] = 0
        X = np.hstack([X, np.zeros((9, 2))])
    elif kind == "rank deficient":
        X[:, 3:] = X[:, :2]
    return X


@pytest.fixture(params=KINDS)
def X(request):
    """Small data of every kind that has broken a solver."""
    return make_points(request.param)
