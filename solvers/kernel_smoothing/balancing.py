"""Doubly stochastic smoothers by Sinkhorn balancing."""

import warnings

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from ..solution import Array, check_integer, check_matrix, check_positive, rounding_error


def sinkhorn(logits: ArrayLike, *, tol: float = 1e-9, max_iter: int = 10_000) -> Array:
    """Scale rows and columns of ``K = exp(logits)`` until all of them sum to 1.

    The result is the doubly stochastic matrix that is nearest to K::

        min_P sum_ij P_ij log(P_ij / K_ij)   subject to   P 1 = 1, P^T 1 = 1

    and has the form ``P_ij = exp(f_i + logits_ij + g_j)``. Potentials f and g are updated in turn,
    in the log domain, after the maxima of rows and columns are taken off: common offsets cost no
    digits. If the logits are symmetric, ``f = g`` takes the mean of both updates, and the result is
    symmetric. Near the result, an update shrinks the error by the square of the second singular
    value of P; if P is symmetric, by ``(1 - mu) / 2`` for its least eigenvalue mu.

    An entry of minus infinity is a zero of K. Entries of K through which no permutation matrix
    inside its pattern passes are zero in every doubly stochastic matrix of that pattern, and so in
    P.

    For a doubly stochastic A, filters of the tokens' mean commute with it:
    ``(I + w H) A = A (I + w H)`` with ``H = I - 11^T / N``, which softmax alone does not give.

    Parameters
    ----------
    logits : array-like of shape (n_samples, n_samples)
        Finite, or minus infinity for a weight of zero.
    tol : float, default=1e-9
        Largest deviation of a row or column sum from 1, see `marginal_violation`. Sums are no
        better than rounding, 2e-13.
    max_iter : int, default=10000
        Most updates of all rows and columns.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)
        float32 if the logits are, else float64; computed in float64.

    Raises
    ------
    ValueError
        On NaN, plus infinity, a matrix that is not square, or zeros that no doubly stochastic
        matrix can have.

    Warns
    -----
    ConvergenceWarning
        If sums of the result, before it is rounded to float32, miss both `tol` and 2e-13.
        Logits that want potentials of thousands take thousands of updates.

    References
    ----------
    Sinkhorn and Knopp (1967); Sander, Ablin, Blondel and Peyre, "Sinkformers" (2022); EQUATIONS
    QK-Sinkhorn.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import sinkhorn
    >>> sinkhorn(np.log([[1.0, 2.0], [2.0, 1.0]])).round(6)
    array([[0.333333, 0.666667],
           [0.666667, 0.333333]])
    """
    L, dtype = _check_logits(logits)
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    symmetric = np.array_equal(L, L.T)
    L = _subtract_maxima(L, symmetric)
    f = np.zeros(len(L))
    g = f if symmetric else -logsumexp(L, axis=0)
    for _ in range(max_iter):
        rows = logsumexp(L + g, axis=1)
        if np.abs(np.expm1(f + rows)).max() <= tol:
            break
        if symmetric:
            f = g = 0.5 * (f - rows)
        else:
            f, g = -rows, -logsumexp(L - rows[:, None], axis=0)
    P = np.exp(L + (f[:, None] + g))
    violation = _violation(P)
    if not violation <= max(tol, rounding_error(np.float64)):
        warnings.warn(
            f"row or column sums are off by {violation:.3g} after at most {max_iter} updates, more "
            f"than tol={tol:.3g}; increase max_iter or tol",
            ConvergenceWarning,
            stacklevel=2,
        )
    return P.astype(dtype, copy=False)


def marginal_violation(matrix: ArrayLike) -> float:
    """Largest deviation of a row or column sum from 1: the certificate of `sinkhorn`.

    Parameters
    ----------
    matrix : array-like of shape (n_samples, n_samples)

    Returns
    -------
    float
        ``max(max_i |sum_j P_ij - 1|, max_j |sum_i P_ij - 1|)``, 0 for a doubly stochastic matrix.

    Raises
    ------
    ValueError
        On NaN, infinity, or a matrix that is not square.

    References
    ----------
    EQUATIONS QK-Sinkhorn.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import marginal_violation
    >>> marginal_violation([[0.5, 0.5], [0.25, 0.75]])
    0.25
    """
    return _violation(_check_square(matrix, "matrix").astype(np.float64))


def _violation(P: Array) -> float:
    return float(max(np.abs(P.sum(axis=axis) - 1).max() for axis in (0, 1)))


def _subtract_maxima(L: Array, symmetric: bool) -> Array:
    """Shift rows and columns so that their maxima are 0, or nearly so for symmetric logits."""
    if not symmetric:
        L = L - L.max(axis=1, keepdims=True)
        return L - L.max(axis=0)
    L = L - L.max()  # without rounding, where means of two rows' maxima may round
    half = 0.5 * L.max(axis=1)
    while np.abs(half).max() > 1:  # maxima are halved at least
        L = L - (half[:, None] + half)
        half = 0.5 * L.max(axis=1)
    return L


def _check_logits(logits: ArrayLike) -> tuple[Array, np.dtype]:
    given = np.asarray(logits)
    zeros = np.isneginf(given) if given.dtype.kind == "f" else np.zeros(given.shape, bool)
    checked = _check_square(np.where(zeros, 0, given) if zeros.any() else given, "logits")
    L = checked.astype(np.float64)
    if zeros.any():
        L = np.where(_find_permuted(~zeros), L, -np.inf)
    return L, checked.dtype


def _check_square(matrix: ArrayLike, name: str) -> Array:
    checked = check_matrix(matrix, name)
    if checked.shape[0] != checked.shape[1]:
        raise ValueError(f"{name}: must be square, got shape {checked.shape}")
    return checked


def _find_permuted(pattern: Array) -> Array:
    """Find the entries that lie on some permutation matrix of the pattern."""
    columns = maximum_bipartite_matching(csr_array(pattern), perm_type="column")
    if (columns < 0).any():
        raise ValueError(
            "logits: no doubly stochastic matrix has these zeros (entries of minus infinity): "
            "some rows have fewer columns left between them than they are"
        )
    # With a permutation on the diagonal, an entry lies on another one iff it closes a cycle.
    _, parts = connected_components(csr_array(pattern[:, columns]), connection="strong")
    kept = np.zeros_like(pattern)
    kept[:, columns] = parts[:, None] == parts
    return kept & pattern
