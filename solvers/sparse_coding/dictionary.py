"""Dictionary learning."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.utils import check_random_state

from ...validation import check_integer
from ..solution import Array, check_matrix
from .matching_pursuit import pursue_rows


def ksvd(
    Y: ArrayLike,
    *,
    n_atoms: int,
    n_nonzero: int,
    n_iter: int = 20,
    random_state: int | np.random.RandomState | None = None,
) -> tuple[Array, csr_array, Array]:
    """K-SVD: a dictionary of unit atoms in which the rows of Y have sparse codes.

    ::

        min_{C, D}  |Y - C D|_F^2   subject to   |c_i|_0 <= n_nonzero,   |d_j| = 1

    Each iteration first codes the rows by orthogonal matching pursuit; a row keeps its previous
    code if that was better. Then it updates the atoms one after another: an atom and its
    coefficients become the leading singular pair of the residual, without this atom, of the rows
    that use it. Neither part increases the objective. An atom that no row uses is replaced by the
    row with the largest residual. The problem is not convex: the answer depends on the start, which
    is random rows of Y.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    n_atoms : int
        At most the number of rows that are not zero.
    n_nonzero : int
        Most non-zeros in a code, from 1 to `n_atoms`.
    n_iter : int, default=20
        Number of iterations; there is no early stopping.
    random_state : int, RandomState or None
        Draws the initial atoms.

    Returns
    -------
    dictionary : ndarray of shape (n_atoms, n_features)
    coef : csr_array of shape (n_signals, n_atoms)
    objective : ndarray of shape (n_iter,)
        After each iteration; never increasing.

    Raises
    ------
    ValueError
        On NaN, infinity, zero rows only, ``n_iter < 1``, or `n_atoms` or `n_nonzero` out of range.

    References
    ----------
    Aharon, Elad and Bruckstein (2006); EQUATIONS IF-KSVD.

    Examples
    --------
    >>> from twinsolve.solvers import ksvd
    >>> Y = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 1.0]]
    >>> dictionary, coef, objective = ksvd(Y, n_atoms=2, n_nonzero=1, random_state=1)
    >>> bool(objective[-1] < 1e-20)
    True
    """
    Y = check_matrix(Y, "Y")
    signals = np.ascontiguousarray(Y, dtype=np.float64)
    usable = np.flatnonzero(signals.any(axis=1))
    if len(usable) == 0:
        raise ValueError("Y: must have a row that is not zero")
    n_atoms = check_integer(n_atoms, "n_atoms", minimum=1, maximum=len(usable))
    n_nonzero = check_integer(n_nonzero, "n_nonzero", minimum=1, maximum=n_atoms)
    n_iter = check_integer(n_iter, "n_iter", minimum=1)
    chosen = check_random_state(random_state).choice(usable, n_atoms, replace=False)
    D = signals[chosen] / np.linalg.norm(signals[chosen], axis=1, keepdims=True)
    C = np.zeros((len(Y), n_atoms))
    objective = np.empty(n_iter)
    for iteration in range(n_iter):
        C = _recode(signals, D, C, n_nonzero)
        residual = signals - C @ D
        for j in range(n_atoms):
            _update_atom(signals, D, C, residual, j)
        objective[iteration] = ((signals - C @ D) ** 2).sum()
    return D.astype(Y.dtype, copy=False), csr_array(C, dtype=Y.dtype), objective


def _recode(Y: Array, D: Array, C: Array, n_nonzero: int) -> Array:
    """New codes of the rows of Y, or those in C where these are better."""
    new = pursue_rows(Y, D, n_nonzero, 0.0).toarray()
    better = ((Y - new @ D) ** 2).sum(axis=1) < ((Y - C @ D) ** 2).sum(axis=1)
    return np.where(better[:, None], new, C)


def _update_atom(Y: Array, D: Array, C: Array, residual: Array, j: int) -> None:
    """Update atom j, its coefficients and the residual in place."""
    users = np.flatnonzero(C[:, j])
    if len(users) == 0:
        worst = int((residual**2).sum(axis=1).argmax())
        if residual[worst].any():
            D[j] = Y[worst] / np.linalg.norm(Y[worst])
        return
    unexplained = residual[users] + np.outer(C[users, j], D[j])
    U, s, Vt = np.linalg.svd(unexplained, full_matrices=False)
    if s[0] > 0:
        D[j], C[users, j] = Vt[0], s[0] * U[:, 0]
    residual[users] = unexplained - np.outer(C[users, j], D[j])
