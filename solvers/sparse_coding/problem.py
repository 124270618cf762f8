"""The sparse coding problem: objective, certificate and checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, diags_array, issparse, vstack

from ..inputs import Array, check_dense_or_sparse, check_matrix
from ..kernels.selection import strongest
from ..kernels.slots import rounding32
from ..sparse_points import dense_pair, dense_points
from .penalty import Penalty

TOL = 1e-6
_BLOCK_ROWS, _PART_ATOMS = 256, 4096
_SEEN = 1e-6  # share of the penalty from which the rounding of a correlation matters for a gap
_SMALLEST, _LARGEST = 1e-140, 1e140


def lasso_objective(
    Y: ArrayLike,
    dictionary: ArrayLike,
    coef: ArrayLike | csr_array,
    *,
    lam: float | ArrayLike,
    l1_ratio: float = 1.0,
) -> Array:
    """Objective of the code of each row, in float64.

    It is ``|y_i - c_i D|^2 + lam_i (r |c_i|_1 + (1 - r) / 2 |c_i|^2)`` with ``r = l1_ratio``.

    Parameters
    ----------
    Y : array-like or sparse array of shape (n_signals, n_features)
    dictionary : array-like or sparse array of shape (n_atoms, n_features)
    coef : array-like or csr_array of shape (n_signals, n_atoms)
    lam : float or array-like of shape (n_signals,)
    l1_ratio : float, default=1.0
        In (0, 1]; 1 is the Lasso.

    Returns
    -------
    ndarray of shape (n_signals,)

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes or ``lam <= 0``.

    References
    ----------
    EQUATIONS SE-12, SE-17, CL-2.

    Examples
    --------
    >>> from twinsolve.solvers.sparse_coding import lasso_objective
    >>> lasso_objective([[3.0]], [[1.0]], [[2.0]], lam=2.0)
    array([5.])
    """
    Y, D = check_signals(Y, dictionary)
    C = check_coef(coef, len(Y), len(D))
    residual = Y.astype(np.float64) - C @ D.astype(np.float64)
    return (residual**2).sum(axis=1) + Penalty.checked(lam, len(Y), l1_ratio).value(C)


def duality_gap(
    Y: ArrayLike,
    dictionary: ArrayLike,
    coef: ArrayLike | csr_array,
    *,
    lam: float | ArrayLike,
    l1_ratio: float = 1.0,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> Array:
    """Certified relative suboptimality of any codes, one number for each row.

    The gap is ``(P(c_i) - D(nu_i)) / |y_i|^2`` with ``P(c) = |y - c D|^2 + lam |c|_1`` and the dual
    objective ``D(nu) = nu . y - |nu|^2 / 4``. The dual point ``nu = 2 a (y - c D)`` is the best
    multiple of the residual with ``max_j |d_j . nu| <= lam`` (``max_j d_j . nu`` if nonnegative;
    j != i if the diagonal is zero). The elastic net is the same problem with the dictionary
    ``[D, sqrt(ridge) I]``, ``ridge = lam (1 - l1_ratio) / 2``. The gap is never smaller than
    ``(P(c_i) - P*) / |y_i|^2``.

    Parameters
    ----------
    Y : array-like or sparse array of shape (n_signals, n_features)
    dictionary : array-like or sparse array of shape (n_atoms, n_features)
    coef : array-like or csr_array of shape (n_signals, n_atoms)
    lam : float or array-like of shape (n_signals,)
    l1_ratio : float, default=1.0
        In (0, 1]; 1 is the Lasso.
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
    >>> from twinsolve.solvers.sparse_coding import duality_gap
    >>> duality_gap([[3.0]], [[1.0]], [[2.0]], lam=2.0)
    array([0.])
    """
    Y, D = check_signals(Y, dictionary, zero_diagonal=zero_diagonal)
    C = check_coef(coef, len(Y), len(D))
    penalty = Penalty.checked(lam, len(Y), l1_ratio, nonnegative, zero_diagonal)
    return certify(Y, D, C, penalty)[1]


def lam_max(Y: ArrayLike, dictionary: ArrayLike, *, zero_diagonal: bool = False) -> Array:
    """Smallest penalty for which each row of the codes is zero: ``2 max_j |y_i . d_j|``.

    A product that rounding alone can have left counts as zero, as between orthogonal rows.

    Parameters
    ----------
    Y : array-like or sparse array of shape (n_signals, n_features)
    dictionary : array-like or sparse array of shape (n_atoms, n_features)
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
    >>> from twinsolve.solvers.sparse_coding import lam_max
    >>> lam_max([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]])
    array([6.])
    """
    Y, D = check_signals(Y, dictionary, zero_diagonal=zero_diagonal)
    own_atom = np.arange(len(Y)) if zero_diagonal else np.full(len(Y), -1)
    return 2 * largest_correlations(Y, D, own_atom)


def largest_correlations(Y: Array, D: Array, own_atom: Array) -> Array:
    """``max_j |y_i . d_j|`` over ``j != own_atom[i]``, zero where rounding alone can be left."""
    Y, D = (np.array(Z, dtype=np.float64, order="C") for Z in (Y, D))
    D32 = (D / (np.sqrt(_dots(D, D)).max() or 1)).astype(np.float32)
    D.flags.writeable = False  # like atoms in a file, so that one kernel serves both
    blocks = [largest_by_parts(Y[rows], D, D32, own_atom[rows]) for rows in row_blocks(len(Y))]
    return np.concatenate(blocks)


def largest_by_parts(Y: Array, D: Array, D32: Array, own_atom: Array) -> Array:
    """`largest_correlations` of a block of rows; products with a part of the atoms at a time.

    D32 holds the atoms in float32, scaled to length at most 1.
    """
    norms = np.sqrt(_dots(Y, Y))
    units = (Y / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32)
    found = np.zeros(len(Y))
    for start in range(0, len(D), _PART_ATOMS):
        part = slice(start, start + _PART_ATOMS)
        rough = units @ D32[part].T
        inside = (start <= own_atom) & (own_atom < start + rough.shape[1])
        own = np.where(inside, own_atom - start, -1)
        np.maximum(found, strongest(rough, rounding32(D.shape[1]), own, Y, D[part]), out=found)
    return found


def check_signals(
    Y: ArrayLike, dictionary: ArrayLike, *, zero_diagonal: bool = False
) -> tuple[Array, Array]:
    """Return signals and dictionary as finite dense matrices of fitting shapes and range.

    If one of them is sparse, both become `Coordinates`.
    """
    dictionary, Y = dense_pair(dictionary, Y, ("dictionary", "Y"))
    D = check_matrix(dictionary, "dictionary")
    Y = check_matrix(Y, "Y", n_features=D.shape[1])
    check_range(D, "dictionary")
    if Y is not D:
        check_range(Y, "Y")
    if zero_diagonal and len(Y) != len(D):
        raise ValueError(
            f"zero_diagonal: needs as many signals as atoms, got {len(Y)} and {len(D)}"
        )
    return Y, D


def check_points(X: ArrayLike, *, min_rows: int = 1) -> Array:
    """Return the points `X` as `check_matrix` does, and sparse ones as `dense_points`.

    Raises
    ------
    ValueError
        If `check_matrix` or `check_range` refuses them.
    """
    points = check_matrix(dense_points(X, "X"), "X", min_rows=min_rows)
    check_range(points, "X")
    return points


def check_range(X: Array, name: str) -> None:
    """Refuse rows whose squared norms, or products of these, lose precision in float64."""
    largest = np.maximum(X.max(axis=1), -X.min(axis=1)).astype(np.float64)
    outside = (largest > 0) & ((largest < _SMALLEST) | (largest > _LARGEST))
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(
            f"{name}: the largest entry of row {row} is {largest[row]:.3g} in size, and its square "
            f"loses precision in float64; rescale to between {_SMALLEST:g} and {_LARGEST:g}"
        )


def check_coef(coef: ArrayLike | csr_array, n_signals: int, n_atoms: int) -> csr_array:
    """Return coefficients as a csr_array in float64."""
    C = csr_array(check_dense_or_sparse(coef, "coef"), dtype=np.float64)
    if C.shape != (n_signals, n_atoms):
        raise ValueError(f"coef: must have shape {(n_signals, n_atoms)}, got {C.shape}")
    return C


def certify(
    Y: Array, D: Array, C: Array | csr_array, penalty: Penalty
) -> tuple[Array, Array, Array]:
    """Objective, relative gap and dual point of each row, from the definition in float64.

    Where the rounding of correlations is more than a millionth of the penalty, it is added to them,
    so that a gap is a bound even where the penalty is as small as that.
    """
    Y, D, C = Y.astype(np.float64), D.astype(np.float64), C.astype(np.float64)
    residual, ridge = Y - C @ D, penalty.ridge[:, None]
    sizes = abs(Y) + abs(C) @ abs(D)
    sizes *= 2.0**-53 * (2 * (C != 0).sum(axis=1) + D.shape[1] + 4)[:, None]
    seen = _SEEN * penalty.half
    max_rounding = np.linalg.norm(sizes, axis=1) * np.linalg.norm(D, axis=1).max()

    def correlation(rows: slice) -> Array:
        block: Any = C[rows]
        block = block.toarray() if issparse(block) else block
        Q = residual[rows] @ D.T - ridge[rows] * block
        close = np.flatnonzero(max_rounding[rows] >= seen[rows])
        rounding = sizes[rows][close] @ abs(D).T
        rounding[rounding < seen[rows][close, None]] = 0
        Q[close] += rounding if penalty.nonnegative else np.copysign(rounding, Q[close])
        return Q

    blocks = row_blocks(len(Y))
    largest = np.concatenate([penalty[rows].largest(correlation(rows)) for rows in blocks])
    return certificate(Y, C, residual, largest, penalty)


def certify_sparse(
    Y: csr_array, D: csr_array, C: csr_array, penalty: Penalty
) -> tuple[Array, Array, csr_array]:
    """`certify` for sparse signals and atoms, with a sparse dual point.

    The rounding of a correlation is bounded by norms, where it matters at all.
    """
    Y, D, C = (csr_array(Z, dtype=np.float64) for Z in (Y, D, C))
    longest = float(np.sqrt(_squares(D).max(initial=0)))
    objective, gap, dual = np.empty(Y.shape[0]), np.empty(Y.shape[0]), []
    for rows in row_blocks(Y.shape[0]):
        signals, codes, row_penalty = Y[rows], C[rows], penalty[rows]
        residual = csr_array(signals - codes @ D)
        Q = (residual @ D.T).toarray() - row_penalty.ridge[:, None] * codes.toarray()
        terms = 2 * np.diff(codes.indptr) + np.diff(residual.indptr) + 4
        sizes = np.sqrt(_squares(abs(signals) + abs(codes) @ abs(D)))
        rounding = 2.0**-53 * terms * sizes * longest
        rounding[rounding < _SEEN * row_penalty.half] = 0
        largest = row_penalty.largest(Q) + rounding
        square, along = _squares(residual), np.asarray(signals.multiply(residual).sum(axis=1))
        energies = Energies(
            square + row_penalty.value(codes), square + row_penalty.squares(codes),
            _squares(signals), along,
        )  # fmt: skip
        gap[rows], scale = energies.gap(row_penalty.dual_scale(largest))
        objective[rows] = energies.objective
        dual.append(csr_array(diags_array(2 * scale) @ residual))
    return objective, gap, csr_array(vstack(dual))


def _squares(X: csr_array) -> Array:
    """Squared norms of the rows."""
    return np.asarray(X.multiply(X).sum(axis=1))


def certificate(
    Y: Array, C: Array | csr_array, residual: Array, largest: Array, penalty: Penalty
) -> tuple[Array, Array, Array]:
    """`certify` from the residuals and an upper bound on their correlations."""
    energies = Energies.of(Y, C, residual, penalty)
    gap, scale = energies.gap(penalty.dual_scale(largest))
    return energies.objective, gap, 2 * scale[:, None] * residual


@dataclass(frozen=True, eq=False)
class Energies:
    """The parts of duality gaps of codes c that do not depend on correlations with the atoms.

    With the residual ``r = y - c D`` of each row: its `objective`; ``energy = |r|^2 + ridge
    |c|^2``; ``norm = |y|^2`` and ``along = y . r``.
    """

    objective: Array
    energy: Array
    norm: Array
    along: Array

    @classmethod
    def of(cls, Y: Array, C: Array | csr_array, residual: Array, penalty: Penalty) -> "Energies":
        square, norm, along = _dots(residual, residual), _dots(Y, Y), _dots(Y, residual)
        return cls(square + penalty.value(C), square + penalty.squares(C), norm, along)

    def gap(self, most: Array) -> tuple[Array, Array]:
        """Return relative gaps at the best multiples of residuals, at most `most`, and these."""
        scale = np.clip(self.along / np.where(self.energy > 0, self.energy, 1), 0, most)
        dual_objective = scale * (2 * self.along - scale * self.energy)
        excess = (self.objective - dual_objective).clip(min=0)
        # A zero signal with a nonzero code has an infinite gap relative to its norm.
        unbounded = np.where(excess > 0, np.inf, 0.0)
        return np.divide(excess, self.norm, out=unbounded, where=self.norm > 0), scale


def row_blocks(n: int, n_rows: int | None = None) -> Iterator[slice]:
    """Yield blocks of at most `n_rows` rows, so that memory is needed for one block at a time."""
    n_rows = n_rows or _BLOCK_ROWS
    return (slice(start, min(start + n_rows, n)) for start in range(0, n, n_rows))


def _dots(A: Array, B: Array) -> Array:
    return np.einsum("ij,ij->i", A, B)
