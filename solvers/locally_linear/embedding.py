"""Embedding by locally linear weights: the smallest eigenvectors of ``(I - C)^T (I - C)``.

Samples are rows.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from ..solution import Array, check_dense_or_sparse, check_integer, check_positive

_MOST_DENSE = 200
_CYCLE = 10
_STEADY = 1e-10  # relative fall of the objective in a step


@dataclass(frozen=True, eq=False)
class Embedding:
    """Coordinates found by `locally_linear_embedding` and the certificate of their quality.

    The certificate is that of `coordinates` in their dtype, computed in float64.

    Attributes
    ----------
    coordinates : ndarray of shape (n_samples, n_components)
        Y, with ``Y^T Y = I`` and ``Y^T 1 = 0``.
    eigenvalues : ndarray of shape (n_components,)
        ``|y - C y|^2`` of each column, ascending; their sum is the objective.
    residual : ndarray of shape (n_components,)
        ``|M y - mu y|`` with ``M = (I - C)^T (I - C)``.
    orthogonality : float
        Largest entry of ``|Z^T Z - I|``, Z the columns of Y and the constant of unit length.
    n_iter : int
        Steps of the block Lanczos iteration; 1 if the matrix was diagonalised whole.
    converged : bool
        Whether every residual is at most ``tol mu``, or of the size of rounding in their dtype.
    """

    coordinates: Array
    eigenvalues: Array
    residual: Array
    orthogonality: float
    n_iter: int
    converged: bool


def locally_linear_embedding(
    weights: ArrayLike | csr_array,
    n_components: int = 2,
    *,
    tol: float = 1e-6,
    max_iter: int = 100,
    random_state: int | np.random.RandomState | None = None,
) -> Embedding:
    """Coordinates that the weights reconstruct best.

    ::

        minimise |Y - C Y|_F^2   subject to   Y^T Y = I,  Y^T 1 = 0

    The columns of Y are the eigenvectors 2 to n_components + 1 of ``M = (I - C)^T (I - C)``, the
    first being constant. Y has the scale of scikit-learn's embedding; the unit covariance of which
    the papers speak, ``Y^T Y / n_samples = I``, takes a factor ``sqrt(n_samples)`` (erratum E3-c).
    The entry of largest magnitude in each column is positive.

    Parameters
    ----------
    weights : sparse array or array-like of shape (n_samples, n_samples)
        C, as `locally_linear_weights` returns it. Rows sum to 1: within 1e-4, they are divided by
        their sums.
    n_components : int, default=2
        Smaller than n_samples.
    tol : float, default=1e-6
        Stop at ``|M y - mu y| <= tol mu`` for every column, or at the size of rounding, ``64 eps
        |I - C|_1 |I - C|_inf``, once the objective no longer falls. Its relative error is then of
        the order of ``tol^2 mu`` over the gap to the next eigenvalue.
    max_iter : int, default=100
        Most steps; each solves ``M Z = B`` for n_components + 1 columns.
    random_state : int, RandomState or None
        For the start of the iteration.

    Returns
    -------
    Embedding
        `coordinates` are float32 if the weights are, else float64; the rest is in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, rows that do not sum to 1 (within 1e-4), too many
        components, or a `random_state` that is none.

    Warns
    -----
    UserWarning
        If the points fall into parts that take no neighbours from outside. The smallest
        eigenvalues are then zeros, and their coordinates only tell the parts apart.
    ConvergenceWarning
        If `max_iter` steps do not reach `tol`.

    References
    ----------
    Roweis and Saul (2000); EQUATIONS SE-10 with erratum E3-c.

    Notes
    -----
    M is singular but for a shift at the level of rounding; its factors are sparse for data on a
    manifold of low dimension. Each step of block Lanczos on its inverse, orthogonal to the
    constant, is followed by a Rayleigh-Ritz step. M is diagonalised whole for up to 200 points,
    and for up to 10 a component, where the basis of the iteration would fill the space.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import locally_linear_embedding, locally_linear_weights
    >>> t = np.linspace(0, 1, 20)
    >>> C = locally_linear_weights(np.c_[np.cos(t), np.sin(t)], n_neighbors=4)
    >>> y = locally_linear_embedding(C, 1).coordinates[:, 0]
    >>> bool(abs(np.corrcoef(t, y)[0, 1]) > 0.99)
    True
    """
    C = check_dense_or_sparse(weights, "weights")
    n_samples, dtype = C.shape[0], C.dtype
    if C.shape[1] != n_samples or n_samples < 2:
        raise ValueError(f"weights: must be square, of 2 rows or more, got shape {C.shape}")
    n_components = check_integer(n_components, "n_components", minimum=1, maximum=n_samples - 1)
    tol = check_positive(tol, "tol", allow_zero=True)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    rng = check_random_state(random_state)
    C = csr_array(C, dtype=np.float64, copy=True)
    C.eliminate_zeros()  # a stored zero links no points
    sums = C.sum(axis=1)
    if np.abs(sums - 1).max() > 1e-4:
        raise ValueError("weights: every row must sum to 1")
    C.data = C.data / np.repeat(sums, np.diff(C.indptr))  # float32 leaves 1e-7

    n_parts = _count_closed_parts(C)
    if n_parts > 1:
        warnings.warn(
            f"the neighbour graph falls into {n_parts} parts without neighbours outside, which the "
            "first coordinates merely tell apart: take more neighbours",
            UserWarning,
            stacklevel=2,
        )
    A = csr_array(eye_array(n_samples) - C)
    problem = _Eigenproblem(A, tol)
    if n_samples <= max(_MOST_DENSE, _CYCLE * (n_components + 1)):
        Y, n_iter = problem.improve(_dense_eigenvectors(A, n_components)), 1
    else:
        Y, n_iter = _lanczos(problem, n_components, max_iter, rng)
    return _certify_coordinates(problem, Y, n_iter, dtype)


class _Eigenproblem:
    """``A^T A y = mu y`` for y orthogonal to the constant, which A maps to zero."""

    def __init__(self, A: csr_array, tol: float) -> None:
        self.A, self.transposed, self.tol = A, csr_array(A.T), tol
        magnitude = abs(A)
        bound = magnitude.sum(axis=0).max() * magnitude.sum(axis=1).max()
        self.rounding = 64 * bound  # times the precision

    def improve(self, Y: Array) -> Array:
        """Orthonormal basis of the same columns that diagonalises ``A^T A`` between them."""
        Y = np.linalg.qr(_center_columns(Y))[0]
        return Y @ np.linalg.svd(self.A @ Y, full_matrices=False)[2][::-1].T

    def residual(self, Y: Array) -> tuple[Array, Array]:
        """Eigenvalues of the columns, and how far they are from being eigenvectors."""
        image = self.A @ Y
        eigenvalues = (image**2).sum(axis=0)
        return eigenvalues, np.linalg.norm(self.transposed @ image - Y * eigenvalues, axis=0)

    def settled(self, eigenvalues: Array, residual: Array, dtype: Any = np.float64) -> Array:
        """Which pairs are as exact as `tol` asks or rounding allows."""
        rounding = float(np.finfo(dtype).eps) * self.rounding
        return residual <= np.maximum(self.tol * eigenvalues, rounding)


def _certify_coordinates(
    problem: _Eigenproblem, Y: Array, n_iter: int, dtype: np.dtype
) -> Embedding:
    Y = Y * np.where(Y[np.abs(Y).argmax(axis=0), np.arange(Y.shape[1])] < 0, -1.0, 1.0)
    Y = Y.astype(dtype).astype(np.float64)
    Y = Y[:, problem.residual(Y)[0].argsort(kind="stable")]  # rounding may swap zeros
    eigenvalues, residual = problem.residual(Y)
    basis = np.column_stack([np.full(len(Y), len(Y) ** -0.5), Y])
    orthogonality = np.abs(basis.T @ basis - np.eye(basis.shape[1])).max()
    converged = bool(problem.settled(eigenvalues, residual, dtype).all())
    if not converged:
        warnings.warn(
            f"relative residuals {residual / eigenvalues} after {n_iter} steps exceed "
            f"tol={problem.tol:.3g}; increase max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )
    coordinates = Y.astype(dtype, copy=False)
    return Embedding(coordinates, eigenvalues, residual, float(orthogonality), n_iter, converged)


def _count_closed_parts(C: csr_array) -> int:
    """Strongly connected parts that no weight leads out of: each has an eigenvalue 0."""
    n_parts, part = connected_components(C, connection="strong")
    rows, columns = C.nonzero()
    left = part[rows][part[rows] != part[columns]]
    return n_parts - len(np.unique(left))


def _dense_eigenvectors(A: csr_array, n_components: int) -> Array:
    M = (A.T @ A).toarray()
    M += np.abs(M).sum(axis=0).max() / len(M)  # the constant becomes the last eigenvector
    return eigh(M, subset_by_index=(0, n_components - 1))[1]


def _lanczos(
    problem: _Eigenproblem, n_components: int, max_iter: int, rng: np.random.RandomState
) -> tuple[Array, int]:
    """Improved Ritz vectors of the inverse, and the number of steps.

    Eigenvalues many orders of magnitude below the others hide these behind rounding of the
    inverse, until the iteration restarts with their vectors in front.
    """
    n_samples, width = problem.A.shape[0], n_components + 1
    solve = _make_inverse(problem)
    found, n_iter = rng.standard_normal((n_samples, width)), 0
    while True:
        block, objective = found, np.inf
        basis = images = np.empty((n_samples, 0))
        for _ in range(min(_CYCLE, max_iter - n_iter)):
            block = _orthonormal(block, basis)
            basis = np.hstack([basis, block])
            block = _center_columns(solve(block))
            images = np.hstack([images, block])
            ritz = eigh(_symmetrize(basis.T @ images))[1][:, ::-1]
            # The images, not the basis: a step of the power method for no solve.
            found = images @ ritz[:, :width]
            Y = problem.improve(found[:, :n_components])
            n_iter += 1
            eigenvalues, residual = problem.residual(Y)
            settled = problem.settled(eigenvalues, residual).all()
            if settled and eigenvalues.sum() >= (1 - _STEADY) * objective:
                return Y, n_iter
            objective = eigenvalues.sum()
        if settled or n_iter == max_iter:
            return Y, n_iter


def _make_inverse(problem: _Eigenproblem) -> Callable[[Array], Array]:
    M = csc_array(problem.transposed @ problem.A)
    shift = 100 * np.finfo(np.float64).eps * M.diagonal().max() or 1.0
    shifted = csc_array(M + shift * eye_array(M.shape[0]))
    factors = splu(
        shifted,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return factors.solve


def _orthonormal(block: Array, basis: Array) -> Array:
    """An orthonormal block, orthogonal to the constant and to `basis`; twice is enough."""
    for _ in range(2):
        block = _center_columns(block)
        block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
    return block


def _center_columns(Y: Array) -> Array:
    return Y - Y.mean(axis=0)


def _symmetrize(T: Array) -> Array:
    return (T + T.T) / 2
