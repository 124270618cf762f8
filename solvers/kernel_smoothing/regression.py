"""Nadaraya-Watson regression: the classical side of softmax-type attention. Samples are rows."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, check_matrix
from ..scales import unit_under
from .weights import Kernel, Weights, check_mass, fill_rows, prepare_weights, rows_with_all_keys


def nadaraya_watson(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Kernel regression of `values` at `keys`, evaluated at `queries`.

    Row i of the result is the weighted least-squares estimate ::

        u_i = argmin_u sum_j K_ij |y_j - u|^2 = sum_j K_ij y_j / sum_j K_ij

    with q_i the rows of `queries`, k_j those of `keys`, y_j those of `values`,
    ``K_ij = k(r_ij)`` and ``r_ij = |q_i - k_j| / bandwidth``:

    ============  ====================================================================
    gaussian      ``k(r) = exp(-r^2 / 2)``, i.e. ``exp(-|q - k|^2 / (2 bandwidth^2))``
    laplace       ``k(r) = exp(-r)``
    epanechnikov  ``k(r) = max(1 - r^2, 0)``
    ============  ====================================================================

    Weights are computed in small tiles, never all at once: memory beyond the input and the result
    is a few copies of the points and one tile a thread. The answer does not depend on `n_jobs`.

    Parameters
    ----------
    queries : array-like of shape (n_queries, n_features)
    keys : array-like of shape (n_keys, n_features)
    values : array-like of shape (n_keys, n_values)
    bandwidth : float
        Kernel width s > 0, in the units of the features. ``s = n_features ** 0.25`` is scaled
        dot-product attention on keys of equal norm.
    kernel : {"gaussian", "laplace", "epanechnikov"} or callable
        A callable maps an array of scaled distances r >= 0, entry by entry, to weights from 0 to
        ``1e307 / n_keys``.
    precision : array-like of shape (n_features, n_features) or (n_features,), optional
        Matrix S^-1 of the Mahalanobis distance ``|q - k|^2 = (q - k) S^-1 (q - k)^T``, or the
        diagonal of a diagonal S^-1. It must be symmetric positive semidefinite, up to rounding in
        its dtype. None is the identity.
    n_jobs : int, optional
        Number of threads; None is 1.

    Returns
    -------
    ndarray of shape (n_queries, n_values)
        float32 if queries, keys and values are, else float64.

    Raises
    ------
    ValueError
        On NaN, infinity, unequal numbers of features or of keys and values, ``bandwidth <= 0``, an
        unknown kernel, or a query whose weights are all zero (compactly supported kernels).

    Notes
    -----
    Gaussian logits come from inner products of the points, relative to the mean key and in units
    of the bandwidth. Their rounding errors are a few times ``eps * c`` with
    ``c = max |q|^2 + max |k|^2``. Points in float32 are computed in float32 up to ``c = 64``, all
    others in float64 up to ``c = 512``. Beyond, and for other kernels, distances are sums of
    squared differences, so that a common offset costs no digits. These squares lose digits at
    distances under 1e-154 of the largest coordinate; points closer than 1e-162 of it coincide.

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
    queries, keys = check_queries_and_keys(queries, keys)
    values = check_values(values, keys)
    dtype = np.result_type(queries, keys, values)
    weights = prepare_weights(queries, keys, bandwidth, kernel, precision, dtype)
    out = np.empty((len(queries), values.shape[1]), dtype)
    return smooth(weights, values, out, n_jobs)


def smoother_matrix(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Row-stochastic matrix A of the smoother: ``nadaraya_watson(...) = A @ values``.

    ``A_ij = K_ij / sum_l K_il``; see `nadaraya_watson` for the kernels and the parameters.

    Returns
    -------
    ndarray of shape (n_queries, n_keys)
        float32 if queries and keys are, else float64.

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
    queries, keys = check_queries_and_keys(queries, keys)
    dtype = np.result_type(queries, keys)
    weights = prepare_weights(queries, keys, bandwidth, kernel, precision, dtype)
    out = np.empty((len(queries), len(keys)), dtype)
    return fill_rows(out, n_jobs, rows_with_all_keys(len(keys)), normalised_rows, weights)


def weighted_least_squares_residual(
    weights: ArrayLike, values: ArrayLike, estimate: ArrayLike
) -> Array:
    """Stationarity residual of the weighted least-squares problem behind a kernel smoother.

    For each row i, the norm of half the gradient of ``sum_j K_ij |y_j - u|^2`` at the estimate
    ``u = u_i``, relative to the sum of the weights times the largest norm of a value::

        |sum_j K_ij (u_i - y_j)| / (sum_j K_ij * max_j |y_j|)

    It is zero only at the Nadaraya-Watson estimate, and does not depend on the scale of a row of K.

    Parameters
    ----------
    weights : array-like of shape (n_queries, n_keys)
        Kernel values K_ij, or the normalised smoother; nonnegative with positive row sums.
    values : array-like of shape (n_keys, n_values)
        The rows y_j.
    estimate : array-like of shape (n_queries, n_values)
        The rows u_i.

    Returns
    -------
    ndarray of shape (n_queries,)

    Raises
    ------
    ValueError
        If shapes do not fit, an entry is not finite, a weight is negative, or a row of weights is
        zero.

    References
    ----------
    EQUATIONS IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import weighted_least_squares_residual
    >>> weighted_least_squares_residual([[1.0, 1.0]], [[2.0], [4.0]], [[3.0]])
    array([0.])
    """
    values = check_matrix(values, "values").astype(np.float64)
    K = check_matrix(weights, "weights", n_features=len(values)).astype(np.float64)
    estimate = check_estimate(estimate, values, len(K), "rows of weights")
    if (K < 0).any():
        raise ValueError(f"weights: must be >= 0, got {K.min()}")
    largest = K.max(axis=1, keepdims=True)
    if (largest == 0).any():
        raise ValueError("weights: every row must have a positive sum")
    K /= largest
    values, estimate = in_one_unit(values, estimate)
    mass = K.sum(axis=1)
    return relative(norms(mass[:, None] * estimate - K @ values) / mass, values)


def nadaraya_watson_residual(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    estimate: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Certificate of `nadaraya_watson`: `weighted_least_squares_residual` without a matrix K.

    ::

        |sum_j K_ij (u_i - y_j)| / (sum_j K_ij * max_j |y_j|)

    Weights are computed in tiles, in float64, from differences of coordinates and never from inner
    products. Other parameters are those of `nadaraya_watson`.

    Parameters
    ----------
    estimate : array-like of shape (n_queries, n_values)
        The rows u_i.

    Returns
    -------
    ndarray of shape (n_queries,)

    Raises
    ------
    ValueError
        As `nadaraya_watson` does, and if the estimate has another shape.

    References
    ----------
    EQUATIONS SE-5, IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import nadaraya_watson_residual
    >>> nadaraya_watson_residual([[0.5]], [[0.0], [1.0]], [[2.0], [4.0]], [[3.0]], bandwidth=1.0)
    array([0.])
    """
    queries, keys = check_queries_and_keys(queries, keys)
    values = check_values(values, keys).astype(np.float64)
    estimate = check_estimate(estimate, values, len(queries), "queries")
    weights = prepare_weights(queries, keys, bandwidth, kernel, precision, exact=True)
    values, estimate = in_one_unit(values, estimate)
    out = np.empty(len(queries))
    fill_rows(out, n_jobs, None, _gradient_rows, weights, values, estimate)
    return relative(out, values)


