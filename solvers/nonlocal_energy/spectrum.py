"""Extreme eigenvalues, of small matrices by dense methods and of large ones from products."""

from typing import Any

import numpy as np
from scipy.linalg import eigvalsh
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator, eigs, eigsh

from ..inputs import Array
from .weights import Transitions, Weights

SMALL = 1000
_RESTARTS = 100


def largest_moduli(
    transitions: Transitions, lam: Array, count: int, *, small: int = SMALL, tol: float = 0.0
) -> Array:
    """Return the `count` largest absolute eigenvalues of ``A - diag(lam)``, in descending order.

    The eigenvalues of a triangular A, as under a causal mask, are its diagonal. An Arnoldi
    iteration would hardly find them, as the eigenvectors are nearly parallel.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        Above `small` rows, if the Arnoldi iteration fails at the relative tolerance `tol` (0 is
        machine precision of float64).
    """
    n = len(lam)

    def product(u: Array) -> Array:
        return transitions.product(u) - lam * u

    if _is_triangular(transitions.matrix):
        values = transitions.matrix.diagonal() - lam[:, 0]
    elif n <= small:
        values = np.linalg.eigvals(product(np.eye(n)))
    else:
        operator = LinearOperator((n, n), matvec=lambda x: product(x.reshape(-1, 1)).ravel())
        start = np.random.default_rng(0).standard_normal(n)
        settings = {"ncv": count + 40, "maxiter": _RESTARTS, "return_eigenvectors": False}
        values = eigs(operator, k=count, v0=start, tol=tol, **settings)
    return np.sort(np.abs(values))[::-1][:count]


def _is_triangular(matrix: Any) -> bool:
    """Whether all entries lie on one side of the diagonal."""
    if matrix is None:
        return False
    if issparse(matrix):
        entries = matrix.tocoo()
        side = (entries.row - entries.col)[entries.data != 0]
        return bool((side >= 0).all() or (side <= 0).all())
    if matrix[0, -1] and matrix[-1, 0]:
        return False
    return not np.triu(matrix, 1).any() or not np.tril(matrix, -1).any()


def smallest_eigenvalue(weights: Weights) -> float:
    """Return the smallest eigenvalue of ``diag(d)^-1 K``, from a similar symmetric matrix."""
    root = np.sqrt(weights.degrees + weights.loops)
    loops = (weights.loops / root**2)[:, 0]
    n = len(root)
    if issparse(weights.matrix) and n > SMALL:
        operator = LinearOperator(
            (n, n), matvec=lambda x: (weights.product(x[:, None] / root) / root).ravel() + loops * x
        )
        start = np.random.default_rng(0).standard_normal(n)
        return float(eigsh(operator, k=1, which="SA", v0=start, return_eigenvectors=False)[0])
    matrix = weights.product(np.diag(1 / root[:, 0])) / root + np.diag(loops)
    return float(eigvalsh(matrix)[0])
