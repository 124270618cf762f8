"""Sums of weighted differences, accurate for weights of very different sizes."""

from typing import Any

import numpy as np
from scipy.sparse import issparse

from ..inputs import Array
from ..kernels.compiled import jit

EPS = float(np.finfo(np.float64).eps)


def weighted_differences(M: Any, u: Array) -> tuple[Array, Array]:
    """Return ``sum_j M_ij (u_i - u_j)`` for M dense or csr, and a bound on its rounding errors.

    A term is rounded twice, and compensated summation rounds twice more, by half an EPS each. So
    the bound is relative to the sum of absolute terms. For a matrix product it would be relative to
    ``d_i max |u|``.
    """
    total, size = np.zeros_like(u), np.zeros_like(u)
    u = np.ascontiguousarray(u)
    if issparse(M):
        _sum_sparse(M.indptr, M.indices, M.data, u, total, size)
    else:
        _sum_dense(M, u, total, size)
    return total, 3 * EPS * size


@jit
def _sum_dense(M: Array, u: Array, total: Array, size: Array) -> None:
    lost = np.empty(u.shape[1])
    for i in range(u.shape[0]):
        lost[:] = 0
        for j in range(u.shape[0]):
            if M[i, j] != 0:
                _add_term(M[i, j], i, j, u, total, size, lost)


@jit
def _sum_sparse(
    indptr: Array, indices: Array, data: Array, u: Array, total: Array, size: Array
) -> None:
    lost = np.empty(u.shape[1])
    for i in range(u.shape[0]):
        lost[:] = 0
        for k in range(indptr[i], indptr[i + 1]):
            _add_term(data[k], i, indices[k], u, total, size, lost)


@jit
def _add_term(
    weight: float, i: int, j: int, u: Array, total: Array, size: Array, lost: Array
) -> None:  # Kahan's summation
    """Add a weighted difference by compensated summation; `lost` holds what rounding cut off."""
    for c in range(u.shape[1]):
        term = weight * (u[i, c] - u[j, c])
        size[i, c] += abs(term)
        term -= lost[c]
        advanced = total[i, c] + term
        lost[c] = (advanced - total[i, c]) - term
        total[i, c] = advanced
