"""Extreme eigenvalues: dense where that is cheap, from products where it is not."""

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator, eigs, eigsh

from ..solution import Array
from .weights import Product, Weights

_SMALL = 1000
_RESTARTS = 100


def largest_moduli(product: Product, n: int, count: int) -> Array:
    """Return the `count` largest absolute eigenvalues of a square matrix, in falling order.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        Above 1,000 rows, if the Arnoldi iteration fails.
    """
    if n <= _SMALL:
        values = np.linalg.eigvals(product(np.eye(n)))
    else:
        operator = LinearOperator((n, n), matvec=lambda x: product(x.reshape(-1, 1)).ravel())
        start = np.random.default_rng(0).standard_normal(n)
        settings = {"ncv": count + 40, "maxiter": _RESTARTS, "return_eigenvectors": False}
        values = eigs(operator, k=count, v0=start, **settings)
    return np.sort(np.abs(values))[::-1][:count]


def smallest_eigenvalue(weights: Weights) -> float:
    """Return the smallest eigenvalue of ``diag(d)^-1 K``, by the symmetric matrix similar to it."""
    root = np.sqrt(weights.degrees + weights.loops)
    loops = (weights.loops / root**2)[:, 0]
    n = len(root)
    if issparse(weights.matrix) and n > _SMALL:
        operator = LinearOperator(
            (n, n),
            matvec=lambda x: (weights.product(x[:, None] / root) / root).ravel() + loops * x,
        )
        start = np.random.default_rng(0).standard_normal(n)
        return float(eigsh(operator, k=1, which="SA", v0=start, return_eigenvectors=False)[0])
    matrix = weights.product(np.diag(1 / root[:, 0])) / root + np.diag(loops)
    return float(eigh(matrix, eigvals_only=True, subset_by_index=[0, 0])[0])
