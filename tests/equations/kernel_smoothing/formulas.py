"""Formulas that the statements on kernel smoothing share with the tests of its solvers."""

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import softmax


def draw(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def norms(x):
    return np.linalg.norm(x, axis=1)


def on_sphere(x, radius=1.0):
    return radius * x / norms(x)[:, None]


def attention(logits, values):
    return softmax(logits, axis=1) @ values


def square(x, y):
    return cdist(x, y, "sqeuclidean")


def concatenated(y, p, Wq, Wk, h_y, h_p):
    q = np.hstack([y @ Wq / h_y, p @ Wq / h_p])
    return q, np.hstack([y @ Wk / h_y, p @ Wk / h_p])
