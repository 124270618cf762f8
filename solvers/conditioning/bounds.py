"""Bounds on the condition number of the output of linear layers: both sides, to compare.

Rounding changes a condition number kappa by a relative error of about kappa times machine
precision. Where it hides that a matrix has full rank, an error is raised. Condition numbers do not
depend on scale, so factors are scaled to unit size first.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, check_matrix, check_square, rounding_error
from ..scales import unit_size
from .spectrum import condition_number


def attention_condition_bound(
    X: ArrayLike, query_weight: ArrayLike, key_weight: ArrayLike, value_weight: ArrayLike
) -> tuple[float, float]:
    """Both sides of the bound on the condition number of linear attention without a skip.

    ::

        kappa(X Wq Wk^T X^T X Wv) <= kappa(Wq) kappa(Wk) kappa(Wv) kappa(X)^3

    The bound needs at least as many tokens as features, and factors of full rank. With identity
    weights both sides are equal. Near a kappa of 1 / eps rounding may take kappa above the bound.

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
    query_weight, key_weight, value_weight : array-like of shape (n_features, n_features)
        Wq, Wk, Wv.

    Returns
    -------
    kappa, bound : float

    Raises
    ------
    ValueError
        If the shapes do not fit, the assumptions do not hold, or float64 cannot tell.

    References
    ----------
    EQUATIONS SK-5. Proposition 4.1 is printed for any shape but fails for fewer tokens than
    features (erratum E4-a); its constant is not near 1 (erratum E4-b), and being an upper bound it
    does not show that attention is ill-conditioned (erratum E4-c).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.conditioning import attention_condition_bound
    >>> X = [[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    >>> attention_condition_bound(X, np.eye(2), np.eye(2), np.eye(2))
    (8.0, 8.0)
    """
    X = _check_tall(X)
    Wq = _check_weight(query_weight, "query_weight", X.shape[1])
    Wk = _check_weight(key_weight, "key_weight", X.shape[1])
    Wv = _check_weight(value_weight, "value_weight", X.shape[1])
    factors = {"X": X, "query_weight": Wq, "key_weight": Wk, "value_weight": Wv}
    kappas = {name: float(condition_number(M)) for name, M in factors.items()}
    for name, kappa in kappas.items():
        if math.isinf(kappa):
            raise ValueError(f"{name}: must have full rank, got an infinite condition number")
    output = X @ (Wq @ Wk.T @ (X.T @ X) @ Wv)
    return _both_sides(output, math.prod(kappas.values()) * kappas["X"] ** 2)


def feed_forward_condition_bound(
    X: ArrayLike, up_weight: ArrayLike, down_weight: ArrayLike
) -> tuple[float, float]:
    """Both sides of the bound on the condition number of a linear feed-forward layer, no skip.

    ::

        kappa(X Wup Wdown) <= kappa(X) kappa(Wup Wdown)

    Near a kappa of 1 / eps rounding may take kappa above the bound.

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
        At least as many tokens as features.
    up_weight : array-like of shape (n_features, n_hidden)
        Wup.
    down_weight : array-like of shape (n_hidden, n_out)
        Wdown; ``n_out <= n_features``.

    Returns
    -------
    kappa, bound : float
        The bound is infinite where a factor is rank deficient.

    Raises
    ------
    ValueError
        If the shapes do not fit, the assumptions do not hold, or float64 cannot tell.

    References
    ----------
    EQUATIONS SK-6. The order of the factors is printed the other way (erratum E4-d), and the bound
    fails for fewer tokens than features.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.conditioning import feed_forward_condition_bound
    >>> feed_forward_condition_bound([[2.0, 0.0], [0.0, 1.0]], np.eye(2), [[3.0, 0], [0, 1]])
    (6.0, 6.0)
    """
    X = _check_tall(X)
    up = unit_size(check_matrix(up_weight, "up_weight"))
    if len(up) != X.shape[1]:
        raise ValueError(
            f"up_weight: must have one row for each of the {X.shape[1]} columns of X, got {len(up)}"
        )
    down = unit_size(check_matrix(down_weight, "down_weight"))
    if len(down) != up.shape[1] or down.shape[1] > X.shape[1]:
        raise ValueError(
            f"down_weight: must have {up.shape[1]} rows and at most {X.shape[1]} columns, "
            f"got shape {down.shape}"
        )
    weight = up @ down
    return _both_sides(X @ weight, condition_number(X) * condition_number(weight))


def skip_condition_bound(X: ArrayLike, M: ArrayLike) -> tuple[float, float]:
    """Both sides of the bound on the condition number of a linear layer with a skip connection.

    ::

        kappa(X M + X) <= kappa(X) kappa(M + I),   kappa(M + I) = (mu_max + 1) / (mu_min + 1)

    for M symmetric positive semidefinite with extreme eigenvalues mu. Then
    ``kappa(M + I) <= kappa(M)``: the bound is at most ``kappa(X) kappa(M)``, the bound of the layer
    without the skip connection. Near a kappa of 1 / eps rounding may take kappa above the bound.

    Parameters
    ----------
    X : array-like of shape (n_tokens, n_features)
        At least as many tokens as features.
    M : array-like of shape (n_features, n_features)
        Symmetric positive semidefinite. The tolerance is 1,000 times machine precision, that of
        float32 if M is float32, relative to the largest entry and eigenvalue. The symmetric part of
        M is used.

    Returns
    -------
    kappa, bound : float
        The bound is infinite where X is rank deficient.

    Raises
    ------
    ValueError
        If the shapes do not fit, M is not symmetric positive semidefinite, or float64 cannot tell.

    References
    ----------
    EQUATIONS SK-7. Proposition 4.2 orders the condition numbers themselves, with and without the
    skip: false even for positive semidefinite M (erratum E4-e), and for other M the skip connection
    may be arbitrarily harmful (errata E4-f, E4-g); at usual scales of random weights it helps in
    most draws (erratum E4-h).

    Examples
    --------
    >>> from twinsolve.solvers.conditioning import skip_condition_bound
    >>> skip_condition_bound([[2.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 0.0]])
    (8.0, 8.0)
    """
    X = _check_tall(X)
    checked = check_square(check_matrix(M, "M"), "M", X.shape[1])
    tolerance = rounding_error(checked.dtype)
    halves = checked.astype(np.float64) / 2
    if np.abs(halves - halves.T).max() > tolerance * np.abs(halves).max():
        share = np.abs(halves - halves.T).max() / np.abs(halves).max()
        raise ValueError(f"M: must be symmetric, got M - M^T of {share:.3g} max|M|")
    symmetric = halves + halves.T
    mu = np.linalg.eigvalsh(symmetric)
    if mu[0] < -tolerance * mu[-1] or mu[0] <= -1:
        raise ValueError(f"M: must be positive semidefinite, got an eigenvalue of {mu[0]:.3g}")
    bound = condition_number(X) * (mu[-1] + 1) / (mu[0] + 1)
    return _both_sides(X @ symmetric + X, bound)


def _both_sides(output: Array, bound: Array | float) -> tuple[float, float]:
    """Return the condition number of the output, and its bound, as floats."""
    kappa = float(condition_number(output))
    if math.isinf(kappa) and np.isfinite(bound):
        raise ValueError("X: the output is too ill-conditioned for float64 to compare")
    return kappa, float(bound)


def _check_tall(X: ArrayLike) -> Array:
    """Return X scaled to unit size, after a check that it has no more columns than rows."""
    X = unit_size(check_matrix(X, "X"))
    if len(X) < X.shape[1]:
        raise ValueError(
            f"X: must have at least as many tokens as features for the bound, got shape {X.shape}"
        )
    return X


def _check_weight(W: ArrayLike, name: str, n_features: int) -> Array:
    return unit_size(check_square(check_matrix(W, name), name, n_features))
