"""Sparse coding with an l1 penalty: the problem that sparse attention unrolls.

Signals and atoms are rows: ``C @ dictionary`` reconstructs the signals.
"""

import warnings

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, vstack
from sklearn.exceptions import ConvergenceWarning

from .solution import Array, Solution, check_integer, check_lam, check_matrix, check_positive

_BLOCK_ROWS = 256
_TOL = 1e-6


def sparse_code(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    tol: float = _TOL,
    max_iter: int = 10_000,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> Solution:
    """Sparse codes of the rows of Y in a dictionary, certified.

    ::

        min_C  |Y - C D|_F^2 + lam |C|_1

    Rows decouple; with a per-row `lam` the penalty is ``sum_i lam_i |c_i|_1``. Note the scale: this
    is a Lasso with data term 1/2 at ``lam / 2``, and scikit-learn's ``alpha = lam / (2 n)`` with n
    the number of features.

    Solved by coordinate descent on the Gram matrix of the dictionary (stored once, n_atoms^2
    numbers) with Newton steps on the support, without which coherent atoms would stall it.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0. Row i is zero iff ``lam_i >= lam_max(Y, dictionary)[i]``; the papers give no
        default.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to ``|y_i|^2``.
    max_iter : int, default=10000
        Most passes over the active coordinates of a row.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i, where the dictionary contains the signals; needs
        as many signals as atoms.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.

    Returns
    -------
    Solution
        `coef` is a csr_array of shape (n_signals, n_atoms).

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    EQUATIONS SE-16, SE-17 (Frobenius norm: erratum E3-i), SE-15n for `nonnegative`.

    Examples
    --------
    >>> from twinsolve.solvers import sparse_code
    >>> solution = sparse_code([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0)
    >>> solution.coef.toarray()
    array([[2., 0.]])
    """
    Y, D = _check_problem(Y, dictionary, zero_diagonal=zero_diagonal)
    lams = check_lam(lam, len(Y))
    tol = check_positive(tol, "tol")
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    gram, atoms = _gram(D), D.T.astype(np.float64)
    blocks, iterations = [], []
    for start in range(0, len(Y), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        block = Y[rows].astype(np.float64)
        C, spent = _coordinate_descent(
            gram,
            block @ atoms,
            (block**2).sum(axis=1),
            lams[rows],
            start if zero_diagonal else -1,
            nonnegative,
            tol,
            max_iter,
        )
        blocks.append(csr_array(C))
        iterations.append(spent)
    coef = csr_array(vstack(blocks), dtype=np.result_type(Y, D))
    objective, gap, dual = _certify(Y, D, coef, lams, zero_diagonal, nonnegative)
    _warn_unless_converged(gap, tol)
    return Solution(coef, objective, gap, dual, np.concatenate(iterations), gap <= tol)


def ista(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    n_iter: int,
    step: float | ArrayLike | None = None,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> Solution:
    """Run a given number of ISTA iterations on the sparse coding problem, from zero codes.

    ::

        C <- S_{step lam / 2}( C + step (Y - C D) D^T ),   then diag(C) <- 0 if asked

    for ``min_C |Y - C D|_F^2 + lam |C|_1``. `step` multiplies half the gradient. For
    ``step <= 1 / |D|_2^2`` the objective never increases and after k iterations it is at most
    ``|C* - C_0|_F^2 / (step k)`` above the optimum; a longer step may diverge, and `gap` says so.
    With ``zero_diagonal=True`` and ``Y = dictionary = X`` this is ISTA for sparse self-expression;
    zeroing the diagonal is part of the exact proximal step.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0.
    n_iter : int
        Number of iterations, all of which are run.
    step : float or array-like of shape (n_iter,), optional
        One step length, or one an iteration. None is ``1 / |D^T D|_F``, which is never longer than
        ``1 / |D|_2^2``.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i; needs as many signals as atoms.
    nonnegative : bool, default=False
        Threshold one-sidedly: exact for the same problem with ``C >= 0``.

    Returns
    -------
    Solution
        `coef` is a dense array; `converged` says whether `gap` is at most 1e-6.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``n_iter < 0`` or ``step <= 0``.

    References
    ----------
    Daubechies, Defrise and De Mol (2004); EQUATIONS SE-15, SE-15n, SE-18 and LS-3 (default step).
    The papers print the threshold without the step and the factor 1/2 (erratum E3-d/e), one-sided
    (E3-f), and without the zero diagonal (E3-g).

    Examples
    --------
    >>> from twinsolve.solvers import ista
    >>> ista([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0, n_iter=1, step=1.0).coef
    array([[2., 0.]])
    """
    Y, D = _check_problem(Y, dictionary, zero_diagonal=zero_diagonal)
    lams = check_lam(lam, len(Y))
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    gram, correlation = _gram(D), Y.astype(np.float64) @ D.T.astype(np.float64)
    C = np.zeros_like(correlation)
    for length in _check_steps(step, n_iter, gram):
        C += length * (correlation - C @ gram)
        C = _soft_threshold(C, length * lams[:, None] / 2, nonnegative)
        if zero_diagonal:
            np.fill_diagonal(C, 0)
    C = C.astype(np.result_type(Y, D), copy=False)
    objective, gap, dual = _certify(Y, D, C, lams, zero_diagonal, nonnegative)
    return Solution(C, objective, gap, dual, np.full(len(Y), n_iter), gap <= _TOL)


def lasso_objective(
    Y: ArrayLike, dictionary: ArrayLike, coef: ArrayLike | csr_array, *, lam: float | ArrayLike
) -> Array:
    """Objective ``|y_i - c_i D|^2 + lam_i |c_i|_1`` of each row, in float64.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    coef : array-like or csr_array of shape (n_signals, n_atoms)
    lam : float or array-like of shape (n_signals,)

    Returns
    -------
    ndarray of shape (n_signals,)

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes or ``lam <= 0``.

    References
    ----------
    EQUATIONS SE-12, SE-17.

    Examples
    --------
    >>> from twinsolve.solvers import lasso_objective
    >>> lasso_objective([[3.0]], [[1.0]], [[2.0]], lam=2.0)
    array([5.])
    """
    Y, D = _check_problem(Y, dictionary)
    C = _check_coef(coef, len(Y), len(D))
    residual = Y.astype(np.float64) - C @ D.astype(np.float64)
    return (residual**2).sum(axis=1) + check_lam(lam, len(Y)) * abs(C).sum(axis=1)


def duality_gap(
    Y: ArrayLike,
    dictionary: ArrayLike,
    coef: ArrayLike | csr_array,
    *,
    lam: float | ArrayLike,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> Array:
    """Certified relative suboptimality of any codes, one number a row.

    ``(P(c_i) - D(nu_i)) / |y_i|^2`` with ``P(c) = |y - c D|^2 + lam |c|_1`` and the dual objective
    ``D(nu) = nu . y - |nu|^2 / 4`` at ``nu = 2 a (y - c D)``, the best multiple of the residual
    with ``max_j |d_j . nu| <= lam`` (``max_j d_j . nu`` if nonnegative; j != i where the diagonal
    is zero). It is never smaller than ``(P(c_i) - P*) / |y_i|^2``.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    coef : array-like or csr_array of shape (n_signals, n_atoms)
    lam : float or array-like of shape (n_signals,)
    zero_diagonal, nonnegative : bool, default=False
        The constraints of the problem; codes that violate them have gap infinity.

    Returns
    -------
    ndarray of shape (n_signals,)

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes or ``lam <= 0``.

    References
    ----------
    EQUATIONS SE-12, SE-17 for the scale.

    Examples
    --------
    >>> from twinsolve.solvers import duality_gap
    >>> duality_gap([[3.0]], [[1.0]], [[2.0]], lam=2.0)
    array([0.])
    """
    Y, D = _check_problem(Y, dictionary, zero_diagonal=zero_diagonal)
    C = _check_coef(coef, len(Y), len(D))
    gap = _certify(Y, D, C, check_lam(lam, len(Y)), zero_diagonal, nonnegative)[1]
    if zero_diagonal:
        gap[C.diagonal() != 0] = np.inf
    if nonnegative:
        gap[np.asarray((C < 0).sum(axis=1)).ravel() > 0] = np.inf
    return gap


def lam_max(Y: ArrayLike, dictionary: ArrayLike, *, zero_diagonal: bool = False) -> Array:
    """Smallest penalty for which each row of the codes is zero: ``2 max_j |y_i . d_j|``.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    zero_diagonal : bool, default=False
        Leave j = i out of the maximum, as in self-expression.

    Returns
    -------
    ndarray of shape (n_signals,)

    Raises
    ------
    ValueError
        On NaN, infinity or wrong shapes.

    References
    ----------
    EQUATIONS SE-12.

    Examples
    --------
    >>> from twinsolve.solvers import lam_max
    >>> lam_max([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]])
    array([6.])
    """
    Y, D = _check_problem(Y, dictionary, zero_diagonal=zero_diagonal)
    correlation = np.abs(Y.astype(np.float64) @ D.T.astype(np.float64))
    if zero_diagonal:
        np.fill_diagonal(correlation, 0)
    return 2 * correlation.max(axis=1)


def _check_problem(
    Y: ArrayLike, dictionary: ArrayLike, *, zero_diagonal: bool = False
) -> tuple[Array, Array]:
    D = check_matrix(dictionary, "dictionary")
    Y = check_matrix(Y, "Y", n_features=D.shape[1])
    if zero_diagonal and len(Y) != len(D):
        raise ValueError(
            f"zero_diagonal: needs as many signals as atoms, got {len(Y)} and {len(D)}"
        )
    return Y, D


def _check_coef(coef: ArrayLike | csr_array, n_signals: int, n_atoms: int) -> csr_array:
    if not hasattr(coef, "tocsr"):
        coef = check_matrix(coef, "coef")
    C = csr_array(coef, dtype=np.float64)
    if C.shape != (n_signals, n_atoms):
        raise ValueError(f"coef: must have shape {(n_signals, n_atoms)}, got {C.shape}")
    return C


def _check_steps(step: float | ArrayLike | None, n_iter: int, gram: Array) -> Array:
    if step is None:
        norm = np.linalg.norm(gram)
        step = 1 / norm if norm > 0 else 1.0
    steps = np.asarray(step, dtype=np.float64)
    if steps.shape not in ((), (n_iter,)):
        raise ValueError(f"step: must be a number or hold {n_iter} entries, got {steps.shape}")
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        raise ValueError(f"step: must be finite and > 0, got {step!r}")
    return np.broadcast_to(steps, (n_iter,))


def _gram(D: Array) -> Array:
    D = D.astype(np.float64, copy=False)
    return D @ D.T


def _soft_threshold(Z: Array, threshold: Array, nonnegative: bool) -> Array:
    if nonnegative:
        return np.maximum(Z - threshold, 0)
    return np.sign(Z) * np.maximum(np.abs(Z) - threshold, 0)


def _certify(
    Y: Array,
    D: Array,
    C: Array | csr_array,
    lam: Array,
    zero_diagonal: bool,
    nonnegative: bool,
) -> tuple[Array, Array, Array]:
    """Objective, relative gap and dual point of each row, from the definition in float64."""
    Y, D, C = Y.astype(np.float64), D.astype(np.float64), C.astype(np.float64)
    residual = Y - C @ D
    correlation = residual @ D.T
    if zero_diagonal:
        np.fill_diagonal(correlation, 0)
    largest = (correlation if nonnegative else np.abs(correlation)).max(axis=1).clip(min=0)
    energy, norm = (residual**2).sum(axis=1), (Y**2).sum(axis=1)
    objective = energy + lam * np.abs(C).sum(axis=1)
    feasible = np.divide(lam, 2 * largest, out=np.full(len(Y), np.inf), where=largest > 0)
    unconstrained = (Y * residual).sum(axis=1) / np.where(energy > 0, energy, 1)
    scale = np.clip(unconstrained, 0, feasible)
    dual = 2 * scale[:, None] * residual
    dual_objective = (dual * Y).sum(axis=1) - (dual**2).sum(axis=1) / 4
    gap = (objective - dual_objective).clip(min=0) / np.where(norm > 0, norm, 1)
    return objective, gap, dual


def _warn_unless_converged(gap: Array, tol: float) -> None:
    if (missed := int((gap > tol).sum())) > 0:
        warnings.warn(
            f"{missed} of {len(gap)} rows did not reach the relative duality gap tol={tol:.3g} "
            f"(worst {gap.max():.3g}); increase max_iter, lam or tol",
            ConvergenceWarning,
            stacklevel=3,
        )


@njit(cache=True, nogil=True)
def _coordinate_descent(gram, correlation, energy, lam, first_excluded, nonnegative, tol, max_iter):  # type: ignore[no-untyped-def]
    """Codes of a block of rows; row i leaves atom `first_excluded` + i out unless that is < 0."""
    n_rows, n_atoms = correlation.shape
    codes = np.zeros((n_rows, n_atoms))
    spent = np.zeros(n_rows, dtype=np.int64)
    active = np.empty(n_atoms, dtype=np.int64)
    for i in range(n_rows):
        code, rest = codes[i], correlation[i].copy()
        excluded = first_excluded + i if first_excluded >= 0 else -1
        threshold = lam[i] / 2
        n_active = 0
        for spent_i in range(max_iter):
            spent[i] = spent_i + 1
            if spent_i % 10 == 0:
                # Half the certified tolerance leaves room for the rounding of this cheaper formula.
                gap = _row_gap(code, rest, correlation[i], energy[i], lam[i], excluded, nonnegative)
                if gap <= 0.5 * tol * energy[i]:
                    break
                _newton_steps(gram, correlation[i], code, rest, threshold)
                n_active = 0
                for j in range(n_atoms):
                    size = rest[j] if nonnegative else abs(rest[j])
                    if j != excluded and gram[j, j] > 0 and (code[j] != 0 or size > threshold):
                        active[n_active] = j
                        n_active += 1
            for position in range(n_active):
                j = active[position]
                target = rest[j] + gram[j, j] * code[j]
                if target > threshold:
                    updated = (target - threshold) / gram[j, j]
                elif target < -threshold and not nonnegative:
                    updated = (target + threshold) / gram[j, j]
                else:
                    updated = 0.0
                change = updated - code[j]
                if change != 0:
                    code[j] = updated
                    rest -= change * gram[j]
    return codes, spent


@njit(cache=True, nogil=True)
def _newton_steps(gram, correlation, code, rest, threshold):  # type: ignore[no-untyped-def]
    """Minimise over the present signs, dropping atoms whose codes would change sign."""
    while True:
        support = np.flatnonzero(code)
        size = len(support)
        if size == 0:
            return
        factor, rank = _factor_support(gram, support)
        move = np.zeros(size)
        if rank == size:
            for a in range(size):
                j = support[a]
                move[a] = rest[j] - threshold * np.sign(code[j])
            _solve_factored(factor, size, move)
        else:
            # Atom `rank` is a combination of those before it: exchanging it against them leaves the
            # fit as it is, so move in the direction that does not raise the l1 norm.
            move[:rank] = factor[rank, :rank]
            _back_substitute(factor, rank, move)
            slope = np.sign(code[support[rank]])
            for b in range(rank):
                slope -= move[b] * np.sign(code[support[b]])
            move[rank] = -1.0
            move *= 1.0 if slope >= 0 else -1.0
        length, first = 1.0 if rank == size else np.inf, -1
        for a in range(size):
            here = code[support[a]]
            if here * move[a] < 0 and -here / move[a] < length:
                length, first = -here / move[a], a
        if rank < size and first < 0:
            return
        for a in range(size):
            j = support[a]
            updated = 0.0 if a == first else code[j] + length * move[a]
            rest -= (updated - code[j]) * gram[j]
            code[j] = updated
        if first < 0:
            return


@njit(cache=True, nogil=True)
def _factor_support(gram, support):  # type: ignore[no-untyped-def]
    """Cholesky factor of the support's Gram matrix, up to the first dependent atom: (L, rank)."""
    size = len(support)
    factor = np.zeros((size, size))
    for a in range(size):
        for b in range(a + 1):
            value = gram[support[a], support[b]]
            for c in range(b):
                value -= factor[a, c] * factor[b, c]
            if a > b:
                factor[a, b] = value / factor[b, b]
            elif value > 1e-12 * gram[support[a], support[a]]:
                factor[a, a] = np.sqrt(value)
            else:
                return factor, a
    return factor, size


@njit(cache=True, nogil=True)
def _solve_factored(factor, size, x):  # type: ignore[no-untyped-def]
    for a in range(size):
        for b in range(a):
            x[a] -= factor[a, b] * x[b]
        x[a] /= factor[a, a]
    _back_substitute(factor, size, x)


@njit(cache=True, nogil=True)
def _back_substitute(factor, size, x):  # type: ignore[no-untyped-def]
    for a in range(size - 1, -1, -1):
        for b in range(a + 1, size):
            x[a] -= factor[b, a] * x[b]
        x[a] /= factor[a, a]


@njit(cache=True, nogil=True)
def _row_gap(code, rest, correlation, energy, lam, excluded, nonnegative):  # type: ignore[no-untyped-def]
    explained, remaining, mass, largest = 0.0, 0.0, 0.0, 0.0
    for j in range(len(code)):
        explained += code[j] * correlation[j]
        remaining += code[j] * rest[j]
        mass += abs(code[j])
        if j != excluded:
            largest = max(largest, rest[j] if nonnegative else abs(rest[j]))
    alignment = energy - explained
    residual = alignment - remaining
    scale = alignment / residual if residual > 0 else 0.0
    if 2 * largest * scale > lam:
        scale = lam / (2 * largest)
    dual = 2 * max(scale, 0.0) * alignment - max(scale, 0.0) ** 2 * residual
    return residual + lam * mass - dual
