"""Certified sparse codes, by working sets, of many rows at once."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from ...validation import check_integer, check_positive
from ..inputs import Array, as_numbers, check_dense_or_sparse
from ..scales import squared_norms
from ..solution import MORE, ROUNDING, Solution, aim, certified, warn_unless_converged
from .penalty import Penalty
from .problem import TOL, Energies, certify, certify_sparse, check_signals, row_blocks
from .row_blocks import Atoms, Progress, largest_of_rows, solve_rows
from .weights import WeightedAtoms, check_atom_weights, solve_weighted

_NEGLIGIBLE = 0.01  # share of the tolerance by which rounded correlations may change a gap
_CERTIFIED_ROWS = 2048  # at a time


def sparse_code(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    tol: float = TOL,
    l1_ratio: float = 1.0,
    weights: ArrayLike | None = None,
    max_iter: int = 100,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    directory: str | Path | None = None,
) -> Solution:
    """Sparse codes of the rows of Y in a dictionary, certified.

    ::

        min_C  |Y - C D|_F^2 + lam (r |C|_1 + (1 - r) / 2 |C|_F^2),     r = l1_ratio

    with D the `dictionary`. The rows are independent problems; with a `lam` for each row the
    penalty is ``sum_i lam_i |c_i|_1``. Note the scale: the Lasso (r = 1) with the factor 1/2 at the
    data term has the penalty ``lam / 2``, and scikit-learn has ``alpha = lam / (2 n)`` with n the
    number of features.

    An active-set method with an up- and down-dated Cholesky factor solves each row on growing
    working sets. The correlations of many rows at once are one matrix product. The Gram matrix of
    the dictionary is stored where it pays (at most 15,000 atoms); otherwise memory is
    O(n_atoms * 256 + non-zeros). From 25,000 atoms on, a bound can exclude whole cells of atoms of
    similar direction. It is used if a trial on some rows shows that it leaves few atoms to look at.

    Parameters
    ----------
    Y : array-like or sparse array of shape (n_signals, n_features)
    dictionary : array-like or sparse array of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0. For the plain Lasso the code of row i is zero iff ``lam_i >= lam_max(Y,
        dictionary)[i]``. The papers give no default.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to ``|y_i|^2``.
    l1_ratio : float, default=1.0
        In (0, 1]; 1 is the Lasso, smaller values the elastic net.
    weights : array-like of shape (n_atoms,), optional
        Weights w >= 0 of the atoms in the penalty ``sum_ij lam_i w_j |c_ij|`` of the Lasso. An atom
        of weight 0 has no penalty; such atoms take the codes of least squares and of least norm,
        and neither constraint below goes with them. A dual point is orthogonal to them.
    max_iter : int, default=100
        Largest number of working sets for a row.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i, for a dictionary that consists of the signals;
        needs as many signals as atoms.
    nonnegative : bool, default=False
        Add the constraint ``C >= 0``.
    n_jobs : int, optional
        Number of workers that share the rows: threads, unless ``joblib.parallel_config`` names
        another backend (loky, Dask). None is 1, or what that context says. The answer does not
        depend on it.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the blocks of rows, as ``tqdm`` or
        ``rich.progress.track`` do.
    directory : str or Path, optional
        Folder for the codes of finished blocks of rows. If the solve is interrupted and called
        again, it continues from them.

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
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``tol <= 0``, ``max_iter < 1``, `l1_ratio`
        outside (0, 1], or weights that are negative, all 0 or do not go with other arguments.

    See Also
    --------
    sparse_code_path : Solves for many penalties in one call.

    References
    ----------
    EQUATIONS SE-16, SE-17 (Frobenius norm: erratum E3-i), SE-15n for `nonnegative`, CL-2 for
    `l1_ratio`.

    Examples
    --------
    >>> from twinsolve.solvers import sparse_code
    >>> solution = sparse_code([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0)
    >>> solution.coef.toarray()
    array([[2., 0.]])
    """
    given = Y, dictionary
    Y, D = check_signals(Y, dictionary, zero_diagonal=zero_diagonal)
    penalty = Penalty.checked(lam, len(Y), l1_ratio, nonnegative, zero_diagonal)

    def solve(Y: Array, D: Array, tol: float) -> Solution:
        return Lasso(Y, D, tol, max_iter).solve(penalty, None, n_jobs, progress, directory)

    if weights is None:
        solution = solve(Y, D, tol)
    else:
        problem = WeightedAtoms.of(Y, D, check_atom_weights(weights, len(D), penalty))
        solution = solve_weighted(
            problem, penalty, check_positive(tol, "tol"), np.result_type(Y, D), solve
        )
    if weights is None and any(map(issparse, given)):
        solution = _certify_given(solution, given, penalty)
    warn_unless_converged(solution)
    return solution


def _certify_given(solution: Solution, given: tuple[Any, Any], penalty: Penalty) -> Solution:
    """Certify codes of coordinates by the sparse signals and atoms themselves."""
    Y, D = (csr_array(check_dense_or_sparse(Z, "Y"), dtype=np.float64) for Z in given)
    squares = np.asarray(Y.multiply(Y).sum(axis=1))
    return certified(
        solution.coef,
        lambda codes: certify_sparse(Y, D, codes, penalty),
        dtype=solution.coef.dtype,
        tol=solution.tol,
        n_iter=solution.n_iter,
        n_passes=solution.n_passes,
        n_looked=solution.n_looked,
        scale=squares,
    )


def sparse_code_path(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lams: ArrayLike,
    tol: float = TOL,
    l1_ratio: float = 1.0,
    max_iter: int = 100,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
    n_jobs: int | None = None,
) -> list[Solution]:
    """`sparse_code` for many penalties, each started from the codes of the previous one.

    Self-expression is the case ``sparse_code_path(X, X, lams=..., zero_diagonal=True)``.

    Parameters
    ----------
    Y : array-like or sparse array of shape (n_signals, n_features)
    dictionary : array-like or sparse array of shape (n_atoms, n_features)
    lams : array-like of shape (n_lams,) or (n_lams, n_signals)
        Penalties > 0, each one number for all rows or one number for each row. They are solved in
        the order of their means, from the largest to the smallest.
    tol, l1_ratio, max_iter, zero_diagonal, nonnegative, n_jobs
        As in `sparse_code`, for each penalty.

    Returns
    -------
    list of Solution
        In the order of `lams`.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`.

    Raises
    ------
    ValueError
        As `sparse_code`, and if `lams` is empty.

    References
    ----------
    EQUATIONS SE-16, SE-17; Osborne, Presnell and Turlach, "A new approach to variable selection in
    least squares problems" (2000), for the homotopy in the penalty.

    Examples
    --------
    >>> from twinsolve.solvers.sparse_coding import sparse_code_path
    >>> path = sparse_code_path([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lams=[4.0, 0.5])
    >>> [solution.coef.toarray().tolist() for solution in path]
    [[[1.0, 0.0]], [[2.75, 0.25]]]
    """
    Y, D = check_signals(Y, dictionary, zero_diagonal=zero_diagonal)
    values = as_numbers(lams, "lams", np.float64)
    if values.ndim not in (1, 2) or len(values) == 0:
        raise ValueError(
            f"lams: must have shape (n_lams,) or (n_lams, {len(Y)}) with n_lams >= 1, "
            f"got {values.shape}"
        )
    penalties = [
        Penalty.checked(value, len(Y), l1_ratio, nonnegative, zero_diagonal) for value in values
    ]
    problem = Lasso(Y, D, tol, max_iter)
    solutions: dict[int, Solution] = {}
    start = None
    for index in sorted(range(len(values)), key=lambda index: -penalties[index].lam.mean()):
        solutions[index] = problem.solve(penalties[index], start, n_jobs, None, None)
        start = solutions[index].coef.astype(np.float64)
    path = [solutions[index] for index in range(len(values))]
    for solution in path:
        warn_unless_converged(solution)
    return path


class Lasso:
    """A sparse coding problem without its penalty: checked arguments and precomputed arrays."""

    def __init__(self, Y: Array, D: Array, tol: float, max_iter: int) -> None:
        self.dtype = np.result_type(Y, D)
        self.atoms = Atoms(D)
        self.Y = self.atoms.rows if Y is D else Y.astype(np.float64)
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_integer(max_iter, "max_iter", minimum=1)

    def lam_max(self, n_jobs: int | None, *, zero_diagonal: bool = False) -> Array:
        """`lam_max` of the signals; it shares what it computes of the atoms with `solve`."""
        n = len(self.Y)
        own_atom = np.arange(n) if zero_diagonal else np.full(n, -1)
        return 2 * largest_of_rows(self.Y, self.atoms, own_atom, n_jobs)

    def solve(
        self,
        penalty: Penalty,
        start: csr_array | None,
        n_jobs: int | None,
        progress: Progress | None,
        directory: str | Path | None,
    ) -> Solution:
        rows = solve_rows(
            self.Y,
            self.atoms,
            penalty,
            tol=aim(self.tol, self.dtype),
            max_rounds=self.max_iter,
            start=start,
            n_jobs=n_jobs,
            progress=progress,
            directory=directory,
        )
        Y, D = self.Y, self.atoms.rows

        def certify_codes(codes: csr_array) -> tuple[Array, Array, Array]:
            if codes is rows.coef:  # the solver knows the correlations of these codes
                return _certify_by(rows.correlation, Y, self.atoms, codes, penalty, self.tol)
            return certify(Y, D, codes, penalty)

        return certified(
            rows.coef,
            certify_codes,
            dtype=self.dtype,
            tol=self.tol,
            cure=ROUNDING if (rows.n_iter < self.max_iter).all() else MORE,
            n_iter=rows.n_iter,
            n_passes=rows.n_passes,
            n_looked=rows.n_looked,
            scale=squared_norms(Y),
        )


def _certify_by(
    correlation: Array, Y: Array, atoms: Atoms, codes: csr_array, penalty: Penalty, tol: float
) -> tuple[Array, Array, Array]:
    """`certify` by the solver's correlations of the residuals, where they are exact enough.

    Their rounding (`Atoms.rounding`) matters for the gap where large coefficients cancel; such rows
    are certified from exact correlations.
    """
    objective, gap, dual = np.empty(len(Y)), np.empty(len(Y)), np.empty(Y.shape)
    for rows in row_blocks(len(Y), _CERTIFIED_ROWS):
        signals, C, largest, row_penalty = Y[rows], codes[rows], correlation[rows], penalty[rows]
        residual = signals - C @ atoms.rows
        energies = Energies.of(signals, C, residual, row_penalty)
        lower_gap, scale = energies.gap(row_penalty.dual_scale(largest))
        objective[rows], dual[rows] = energies.objective, 2 * scale[:, None] * residual
        rounding = atoms.rounding(C, energies.norm)
        upper_gap, _ = energies.gap(row_penalty.dual_scale(largest + rounding))
        gap[rows] = lower_gap
        unsure = np.flatnonzero(upper_gap - lower_gap > _NEGLIGIBLE * tol)
        if unsure.size:
            exact = certify(signals[unsure], atoms.rows, C[unsure], row_penalty[unsure])
            for array, values in zip((objective, gap, dual), exact, strict=True):
                array[rows][unsure] = values
    return objective, gap, dual
