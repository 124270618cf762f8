"""Penalties of sparse self-expression on the scales of the literature."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array, check_matrix, refuse_sparse
from ..sparse_coding import lam_max
from ..sparse_points import dense_points


def lam_from_alpha(X: ArrayLike, alpha: float) -> float:
    """Penalty of sparse self-expression from the alpha of the SSC paper.

    It is ``lam = 2 / mu`` with ``mu = alpha / m`` and ``m = min_i max_{j != i} |x_i . x_j|``. At
    ``alpha <= 1`` the coefficients of some row are zero.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    alpha : float
        > 0; larger values penalise less.

    Returns
    -------
    float
        ``2 m / alpha``, one penalty for all rows.

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, ``alpha <= 0`` or a row orthogonal to all others,
        for which m is zero.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS CL-1.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import lam_from_alpha
    >>> lam_from_alpha([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], alpha=6.0)
    1.0
    """
    X = check_matrix(dense_points(X, "X"), "X", min_rows=2)
    alpha = check_positive(alpha, "alpha")
    smallest = float(lam_max(X, X, zero_diagonal=True).min())
    if smallest == 0:
        raise ValueError(
            "X: has a row that is orthogonal to all others, so that alpha gives lam = 0"
        )
    return smallest / alpha


def lam_from_gamma(X: ArrayLike, gamma: float) -> Array:
    """Penalty of each row from the gamma of elastic net subspace clustering.

    It is ``lam_i = 2 max_{j != i} |x_i . x_j| / gamma``. At ``gamma <= 1`` all coefficients are
    zero. A row orthogonal to all others has zero coefficients at any penalty; its penalty is 1.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    gamma : float
        > 0; larger values penalise less.

    Returns
    -------
    ndarray of shape (n_samples,)

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples or ``gamma <= 0``.

    References
    ----------
    You, Li, Robinson and Vidal, "Oracle based active set algorithm for scalable elastic net
    subspace clustering" (2016); EQUATIONS CL-1.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import lam_from_gamma
    >>> lam_from_gamma([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], gamma=4.0)
    array([1., 1., 1.])
    """
    X = check_matrix(dense_points(X, "X"), "X", min_rows=2)
    lam = lam_max(X, X, zero_diagonal=True) / check_positive(gamma, "gamma")
    lam[lam == 0] = 1.0
    return lam


def outlier_lams_from_alpha(X: ArrayLike, alpha: float) -> tuple[float, float]:
    """Penalties of `outlier_self_expression` from the alpha of the SSC paper's face experiments.

    They are ``lam = 2 m / alpha`` and ``lam_outlier = g lam`` with ``g = alpha / max_i |x_i|_1``
    and ``m = min_i max_j |x_i . d_j|``, where d_j are the rows of ``[X; I / g]`` except x_i.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Raw pixels in the literature.
    alpha : float
        > 0; 20 in the circulated code.

    Returns
    -------
    lam, lam_outlier : float

    Raises
    ------
    ValueError
        On NaN, infinity, fewer than two samples, ``alpha <= 0`` or a zero row.

    References
    ----------
    EQUATIONS CL-1, CL-3.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import outlier_lams_from_alpha
    >>> outlier_lams_from_alpha([[1.0, 0.0], [2.0, 0.0], [0.0, 4.0]], alpha=2.0)
    (2.0, 1.0)
    """
    refuse_sparse(X, "outliers are single features")
    X = check_matrix(X, "X", min_rows=2).astype(np.float64)
    alpha = check_positive(alpha, "alpha")
    if not X.any(axis=1).all():
        raise ValueError("X: has a zero row, for which alpha gives no penalty")
    g = alpha / np.abs(X).sum(axis=1).max()
    largest = np.maximum(lam_max(X, X, zero_diagonal=True) / 2, np.abs(X).max(axis=1) / g)
    lam = 2 * float(largest.min()) / alpha
    return lam, float(g * lam)
