"""Locally linear kernel regression. Samples are rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array
from ..scales import unit_under
from .regression import (
    check_estimate,
    check_queries_and_keys,
    check_values,
    in_one_unit,
    normalised_rows,
    norms,
    relative,
)
from .weights import Kernel, Weights, fill_rows, prepare_weights, rows_with_all_keys


def local_linear_regression(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
    reg: float = 0.0,
    n_jobs: int | None = None,
) -> Array:
    """Fit an affine function around each query by weighted least squares, and evaluate it there.

    Row i of the result is the a of ::

        min_{a, B} sum_j K_ij |y_j - a - (k_j - q_i) B|^2 + reg tr(S_i) |B|_F^2
        S_i = sum_j K_ij (k_j - m_i)^T (k_j - m_i),   m_i = sum_j K_ij k_j

    with q_i the rows of `queries`, k_j those of `keys`, y_j those of `values`, and K the kernel of
    `nadaraya_watson` with row sums of 1. Affine data are reproduced exactly if ``reg = 0``. If the
    keys in reach do not determine the slope (fewer than n_features + 1 of them, or collinear ones),
    the minimiser with the smallest B is returned; with a single key, it is the value of that key.
    A direction in which the weighted variance of the keys is below ``n_keys * eps`` times the
    largest counts as undetermined. The cost is O(n_queries * n_keys * n_features^2).

    Parameters
    ----------
    queries : array-like of shape (n_queries, n_features)
    keys : array-like of shape (n_keys, n_features)
    values : array-like of shape (n_keys, n_values)
    bandwidth : float
    kernel : {"gaussian", "laplace", "epanechnikov"} or callable
    precision : array-like of shape (n_features, n_features) or (n_features,), optional
        As in `nadaraya_watson`. It enters the weights, not the penalty on B.
    reg : float, default=0.0
        Ridge penalty of the slope, relative to the spread of the keys. As it grows, the result
        tends to that of `nadaraya_watson`.
    n_jobs : int, optional
        Number of threads; None is 1.

    Returns
    -------
    ndarray of shape (n_queries, n_values)
        float32 if queries, keys and values are, else float64; computed in float64.

    Raises
    ------
    ValueError
        As `nadaraya_watson` does, and if ``reg < 0``.

    References
    ----------
    Cleveland (1979), Fan (1993); its constant case is EQUATIONS SE-5, IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers import local_linear_regression
    >>> line = [[0.0], [1.0], [3.0]]
    >>> local_linear_regression([[2.0]], line, line, bandwidth=1.0).round(12)
    array([[2.]])
    """
    problem, dtype = _check(queries, keys, values, bandwidth, kernel, precision, reg)
    out = np.empty((len(problem.queries), problem.values.shape[1]), dtype)
    return fill_rows(out, n_jobs, _n_rows(problem), _fit_rows, problem)


def local_linear_residual(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    estimate: ArrayLike,
    *,
    bandwidth: float,
    kernel: str | Kernel = "gaussian",
    precision: ArrayLike | None = None,
    reg: float = 0.0,
    n_jobs: int | None = None,
) -> Array:
    """Certificate of `local_linear_regression`: relative norm of half the gradient in a.

    For each query q_i, with a row i of `estimate` and B the best slope for this a::

        |sum_j K_ij (y_j - a - (k_j - q_i) B)| / (sum_j K_ij * max_j |y_j|)

    It is zero exactly at the minimisers. There are many of them if the keys in reach do not
    determine the function at the query.

    Parameters
    ----------
    estimate : array-like of shape (n_queries, n_values)
        The a of each query. The other parameters are those of `local_linear_regression`.

    Returns
    -------
    ndarray of shape (n_queries,)

    Raises
    ------
    ValueError
        As `local_linear_regression` does, and if the estimate has another shape.

    References
    ----------
    EQUATIONS IF-9 to IF-12.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import local_linear_residual
    >>> line = [[0.0], [1.0], [3.0]]
    >>> local_linear_residual([[2.0]], line, line, [[2.0]], bandwidth=1.0).round(12)
    array([0.])
    """
    problem, _ = _check(queries, keys, values, bandwidth, kernel, precision, reg)
    a = check_estimate(estimate, problem.values, len(problem.queries), "queries")
    values, a = in_one_unit(problem.values, a)
    problem = problem._replace(values=values)
    out = fill_rows(np.empty(len(a)), n_jobs, _n_rows(problem), _gradient_rows, problem, a)
    return relative(out, values)


class _Problem(NamedTuple):
    """Checked arguments of the regression, in float64, with the `weights` of keys for queries."""

    weights: Weights
    queries: Array
    keys: Array
    values: Array
    reg: float


def _check(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    bandwidth: float,
    kernel: str | Kernel,
    precision: ArrayLike | None,
    reg: float,
) -> tuple[_Problem, np.dtype]:
    """Return the checked arguments as a problem in float64, and the dtype of the result."""
    queries, keys = check_queries_and_keys(queries, keys)
    values = check_values(values, keys)
    reg = check_positive(reg, "reg", allow_zero=True)
    weights = prepare_weights(queries, keys, bandwidth, kernel, precision)
    q, k, v = (x.astype(np.float64) for x in (queries, keys, values))
    return _Problem(weights, q, k, v, reg), np.result_type(queries, keys, values)


def _n_rows(problem: _Problem) -> int:
    """Return the number of queries to fit at once."""
    return rows_with_all_keys(problem.keys.size)


def _fit_rows(problem: _Problem, rows: slice) -> Array:
    """Return the fitted values a of some queries."""
    w, keys = normalised_rows(problem.weights, rows), problem.keys
    near = w @ keys
    x = keys - near[:, None]
    # Centre once more: far from the origin the rounding error of the first mean would matter.
    shift = (w[:, None] @ x)[:, 0]
    x -= shift[:, None]
    offset = problem.queries[rows] - near - shift
    unit = np.abs(x).max(axis=(1, 2))
    unit[unit == 0] = 1
    x /= unit[:, None, None]
    weighted = (x * w[:, :, None]).transpose(0, 2, 1)  # (n_queries, d, n)
    grain = np.finfo(np.float64).eps * np.abs(near).max(axis=1) / unit
    slope = _solve(weighted @ x, weighted @ problem.values, problem.reg, len(keys), grain)
    return w @ problem.values + ((offset / unit[:, None])[:, None] @ slope)[:, 0]


def _solve(scatter: Array, right: Array, reg: float, n_keys: int, grain: Array) -> Array:
    """Return the smallest slopes B with ``(S + reg tr(S) I) B = right`` for each S in `scatter`.

    Coordinates that differ by no more than their rounding error `grain` count as equal.
    """
    eigenvalues, vectors = np.linalg.eigh(scatter)
    eigenvalues = eigenvalues.clip(min=0)
    noise = max(scatter.shape[1], n_keys) * np.finfo(np.float64).eps
    determined = eigenvalues > np.maximum(noise * eigenvalues[:, -1:], grain[:, None] ** 2)
    raised = eigenvalues + reg * eigenvalues.sum(axis=1, keepdims=True)
    inverse = np.divide(1, raised, out=np.zeros_like(raised), where=determined)
    return vectors @ (inverse[:, :, None] * (vectors.transpose(0, 2, 1) @ right))


def _gradient_rows(problem: _Problem, estimate: Array, rows: slice) -> Array:
    """Return the norms of half the gradients with respect to a, of some queries."""
    gradients = np.empty_like(estimate[rows])
    weights = normalised_rows(problem.weights, rows)
    for i, (w, q, a) in enumerate(zip(weights, problem.queries[rows], estimate[rows], strict=True)):
        x, errors, root = problem.keys - q, problem.values - a, np.sqrt(w)[:, None]
        x /= unit_under(x)
        spread = (w[:, None] * (x - w @ x) ** 2).sum()
        ridge = np.sqrt(problem.reg * spread) * np.eye(x.shape[1])
        right = np.concatenate([root * errors, np.zeros((x.shape[1], errors.shape[1]))])
        slope = np.linalg.lstsq(np.concatenate([root * x, ridge]), right)[0]
        gradients[i] = w @ (errors - x @ slope)
    return norms(gradients)
