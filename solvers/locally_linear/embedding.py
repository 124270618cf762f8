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

from ...validation import check_integer, check_positive
from ..inputs import Array, check_dense_or_sparse
from ..symmetric import leading_eigh

_MOST_DENSE = 200
_CYCLE = 10
_STEADY = 1e-10  # relative decrease of the objective in a step below which it counts as steady


@dataclass(frozen=True, eq=False)
class Embedding:
    """Coordinates found by `locally_linear_embedding`, and the certificate of their quality.

    The certificate refers to `coordinates` after rounding to their dtype; it is computed in
    float64.

    Attributes
    ----------
    coordinates : ndarray of shape (n_samples, n_components)
        Y, with ``Y^T Y = I`` and ``Y^T 1 = 0``.
    eigenvalues : ndarray of shape (n_components,)
        ``|y - C y|^2`` of each column, ascending; their sum is the objective.
    residual : ndarray of shape (n_components,)
        ``|M y - mu y|`` with ``M = (I - C)^T (I - C)``.
    orthogonality : float
        Largest entry of ``|Z^T Z - I|``, where Z holds the columns of Y and the constant column of
        unit length.
    n_iter : int
        Number of steps of the block Lanczos iteration; 1 if the whole matrix was diagonalised.
    converged : bool
        Whether every residual is at most ``tol mu`` or at rounding level in the dtype.
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
    """Coordinates Y that the weights C reconstruct best.

    ::

        minimise |Y - C Y|_F^2   subject to   Y^T Y = I,  Y^T 1 = 0

    The columns of Y are the eigenvectors 2 to n_components + 1 of ``M = (I - C)^T (I - C)``; the
    first eigenvector is constant. Y has the scale of scikit-learn's embedding. For the unit
    covariance of the papers, ``Y^T Y / n_samples = I``, multiply it by ``sqrt(n_samples)`` (erratum
    E3-c). The entry of largest magnitude in each column is positive.

    Parameters
    ----------
    weights : sparse array or array-like of shape (n_samples, n_samples)
        The weights C, as `locally_linear_weights` returns them. Rows must sum to 1 within 1e-4;
        they are divided by their sums.
    n_components : int, default=2
        Smaller than n_samples.
    tol : float, default=1e-6
        Stop if ``|M y - mu y| <= tol mu`` for every column and the objective no longer falls. The
        rounding level ``64 eps |I - C|_1 |I - C|_inf`` is always accepted. The relative error of
        the objective is then of the order of ``tol^2 mu`` over the gap to the next eigenvalue.
    max_iter : int, default=100
        Largest number of steps; each solves ``M Z = B`` for n_components + 1 columns.
    random_state : int, RandomState or None
        Draws the start of the iteration.

    Returns
    -------
    Embedding
        `coordinates` are float32 if the weights are, else float64; all else is float64.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, rows that do not sum to 1 (within 1e-4), too many
        components, or an invalid `random_state`.

    Warns
    -----
    UserWarning
        If the neighbour graph has several parts without neighbours outside. The smallest
        eigenvalues are then zero, and their coordinates only tell the parts apart.
    ConvergenceWarning
        If `max_iter` steps do not reach `tol`.

    References
    ----------
    Roweis and Saul (2000); EQUATIONS SE-10 with erratum E3-c.

    Notes
    -----
    M is singular, so a shift at rounding level is added. Its factors are sparse for data on a
    manifold of low dimension. A step of block Lanczos on the inverse, orthogonal to the constant,
    is followed by a Rayleigh-Ritz step. The whole M is diagonalised for up to 200 points, and for
    up to 10 points a component, where the basis of the iteration would fill the space.

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
        raise ValueError(f"weights: must be square, with at least 2 rows, got shape {C.shape}")
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
            f"the neighbour graph falls into {n_parts} parts without neighbours outside; the first "
            "coordinates only tell these parts apart: take more neighbours",
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
        self.rounding = 64 * bound  # times machine precision: level of rounding errors

    def improve(self, Y: Array) -> Array:
        """Return an orthonormal basis of the span of Y in which ``A^T A`` is diagonal."""
        Y = np.linalg.qr(_center_columns(Y))[0]
        return Y @ np.linalg.svd(self.A @ Y, full_matrices=False)[2][::-1].T

    def residual(self, Y: Array) -> tuple[Array, Array]:
        """Return the Rayleigh quotients mu of the columns y, and norms of ``A^T A y - mu y``."""
        image = self.A @ Y
        eigenvalues = (image**2).sum(axis=0)
        return eigenvalues, np.linalg.norm(self.transposed @ image - Y * eigenvalues, axis=0)

    def settled(self, eigenvalues: Array, residual: Array, dtype: Any = np.float64) -> Array:
        """Return a mask of the eigenpairs whose residual meets `tol` or is at rounding level."""
        rounding = float(np.finfo(dtype).eps) * self.rounding
        return residual <= np.maximum(self.tol * eigenvalues, rounding)