def smooth(weights: Weights, values: Array, out: Array, n_jobs: int | None) -> Array:
    """Fill `out` with the weighted means of the values."""
    # Each column has its own unit: small columns keep their digits, and sums do not overflow.
    units = unit_under(values, axis=0)
    scaled = (values / units).astype(weights.keys.dtype)
    fill_rows(out, n_jobs, None, _mean_rows, weights, scaled)
    out *= units.astype(out.dtype)
    return out


def normalised_rows(weights: Weights, rows: slice) -> Array:
    """Return the weights of all keys for some queries, with row sums of 1."""
    (tile,) = weights.tiles(rows, whole=True)
    check_mass(tile.mass, rows)
    return tile.weights / tile.mass[:, None].astype(tile.weights.dtype)


def _mean_rows(weights: Weights, values: Array, rows: slice) -> Array:
    """Return the weighted means of the values for some queries."""
    total, mass = _sums(weights, values, rows)
    return total / mass[:, None]


def _gradient_rows(weights: Weights, values: Array, estimate: Array, rows: slice) -> Array:
    """Return norms of half the gradients over the sum of the weights, for some queries."""
    total, mass = _sums(weights, values, rows)
    return norms(estimate[rows] - total / mass[:, None])


def _sums(weights: Weights, values: Array, rows: slice) -> tuple[Array, Array]:
    """Return the weighted sums of the values, and the sums of the weights, for some queries."""
    n_rows = rows.stop - rows.start
    total, mass = np.zeros((n_rows, values.shape[1])), np.zeros(n_rows)
    for tile in weights.tiles(rows):
        if tile.factor is not None:
            total *= tile.factor[:, None]
            mass *= tile.factor
        total += tile.weights @ values[tile.columns]
        mass += tile.mass
    check_mass(mass, rows)
    return total, mass


def in_one_unit(values: Array, estimate: Array) -> tuple[Array, Array]:
    """Divide both by one power of two, so that entries are at most 2 in size."""
    unit = unit_under(values, estimate)
    return values / unit, estimate / unit


def relative(gradients: Array, values: Array) -> Array:
    """Return norms of gradients divided by the largest norm of a row of `values`; 0 / 0 is 0."""
    with np.errstate(over="ignore"):
        return gradients / max(float(norms(values).max()), np.finfo(np.float64).tiny)


def norms(X: Array) -> Array:
    """Return the norms of the rows, scaled so that no square overflows or vanishes."""
    size = np.maximum(np.abs(X).max(axis=1), np.finfo(np.float64).tiny)
    return size * np.linalg.norm(X / size[:, None], axis=1)


def check_queries_and_keys(queries: ArrayLike, keys: ArrayLike) -> tuple[Array, Array]:
    """Return both as finite matrices of as many columns."""
    keys = check_matrix(keys, "keys")
    return check_matrix(queries, "queries", n_features=keys.shape[1]), keys


def check_values(values: ArrayLike, keys: Array) -> Array:
    """Return values as a finite matrix with a row for each key."""
    checked = check_matrix(values, "values")
    if len(checked) != len(keys):
        raise ValueError(f"values: has {len(checked)} rows, but there are {len(keys)} keys")
    return checked


def check_estimate(estimate: ArrayLike, values: Array, n_rows: int, what: str) -> Array:
    """Return an estimate in float64 with `n_rows` rows, one for each of `what`."""
    checked = check_matrix(estimate, "estimate", n_features=values.shape[1])
    if len(checked) != n_rows:
        raise ValueError(f"estimate: has {len(checked)} rows, but there are {n_rows} {what}")
    return checked.astype(np.float64)
