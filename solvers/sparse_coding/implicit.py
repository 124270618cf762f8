"""Sparse codes with confirmed supports, and the gradients that pass through them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from ..inputs import Array
from ..kernels.support_systems import Supports, factor_rows, pull_rows
from ..kernels.workers import spread
from .penalty import Penalty
from .problem import Energies, row_blocks
from .row_blocks import Atoms, row_bounds, solve_rows

# Gaps at which rows are solved: at first, and again where an atom still violates optimality.
_GAPS = (1e-14, 1e-18)
_ROUNDING = 1e-10  # largest relative violation that counts as rounding


class CodeGradients(NamedTuple):
    """Gradients of a loss with respect to what codes depend on, and their relative error."""

    signals: Array  # (n, p)
    dictionary: Array  # (m, p)
    lam: Array  # (n,)
    ridge: Array  # (n,)
    error: Array  # (n,) bounds of the relative error of h


@dataclass(frozen=True, eq=False)
class ImplicitCodes:
    """Codes of the rows of Y in a dictionary D, optimal up to rounding, with their derivative.

    ::

        c = argmin_c |y - c D|^2 + lam |c|_1 + ridge |c|^2

    With S the support, ``B = D_S``, s the signs and ``M = B B^T + ridge I``: ``c_S = (y B^T - lam/2
    s) M^-1``. Where `margin` is positive, the optimality conditions confirm support and signs. For
    w the gradient of a loss with respect to c, ``h = w_S M^-1`` and ``r = y - c D``, the gradient
    of the loss is h B in y, ``h^T r - c_S^T h B`` in the rows S of D, ``-1/2 h.s`` in lam and
    ``-h.c_S`` in the ridge.

    Attributes
    ----------
    coef : csr_array of shape (n_signals, n_atoms)
    gap : ndarray of shape (n_signals,)
        As in `duality_gap`, of `coef`.
    margin : ndarray of shape (n_signals,)
        A lower bound on the distance of each row from non-differentiability. It is the smallest
        slack of the conditions, ``1 - |2 r.d_j| / lam`` off the support and ``2 |c_j| |d_j|^2 /
        lam`` on it, minus rounding and the error of ``2 r.d_j = lam s_j``. -inf if M is singular.

    References
    ----------
    EQUATIONS IG-1, IG-2, SE-17.
    """

    coef: csr_array
    gap: Array
    margin: Array
    _atoms: Atoms
    _ridge: Array
    _supports: Supports
    _n_jobs: int | None

    def gradients(self, upstream: Array) -> CodeGradients:
        """Return the gradients of a loss; `upstream` is its gradient with respect to the codes."""
        D, supports = self._atoms.rows, self._supports
        upstream = np.ascontiguousarray(upstream, dtype=np.float64)
        pulled, error = np.empty(self.coef.nnz), np.empty(len(self.gap))
        to_signals = np.empty((len(self.gap), D.shape[1]))

        def pull(first: int, stop: int) -> Array:
            to_atoms = np.zeros_like(D)
            out = pulled, to_signals, to_atoms, error
            pull_rows(first, stop, supports, D, self._ridge, upstream, *out)
            return to_atoms

        blocks = spread(pull, row_bounds(len(error)), self._n_jobs, shared=True)
        to_dictionary = sum(blocks, np.zeros_like(D))
        coef = self.coef
        to_lam, to_ridge = (
            csr_array((pulled * factor, coef.indices, coef.indptr), shape=coef.shape).sum(axis=1)
            for factor in (-np.sign(coef.data) / 2, -coef.data)
        )
        return CodeGradients(to_signals, to_dictionary, to_lam, to_ridge, error)


def implicit_codes(
    Y: Array,
    D: Array,
    penalty: Penalty,
    *,
    start: csr_array | None = None,
    max_iter: int = 100,
    n_jobs: int | None = None,
) -> ImplicitCodes:
    """Solve for codes with supports and signs that the optimality conditions confirm.

    Parameters
    ----------
    Y : ndarray of float64 of shape (n_signals, n_features)
    D : ndarray of float64 of shape (n_atoms, n_features)
    penalty : Penalty
    start : csr_array of shape (n_signals, n_atoms), optional
        Codes at which the search begins, such as those of a dictionary that was a little different.
    max_iter : int, default=100
        Largest number of working sets for a row.
    n_jobs : int, optional
        Number of threads that share the rows. The answer does not depend on it.

    Returns
    -------
    ImplicitCodes

    References
    ----------
    EQUATIONS IG-1, SE-17.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding.implicit import implicit_codes
    >>> from twinsolve.solvers.sparse_coding.penalty import Penalty
    >>> codes = implicit_codes(np.array([[3.0, 0.5]]), np.eye(2), Penalty(np.array([2.0])))
    >>> codes.coef.toarray(), codes.margin.round(9).tolist()
    (array([[2., 0.]]), [0.5])
    >>> codes.gradients(np.ones((1, 2))).signals
    array([[1., 0.]])
    """
    atoms = Atoms(D)
    codes, violation = start, np.full(len(Y), np.inf)
    for gap in _GAPS:
        pending = np.flatnonzero(violation > _ROUNDING)
        if not pending.size:
            break
        solved = solve_rows(
            Y[pending],
            atoms,
            penalty[pending],
            tol=gap,
            max_rounds=max_iter,
            start=None if codes is None else codes[pending],
            n_jobs=n_jobs,
        ).coef
        codes = solved if pending.size == len(Y) else _replace_rows(codes, pending, solved)
        supports = _factor(Y, atoms, codes, penalty, n_jobs)
        gaps, margin, violation = _certify(Y, atoms, codes, penalty, supports)
    return ImplicitCodes(codes, gaps, margin, atoms, penalty.ridge, supports, n_jobs)


def _replace_rows(codes: Any, rows: Array, by: csr_array) -> csr_array:
    """Return codes with some rows replaced."""
    order = np.arange(codes.shape[0])
    order[rows] = codes.shape[0] + np.arange(len(rows))
    return csr_array(vstack([codes, by], format="csr")[order])


def _factor(
    Y: Array, atoms: Atoms, codes: csr_array, penalty: Penalty, n_jobs: int | None
) -> Supports:
    """Factor the systems of all rows' supports."""
    sizes = np.diff(codes.indptr).astype(np.int64)
    factor_at = np.concatenate([[0], np.cumsum(sizes * (sizes + 1) // 2)])
    supports = Supports(
        indptr=codes.indptr.astype(np.int64),
        atom=codes.indices.astype(np.int64),
        value=codes.data,
        factor_at=factor_at,
        factor=np.empty(factor_at[-1]),
        inverse=np.empty(len(Y)),
        residual=Y - codes @ atoms.rows,
    )
    gram = atoms.gram(len(Y))

    def factor(first: int, stop: int) -> None:
        factor_rows(first, stop, supports, atoms.rows, gram, penalty.ridge)

    list(spread(factor, row_bounds(len(Y)), n_jobs, shared=True))
    return supports


def _certify(
    Y: Array, atoms: Atoms, codes: csr_array, penalty: Penalty, supports: Supports
) -> tuple[Array, Array, Array]:
    """Return gap and margin of each row, and the largest relative violation of its conditions."""
    gap, margin, violation = np.empty((3, len(Y)))
    for rows in row_blocks(len(Y)):
        row_penalty, C, residual = penalty[rows], codes[rows], supports.residual[rows]
        Q = residual @ atoms.rows.T
        row = np.repeat(np.arange(len(residual)), np.diff(C.indptr))
        support = row, C.indices
        strength = np.full(len(residual), np.inf)
        np.minimum.at(strength, row, np.abs(C.data) * atoms.lengths[C.indices] ** 2)
        Q[support] -= row_penalty.ridge[row] * C.data
        deviation = np.zeros(len(residual))
        errors = np.abs(Q[support] - row_penalty.half[row] * np.sign(C.data))
        np.maximum.at(deviation, row, errors)
        largest = row_penalty.largest(Q)
        Q[support] = -np.inf if row_penalty.nonnegative else 0
        slack = row_penalty.half - row_penalty.largest(Q)
        energies = Energies.of(Y[rows], C, residual, replace(row_penalty, own=None, hidden=None))
        gap[rows] = energies.gap(row_penalty.dual_scale(largest))[0]
        rounding = atoms.rounding(C, energies.norm)
        margin[rows] = (np.minimum(slack, strength) - rounding - deviation) / row_penalty.half
        violation[rows] = deviation / row_penalty.half
    margin[np.isinf(supports.inverse)] = -np.inf
    return gap, margin, np.maximum(violation, -margin)
