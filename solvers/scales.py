"""Sizes of arrays: norms that do not overflow, units that divide without rounding."""

from typing import Any

import numpy as np

from .inputs import Array


def unit_under(*arrays: Array, axis: int | None = None) -> Any:
    """Return the largest power of two up to the largest entry; dividing by it is exact.

    It is one number for all arrays, or with `axis` one number for each line along this axis.
    """
    largest = np.max([np.abs(array).max(axis=axis) for array in arrays], axis=0)
    return np.ldexp(1.0, np.frexp(largest)[1] - 1)


def unit_size(X: Array) -> Array:
    """X in float64 divided by `unit_under(X)`, without rounding."""
    unit: Array = X.astype(np.float64) / unit_under(X)
    return unit


def frobenius_norm(X: Array) -> float:
    """Return the Frobenius norm, from scaled entries: no square overflows or vanishes."""
    size = float(np.abs(X).max())
    return size * float(np.linalg.norm(X / size)) if size > 0 else 0.0


def squared_norms(X: Array) -> Array:
    """Return ``|x_i|^2`` of the rows, in float64."""
    return np.einsum("ij,ij->i", X, X, dtype=np.float64)
