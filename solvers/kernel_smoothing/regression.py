"""Nadaraya-Watson regression: the classical side of softmax-type attention. Samples are rows."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from scipy.special import softmax

from ..solution import Array, check_matrix, check_positive

Kernel = Callable[[Array], Array]

_BLOCK_ENTRIES = 2**22
_LOG_KERNELS: dict[str, Kernel] = {
    "gaussian": lambda r: -0.5 * r**2,
    "laplace": lambda r: -r,
}


def nadaraya_watson(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
) -> Array:
    """Kernel regression of `values` at the keys, evaluated at the queries.

    Row i of the result is the weighted least-squares estimate ::

        u_i = argmin_u sum_j K_ij |y_j - u|^2 = sum_j K_ij y_j / sum_j K_ij

    with ``K_ij = k(r_ij)`` and ``r_ij = |q_i - k_j| / bandwidth``; the Gaussian kernel is
    ``k(r) = exp(-r^2 / 2)``, i.e. ``exp(-|q - k|^2 / (2 bandwidth^2))``, and the Laplace kernel is
    ``k(r) = exp(-r)``. Queries are taken in blocks: memory is O(block * n_keys).

    Parameters
    ----------
    queries : array-like of shape (n_queries, n_features)
    keys : array-like of shape (n_keys, n_features)
    values : array-like of shape (n_keys, n_values)
    bandwidth : float
        Kernel width s > 0, in the units of the features. Scaled dot-product attention on keys of
        equal norm is ``s = n_features ** 0.25``.
    kernel : {"gaussian", "laplace"} or callable
        A callable maps an array of scaled distances r >= 0 to nonnegative weights.
    precision : array-like of shape (n_features, n_features), optional
        Symmetric positive semidefinite S^-1 of the Mahalanobis distance
        ``|q - k|^2 = (q - k) S^-1 (q - k)^T``. None is the identity.

    Returns
    -------
    ndarray of shape (n_queries, n_values)
        float32 if all inputs are, else float64; computed in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, unequal numbers of features or of keys and values, ``bandwidth <= 0``, an
        unknown kernel, or a query whose weights are all zero (compactly supported kernels).

    References
    ----------
    Nadaraya (1964) and Watson (1964); as attention: EQUATIONS SE-5, SE-6, SE-7m and IF-9 to IF-12.
    The query norm cancels but the key norm does not (erratum E3-a: the bandwidth is s^2, not 2 s^2,
    in the dot-product form, and that form needs keys of equal norm).

    Examples
    --------
    >>> from twinsolve.solvers import nadaraya_watson
    >>> nadaraya_watson([[0.5]], [[0.0], [1.0]], [[2.0], [4.0]], bandwidth=1.0)
    array([[3.]])
    """
    values = check_matrix(values, "values")
    queries, keys = _check_points(queries, keys)
    if len(values) != len(keys):
        raise ValueError(f"values: has {len(values)} rows, but there are {len(keys)} keys")
    blocks = _weight_blocks(queries, keys, bandwidth, kernel, precision)
    smoothed = np.concatenate([block @ values for block in blocks])
    return smoothed.astype(np.result_type(queries, keys, values), copy=False)


def smoother_matrix(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
) -> Array:
    """Row-stochastic matrix A of the smoother: ``nadaraya_watson(...) = A @ values``.

    ``A_ij = K_ij / sum_l K_il``; see `nadaraya_watson` for the kernels and the parameters.

    Returns
    -------
    ndarray of shape (n_queries, n_keys)

    Raises
    ------
    ValueError
        As `nadaraya_watson` does.

    References
    ----------
    EQUATIONS SE-5, SE-6.

    Examples
    --------
    >>> from twinsolve.solvers import smoother_matrix
    >>> smoother_matrix([[0.0]], [[-1.0], [1.0]], bandwidth=1.0)
    array([[0.5, 0.5]])
    """
    queries, keys = _check_points(queries, keys)
    weights = np.concatenate([*_weight_blocks(queries, keys, bandwidth, kernel, precision)])
    return weights.astype(np.result_type(queries, keys), copy=False)


def weighted_least_squares_residual(
    weights: ArrayLike, values: ArrayLike, estimate: ArrayLike
) -> Array:
    """Stationarity residual of the weighted least-squares problem behind a kernel smoother.

    For each row i, half the gradient of ``sum_j K_ij |y_j - u|^2`` at ``u = u_i``, relative::

        |sum_j K_ij (u_i - y_j)| / (sum_j K_ij * max_j |y_j|)

    It is zero exactly at the Nadaraya-Watson estimate, whatever the scale of the rows of K.

    Parameters
    ----------
    weights : array-like of shape (n_queries, n_keys)
        Kernel values K_ij or the normalised smoother, nonnegative with positive row sums.
    values : array-like of shape (n_keys, n_values)
    estimate : array-like of shape (n_queries, n_values)

    Returns
    -------
    ndarray of shape (n_queries,)

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, or a row of weights sums to zero or less.

    References
    ----------
    EQUATIONS IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers import weighted_least_squares_residual
    >>> weighted_least_squares_residual([[1.0, 1.0]], [[2.0], [4.0]], [[3.0]])
    array([0.])
    """
    values = check_matrix(values, "values").astype(np.float64)
    weights = check_matrix(weights, "weights", n_features=len(values)).astype(np.float64)
    estimate = check_matrix(estimate, "estimate", n_features=values.shape[1]).astype(np.float64)
    if len(estimate) != len(weights):
        raise ValueError(f"estimate: has {len(estimate)} rows, but weights has {len(weights)}")
    mass = weights.sum(axis=1)
    if (mass <= 0).any():
        raise ValueError("weights: every row must have a positive sum")
    gradient = mass[:, None] * estimate - weights @ values
    scale = max(float(np.linalg.norm(values, axis=1).max()), np.finfo(np.float64).tiny)
    return np.linalg.norm(gradient, axis=1) / (mass * scale)


def _check_points(queries: ArrayLike, keys: ArrayLike) -> tuple[Array, Array]:
    keys = check_matrix(keys, "keys")
    return check_matrix(queries, "queries", n_features=keys.shape[1]), keys


def _weight_blocks(
    queries: Array,
    keys: Array,
    bandwidth: float,
    kernel: str | Kernel,
    precision: ArrayLike | None,
) -> Iterator[Array]:
    bandwidth = check_positive(bandwidth, "bandwidth")
    if not callable(kernel) and not (isinstance(kernel, str) and kernel in _LOG_KERNELS):
        raise ValueError(
            f"kernel: must be a callable or one of {sorted(_LOG_KERNELS)}, got {kernel!r}"
        )
    if precision is not None:
        root = _square_root(precision, keys.shape[1])
        queries, keys = queries @ root, keys @ root
    size = max(1, _BLOCK_ENTRIES // len(keys))
    for start in range(0, len(queries), size):
        distances = cdist(queries[start : start + size], keys) / bandwidth
        yield _normalised_weights(distances, kernel, start)


def _normalised_weights(distances: Array, kernel: str | Kernel, start: int) -> Array:
    if not callable(kernel):
        return softmax(_LOG_KERNELS[kernel](distances), axis=1)
    weights = np.asarray(kernel(distances), dtype=np.float64)
    if weights.shape != distances.shape or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("kernel: must return one finite nonnegative weight for each distance")
    mass = weights.sum(axis=1, keepdims=True)
    if (mass == 0).any():
        row = start + int(np.flatnonzero(mass == 0)[0])
        raise ValueError(f"bandwidth: query {row} has no key with a positive weight; widen it")
    return weights / mass


def _square_root(precision: ArrayLike, n_features: int) -> Array:
    P = check_matrix(precision, "precision", n_features=n_features).astype(np.float64)
    if P.shape[0] != n_features or not np.allclose(P, P.T, rtol=1e-10, atol=0):
        raise ValueError(f"precision: must be a symmetric {n_features} x {n_features} matrix")
    eigenvalues, vectors = np.linalg.eigh(P)
    if eigenvalues[0] < -1e-10 * abs(eigenvalues[-1]):
        raise ValueError(
            f"precision: must be positive semidefinite, smallest eigenvalue {eigenvalues[0]:.3g}"
        )
    return vectors * np.sqrt(eigenvalues.clip(min=0))
