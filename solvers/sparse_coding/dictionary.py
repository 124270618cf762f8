"""Dictionary learning."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.utils import check_random_state

from ...validation import check_integer
from ..inputs import Array, check_matrix
from .matching_pursuit import pursue_rows
from .problem import check_range


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
    that use it. Last, it clears the dictionary: the row with the largest residual replaces an atom
    where this lowers the objective. The new atom alone codes all rows that it codes better. The
    users of the old atom take the most coherent other atom. So atoms that are unused, used by few
    rows, or nearly equal to another one are replaced, each by a different row. No part increases
    the objective. The problem is not convex: the answer depends on the start, random rows of Y.

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
        On NaN, infinity, rows whose squares lose precision, zero rows only, ``n_iter < 1``, or
        `n_atoms` or `n_nonzero` out of range.

    References
    ----------
    Aharon, Elad and Bruckstein (2006); EQUATIONS IF-KSVD. The paper clears atoms by thresholds of
    use and coherence. Here the objective decides, so that it never increases.

    Examples
    --------
    >>> from twinsolve.solvers import ksvd
    >>> Y = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 1.0]]
    >>> dictionary, coef, objective = ksvd(Y, n_atoms=2, n_nonzero=1, random_state=1)
    >>> bool(objective[-1] < 1e-20)
    True
    """
    Y = check_matrix(Y, "Y")
    check_range(Y, "Y")
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
            _update_atom(D, C, residual, j)
        _clear_atoms(signals, D, C, residual)
        objective[iteration] = ((signals - C @ D) ** 2).sum()
    return D.astype(Y.dtype, copy=False), csr_array(C, dtype=Y.dtype), objective


def _recode(Y: Array, D: Array, C: Array, n_nonzero: int) -> Array:
    """New codes of the rows of Y, or those in C where these are better."""
    new = pursue_rows(Y, D, n_nonzero, 0.0).toarray()
    better = ((Y - new @ D) ** 2).sum(axis=1) < ((Y - C @ D) ** 2).sum(axis=1)
    return np.where(better[:, None], new, C)


def _update_atom(D: Array, C: Array, residual: Array, j: int) -> None:
    """Update atom j, its coefficients and the residual in place."""
    users = np.flatnonzero(C[:, j])
    if len(users) == 0:
        return
    unexplained = residual[users] + np.outer(C[users, j], D[j])
    U, s, Vt = np.linalg.svd(unexplained, full_matrices=False)
    if s[0] > 0:
        D[j], C[users, j] = Vt[0], s[0] * U[:, 0]
    residual[users] = unexplained - np.outer(C[users, j], D[j])


def _clear_atoms(Y: Array, D: Array, C: Array, residual: Array) -> None:
    """Replace atoms by the worst coded rows where the objective falls, all in place."""
    squares, errors = (Y**2).sum(axis=1), (residual**2).sum(axis=1)
    atom, errors_with_new = _propose_atom(Y, squares, errors)
    for j in range(len(D)):
        users, twin = np.flatnonzero(C[:, j]), _find_twin(D, j)
        residual_without = residual[users] + np.outer(C[users, j], D[j])
        twin_codes = (residual_without @ D[twin]) * (twin != j)
        residual_without -= np.outer(twin_codes, D[twin])
        errors_without = errors.copy()
        errors_without[users] = (residual_without**2).sum(axis=1)
        better = errors_with_new < errors_without
        if np.where(better, errors_with_new, errors_without).sum() >= errors.sum():
            continue
        C[users, twin] += twin_codes
        residual[users] = residual_without
        D[j], C[:, j], C[better] = atom, 0, 0
        C[better, j] = Y[better] @ atom
        residual[better] = Y[better] - np.outer(C[better, j], atom)
        errors = (residual**2).sum(axis=1)
        atom, errors_with_new = _propose_atom(Y, squares, errors)


def _propose_atom(Y: Array, squares: Array, errors: Array) -> tuple[Array, Array]:
    """The row with the largest error as an atom, and the errors of rows that it codes alone."""
    worst = errors.argmax()
    atom = Y[worst] / (np.sqrt(squares[worst]) or 1)
    errors_with_new = np.maximum(squares - (Y @ atom) ** 2, 0)
    errors_with_new[worst] = 0
    return atom, errors_with_new


def _find_twin(D: Array, j: int) -> int:
    """Index of the other atom that is most coherent with atom j; j if it is the only one."""
    coherence = np.abs(D @ D[j])
    coherence[j] = -1
    return int(coherence.argmax())
