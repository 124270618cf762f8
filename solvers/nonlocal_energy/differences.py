"""Sums of weighted differences, to full accuracy however far apart the weights are."""

from typing import Any

import numpy as np
from scipy.sparse import issparse

from ..kernels.compiled import jit
from ..solution import Array

EPS = float(np.finfo(np.float64).eps)


def weighted_differences(M: Any, u: Array) -> tuple[Array, Array]:
    """Return ``sum_j M_ij (u_i - u_j)`` for M dense or csr, and a bound on its rounding errors.

    A term rounds twice and compensated summation twice more, by half an EPS each: the bound is
    relative to the sum of absolute terms, where that of a product would be to ``d_i max |u|``.
    """
    total, size = np.zeros_like(u), np.zeros_like(u)
    u = np.ascontiguousarray(u)
    if issparse(M):
        _sparse(M.indptr, M.indices, M.data, u, total, size)
    else:
        _dense(M, u, total, size)
    return total, 3 * EPS * size


@jit
def _dense(M: Array, u: Array, total: Array, size: Array) -> None:
    lost = np.empty(u.shape[1])
    for i in range(u.shape[0]):
        lost[:] = 0
        for j in range(u.shape[0]):
            if M[i, j] != 0:
                _add(M[i, j], i, j, u, total, size, lost)


@jit
def _sparse(
    indptr: Array, indices: Array, data: Array, u: Array, total: Array, size: Array
) -> None:
    lost = np.empty(u.shape[1])
    for i in range(u.shape[0]):
        lost[:] = 0
        for k in range(indptr[i], indptr[i + 1]):
            _add(data[k], i, indices[k], u, total, size, lost)


@jit
def _add(
    weight: float, i: int, j: int, u: Array, total: Array, size: Array, lost: Array
) -> None:  # Kahan's summation
    for c in range(u.shape[1]):
        term = weight * (u[i, c] - u[j, c])
        size[i, c] += abs(term)
        term -= lost[c]
        advanced = total[i, c] + term
        lost[c] = (advanced - total[i, c]) - term
        total[i, c] = advanced
