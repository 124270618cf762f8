"""Condition number of one or many token matrices."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from ..inputs import Array, as_array, check_matrix

EPS = np.finfo(np.float64).eps


def condition_number(X: ArrayLike) -> Array:
    """Condition number of token matrices.

    ::

        kappa(X) = s_max / s_min     over the min(n_tokens, n_features) singular values

    It is infinite if X is numerically rank deficient, that is, if
    ``s_min <= max(n_tokens, n_features) eps s_max`` with eps of float64, the usual tolerance of a
    numerical rank. Entries count as exact in every dtype.

    Parameters
    ----------
    X : array-like of shape (..., n_tokens, n_features)

    Returns
    -------
    ndarray of shape (...)
        float64; a scalar for one matrix.

    Raises
    ------
    ValueError
        On NaN, infinity or fewer than two dimensions.

    References
    ----------
    Ji et al., "Always skip attention" (2025); EQUATIONS SK-4.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.conditioning import condition_number
    >>> condition_number([np.diag([4.0, 2.0]), np.diag([3.0, 0.0])])
    array([ 2., inf])
    """
    X = check_tokens(X, "X").astype(np.float64, copy=False)
    s = np.linalg.svd(X, compute_uv=False)
    largest, least = s[..., 0], s[..., -1]
    full_rank = least > max(X.shape[-2:]) * EPS * largest
    kappa: Array = np.where(full_rank, largest / np.where(full_rank, least, 1), np.inf)
    return kappa[()]


def check_tokens(X: ArrayLike, name: str) -> Array:
    """Return one or many token matrices as a finite floating-point array."""
    try:
        shape = np.shape(X)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if len(shape) < 2:
        raise ValueError(f"{name}: must have at least two dimensions, got {len(shape)}")
    rows = X if issparse(X) else np.reshape(as_array(X, name), (math.prod(shape[:-1]), shape[-1]))
    return check_matrix(rows, name).reshape(shape)