def _certify_coordinates(
    problem: _Eigenproblem, Y: Array, n_iter: int, dtype: np.dtype
) -> Embedding:
    """Fix signs and order of the coordinates, round them, and certify the result."""
    Y = Y * np.where(Y[np.abs(Y).argmax(axis=0), np.arange(Y.shape[1])] < 0, -1.0, 1.0)
    Y = Y.astype(dtype).astype(np.float64)
    Y = Y[:, problem.residual(Y)[0].argsort(kind="stable")]  # rounding may change their order
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
    """Return the number of closed strong components; each has an eigenvalue 0."""
    n_parts, part = connected_components(C, connection="strong")
    rows, columns = C.nonzero()
    open_parts = part[rows][part[rows] != part[columns]]
    return n_parts - len(np.unique(open_parts))


def _dense_eigenvectors(A: csr_array, n_components: int) -> Array:
    """Eigenvectors of the smallest eigenvalues of ``A^T A``, except the constant, by LAPACK."""
    M = (A.T @ A).toarray()
    M += np.abs(M).sum(axis=0).max() / len(M)  # the constant becomes the last eigenvector
    return leading_eigh(-M, n_components)[1]


def _lanczos(
    problem: _Eigenproblem, n_components: int, max_iter: int, rng: np.random.RandomState
) -> tuple[Array, int]:
    """Return improved Ritz vectors of the inverse, and the number of steps.

    Eigenvalues many orders of magnitude below the others make the rounding errors of the inverse
    exceed what belongs to the others. A restart with the vectors of the smallest eigenvalues first
    corrects this.
    """
    n_samples, width = problem.A.shape[0], n_components + 1
    solve = _make_inverse(problem)
    ritz_vectors, n_iter = rng.standard_normal((n_samples, width)), 0
    while True:
        block, objective = ritz_vectors, np.inf
        basis = images = np.empty((n_samples, 0))
        for _ in range(min(_CYCLE, max_iter - n_iter)):
            block = _orthonormal(block, basis)
            basis = np.hstack([basis, block])
            block = _center_columns(solve(block))
            images = np.hstack([images, block])
            ritz = eigh(_symmetrize(basis.T @ images))[1][:, ::-1]
            # Combine the images, not the basis: a step of the power method without a solve.
            ritz_vectors = images @ ritz[:, :width]
            Y = problem.improve(ritz_vectors[:, :n_components])
            n_iter += 1
            eigenvalues, residual = problem.residual(Y)
            settled = problem.settled(eigenvalues, residual).all()
            if settled and eigenvalues.sum() >= (1 - _STEADY) * objective:
                return Y, n_iter
            objective = eigenvalues.sum()
        if settled or n_iter == max_iter:
            return Y, n_iter


def _make_inverse(problem: _Eigenproblem) -> Callable[[Array], Array]:
    """Return a function that multiplies by the inverse of the shifted ``A^T A``."""
    M = csc_array(problem.transposed @ problem.A)
    shift = 100 * np.finfo(np.float64).eps * M.diagonal().max() or 1.0
    shifted = csc_array(M + shift * eye_array(M.shape[0]))
    factors = splu(
        shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )
    return factors.solve


def _orthonormal(block: Array, basis: Array) -> Array:
    """Orthonormalise a block against the constant and `basis`, twice for rounding errors."""
    for _ in range(2):
        block = _center_columns(block)
        block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
    return block


def _center_columns(Y: Array) -> Array:
    return Y - Y.mean(axis=0)


def _symmetrize(T: Array) -> Array:
    return (T + T.T) / 2
