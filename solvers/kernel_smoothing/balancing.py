"""Doubly stochastic smoothers by Sinkhorn balancing."""

import warnings

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from ...validation import check_integer, check_positive
from ..inputs import Array, as_array, check_matrix, rounding_error


def sinkhorn(logits: ArrayLike, *, tol: float = 1e-9, max_iter: int = 10_000) -> Array:
    """Scale rows and columns of ``K = exp(logits)`` until all of them sum to 1.

    The result is the doubly stochastic matrix that is nearest to K::

        min_P sum_ij P_ij log(P_ij / K_ij)   subject to   P 1 = 1, P^T 1 = 1

    and has the form ``P_ij = exp(f_i + logits_ij + g_j)``. Potentials f and g are updated in turn,
    in the log domain. The maxima of rows and columns are subtracted first, so that common offsets
    cost no digits. If the logits are symmetric, ``f = g`` is the mean of both updates, and the
    result is symmetric. Near the result, an update multiplies the error by the square of the second
    singular value of P, or by ``(1 - mu) / 2`` with mu the least eigenvalue of P if P is symmetric.

    An entry of minus infinity makes a zero of K. If no permutation matrix within the pattern of K
    uses an entry, every doubly stochastic matrix of that pattern is zero there, and so is P.

    A doubly stochastic A commutes with filters of the tokens' mean:
    ``(I + w H) A = A (I + w H)`` with ``H = I - 11^T / N``. The softmax in general does not.

    Parameters
    ----------
    logits : array-like of shape (n_samples, n_samples)
        Finite, or minus infinity for a weight of zero.
    tol : float, default=1e-9
        Largest deviation of a row or column sum from 1, see `marginal_violation`. A deviation of
        2e-13, the level of rounding, is always accepted.
    max_iter : int, default=10000
        Largest number of updates of all rows and columns.

    Returns
    -------
    ndarray of shape (n_samples, n_samples)
        float32 if the logits are, else float64; computed in float64.

    Raises
    ------
    ValueError
        On NaN, plus infinity, a matrix that is not square, or a pattern of zeros that no doubly
        stochastic matrix has.

    Warns
    -----
    ConvergenceWarning
        If a sum of the result, before rounding to float32, deviates by more than `tol` and 2e-13.
        Logits whose potentials are in the thousands take thousands of updates.

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
    L = L - L.max()  # exact, where means of the maxima of two rows may be rounded
    half = 0.5 * L.max(axis=1)
    while np.abs(half).max() > 1:  # each pass at least halves the maxima
        L = L - (half[:, None] + half)
        half = 0.5 * L.max(axis=1)
    return L


def _check_logits(logits: ArrayLike) -> tuple[Array, np.dtype]:
    """Return logits in float64, minus infinity where P must be zero, and their dtype."""
    raw = as_array(logits, "logits")
    zeros = np.isneginf(raw) if raw.dtype.kind == "f" else np.zeros(raw.shape, bool)
    checked = _check_square(np.where(zeros, 0, raw) if zeros.any() else raw, "logits")
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
    """Return a mask of the entries that lie on some permutation matrix of the pattern."""
    columns = maximum_bipartite_matching(csr_array(pattern), perm_type="column")
    if (columns < 0).any():
        raise ValueError(
            "logits: no doubly stochastic matrix has these zeros (entries of minus infinity): some "
            "rows share fewer columns with finite entries than there are of these rows"
        )
    # With one permutation on the diagonal, an entry lies on another iff it closes a cycle.
    _, component = connected_components(csr_array(pattern[:, columns]), connection="strong")
    permuted = np.zeros_like(pattern)
    permuted[:, columns] = component[:, None] == component
    return permuted & pattern
