"""The penalty of sparse codes: value, proximal map, dual norm, smallest penalty of zero codes."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from ...validation import check_positive
from ..inputs import Array, check_lam


@dataclass(frozen=True, eq=False)
class Penalty:
    """Penalty of the code c_i in ``|y_i - c_i D|^2 + ...``: l1 or elastic net, with constraints.

    ::

        lam_i (r |c_i|_1 + (1 - r) / 2 |c_i|^2),   r = l1_ratio
        c_i >= 0 if nonnegative,   c_ij = 0 for j = own[i] and where hidden[i, j]

    The constraint that codes sum to one is not part of it, as its proximal map has no closed form.

    Attributes
    ----------
    lam : ndarray of shape (n_rows,)
    l1_ratio : float or ndarray of shape (n_rows,)
    nonnegative : bool
    own : ndarray of int of shape (n_rows,), optional
        The atom that each row may not use, or -1.
    hidden : ndarray of bool of shape (n_rows, n_atoms), optional
        True for further atoms that a row may not use.

    References
    ----------
    EQUATIONS SE-12, SE-15n, SE-17, CL-2.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding.penalty import Penalty
    >>> penalty = Penalty(np.array([2.0]), l1_ratio=0.5)
    >>> penalty.value(np.array([[1.0, -2.0]]))
    array([5.5])
    >>> penalty.prox(np.array([[1.0, -2.0]]), 1.0)
    array([[ 0.33333333, -1.        ]])
    >>> penalty.lam_max(np.array([[1.0, -2.0]]))
    array([8.])
    """

    lam: Array
    l1_ratio: float | Array = 1.0
    nonnegative: bool = False
    own: Array | None = None
    hidden: Array | None = None

    @classmethod
    def checked(
        cls,
        lam: float | ArrayLike,
        n_rows: int,
        l1_ratio: float = 1.0,
        nonnegative: bool = False,
        zero_diagonal: bool = False,
    ) -> "Penalty":
        """Return the penalty for the arguments of a user.

        Raises
        ------
        ValueError
            If `lam` is not positive or of another length, or `l1_ratio` is outside (0, 1].
        """
        own_atom = np.arange(n_rows) if zero_diagonal else None
        return cls(check_lam(lam, n_rows), check_l1_ratio(l1_ratio), nonnegative, own_atom)

    def __getitem__(self, rows: Any) -> "Penalty":
        def some(array: Any) -> Any:
            return array[rows] if isinstance(array, np.ndarray) else array

        return replace(
            self,
            lam=self.lam[rows],
            l1_ratio=some(self.l1_ratio),
            own=some(self.own),
            hidden=some(self.hidden),
        )

    @cached_property
    def half(self) -> Array:
        """``lam r / 2``; an atom enters if its correlation ``d_j . (y - c D)`` exceeds it."""
        return self.lam * self.l1_ratio / 2

    @cached_property
    def ridge(self) -> Array:
        """``lam (1 - r) / 2``, the weight of the squares."""
        return self.lam * (1 - self.l1_ratio) / 2

    @cached_property
    def excluded(self) -> tuple[Array, Array]:
        """Rows and columns of the entries that must be zero."""
        own_atom = np.full(len(self.lam), -1) if self.own is None else self.own
        rows = np.flatnonzero(own_atom >= 0)
        columns = own_atom[rows]
        if self.hidden is None:
            return rows, columns
        more_rows, more_columns = np.nonzero(self.hidden)
        return np.concatenate([rows, more_rows]), np.concatenate([columns, more_columns])

    def squares(self, C: Any) -> Array:
        """``ridge |c_i|^2``, the smooth part of the penalty."""
        if not self.ridge.any():
            return np.zeros(len(self.lam))
        return np.asarray(self.ridge * (C.power(2) if issparse(C) else C**2).sum(axis=1))

    def value(self, C: Array | csr_array) -> Array:
        """The penalty of each row; infinite where a constraint is violated."""
        value = np.asarray(2 * self.half * abs(C).sum(axis=1) + self.squares(C))
        if self.nonnegative:
            value[(C < 0).sum(axis=1) > 0] = np.inf
        rows, columns = self.excluded
        if rows.size:
            value[rows[C[rows, columns] != 0]] = np.inf
        return value

    def prox(self, Z: Array, step: float | Array) -> Array:
        """``argmin_C |C - Z|^2 / step + value(C)``; `step` is a number or a column of numbers.

        Step lengths multiply half the gradient of ``|Y - C D|^2``.
        """
        C = self.shrink(Z, step)
        C[self.excluded] = 0
        return C

    def shrink(self, Z: Array, step: float | Array) -> Array:
        """`prox` without setting the excluded entries to zero."""
        threshold = step * self.half[:, None]
        C = np.maximum(Z - threshold, 0) if self.nonnegative else soft_threshold(Z, threshold)
        return C / (1 + step * self.ridge[:, None]) if self.ridge.any() else C

    def largest(self, Q: Array) -> Array:
        """Dual norm of each row of ``Q = (Y - C D) D^T - ridge C``, one-sided if nonnegative.

        It is the largest correlation of the row, which is at most `half` at an optimum.
        """
        sizes = Q.copy() if self.nonnegative else np.abs(Q)
        sizes[self.excluded] = 0
        return sizes.max(axis=1)

    def dual_scale(self, largest: Array) -> Array:
        """Largest multiple of each residual that is dual feasible; `largest` is its dual norm."""
        unbounded = np.full(len(largest), np.inf)
        return np.divide(self.half, largest, out=unbounded, where=largest > 0)

    def lam_max(self, Q: Array) -> Array:
        """Smallest `lam` for which each row is zero, from the correlations ``Q = Y D^T``."""
        return 2 * self.largest(Q).clip(min=0) / self.l1_ratio


def check_l1_ratio(l1_ratio: float) -> float:
    ratio = check_positive(l1_ratio, "l1_ratio")
    if ratio > 1:
        raise ValueError(f"l1_ratio: must be in (0, 1], got {l1_ratio!r}")
    return ratio


def soft_threshold(Z: Array, threshold: float | Array) -> Array:
    """``sign(z) max(|z| - t, 0)``, the proximal map of ``t |.|_1``."""
    return np.sign(Z) * np.maximum(np.abs(Z) - threshold, 0)
