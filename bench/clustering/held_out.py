"""Fit on some points and label the others, a block at a time: no matrix of all pairs."""

import time
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from ...solvers.solution import Array

_BLOCK = 1000


def split_rows(n_points: int, n_fit: int | None, seed: int) -> tuple[Array, Array]:
    """Indices of `n_fit` random points and of the others; None, or too many, is all of them."""
    if n_fit is None or n_fit >= n_points:
        return np.arange(n_points), np.arange(0)
    order = np.random.default_rng(seed).permutation(n_points)
    return np.sort(order[:n_fit]), np.sort(order[n_fit:])


def held_out_labels(model: Any, X: Array, labellings: list[Array]) -> tuple[list[Array], float]:
    """Labels of new points for each labelling of the fitted ones, and processor seconds of codes.

    A clusterer without coefficients predicts once; of it, the labelling is its own.
    """
    found = [np.empty(len(X), dtype=int) for _ in labellings]
    seconds = 0.0
    for batch in gen_batches(len(X), _BLOCK):
        start = time.process_time()
        coded = hasattr(model, "coefficients")
        codes = model.coefficients(X[batch]) if coded else model.predict(X[batch])
        seconds += time.process_time() - start
        for labels, new in zip(labellings, found, strict=True):
            new[batch] = model.assign(X[batch], codes, labels) if coded else codes
    return found, seconds
