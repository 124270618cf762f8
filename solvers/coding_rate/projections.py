"""Tokens on the subspaces of several heads, and the checks that the rates share."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, check_matrix, check_row_sums, rounding_error


def project(X: ArrayLike, basis: ArrayLike, n_heads: int) -> tuple[Array, Array, Array]:
    """Return X, the heads ``U_h`` (n_heads, n_features, p) and ``W_h = X U_h`` (n_heads, n, p).

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, or columns that are not `n_heads` equal parts.
    """
    X = check_matrix(X, "X").astype(np.float64, copy=False)
    n_heads = check_integer(n_heads, "n_heads", 1)
    U = check_matrix(basis, "basis").astype(np.float64, copy=False)
    if U.shape[0] != X.shape[1] or U.shape[1] % n_heads:
        raise ValueError(
            f"basis: must have one row for each of the {X.shape[1]} columns of X, and a multiple "
            f"of n_heads = {n_heads} columns, got shape {U.shape}"
        )
    U = U.reshape(len(U), n_heads, -1).transpose(1, 0, 2)
    return X, U, X @ U


def check_memberships(memberships: ArrayLike, n_tokens: int) -> Array:
    """Return memberships of tokens (n_tokens, n_groups) in float64.

    Raises
    ------
    ValueError
        If it has not `n_tokens` rows, a negative entry or rows that do not sum to one.
    """
    Pi = check_matrix(memberships, "memberships")
    if len(Pi) != n_tokens:
        raise ValueError(f"memberships: must have {n_tokens} rows, as X, got {len(Pi)}")
    if Pi.min() < 0:
        raise ValueError(f"memberships: must be >= 0, got {Pi.min():g}")
    check_row_sums(Pi.sum(axis=1, dtype=np.float64), Pi.dtype, "memberships")
    return Pi.astype(np.float64, copy=False)


def check_step(step: float, longest: float, U: Array) -> float:
    """Return a step below `longest`, for heads whose ``sum_h U_h U_h^T`` is at most the identity.

    Raises
    ------
    ValueError
        Otherwise: then no decrease is proved.
    """
    flat = np.hstack(list(U))
    size = float(np.linalg.norm(flat, 2)) ** 2
    if size > 1 + rounding_error(np.float64):
        raise ValueError(
            f"basis: sum_h U_h U_h^T must have no eigenvalue above 1, got {size:g}: divide by "
            f"{size**0.5:g}"
        )
    step = check_positive(step, "step")
    if step >= longest:
        raise ValueError(f"step: must be in (0, {longest:g}), got {step!r}")
    return step


def join(gradients: Array, U: Array) -> Any:
    """Return ``sum_h G_h U_h^T`` for G of shape (n_heads, n, p)."""
    return np.einsum("hnp,hdp->nd", gradients, U)


def square_precision(eps: float) -> float:
    """Return ``eps^2``.

    Raises
    ------
    ValueError
        If eps is not positive, or so small or large that its square is no normal number.
    """
    if not 1e-150 <= check_positive(eps, "eps") <= 1e150:
        raise ValueError(f"eps: must be from 1e-150 to 1e150, got {eps!r}")
    return float(eps) ** 2
