"""Softmax kernel smoothing through landmarks: the Nyström quadrature of the kernel matrix."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from ...validation import check_integer, check_positive
from ..inputs import Array, check_matrix
from .regression import check_queries_and_keys, check_values


class NystromFactors(NamedTuple):
    """The factors of `nystrom_matrix`.

    Attributes
    ----------
    from_queries : ndarray of shape (n_queries, n_landmarks)
        Weights of the landmarks of the keys for each query.
    between : ndarray of shape (n_landmarks, n_landmarks)
        Weights of the landmarks of the keys for each landmark of the queries.
    to_keys : ndarray of shape (n_landmarks, n_keys)
        Weights of the keys for each landmark of the queries.
    """

    from_queries: Array
    between: Array
    to_keys: Array


def segment_means(X: ArrayLike, n_segments: int) -> Array:
    """Means of consecutive rows: the landmarks of `nystrom_factors`.

    Row i of n belongs to segment ``floor(i n_segments / n)``, so that sizes differ by at most one.
    With as many segments as rows or more, each row is its own mean.

    Parameters
    ----------
    X : array-like of shape (n, n_features)
    n_segments : int
        >= 1.

    Returns
    -------
    ndarray of shape (min(n, n_segments), n_features)
        In float64.

    Raises
    ------
    ValueError
        On NaN or infinity, or if `n_segments` is no whole number >= 1.

    References
    ----------
    Xiong et al. (2021); EQUATIONS QK-Nystrom.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import segment_means
    >>> segment_means([[0.0], [2.0], [4.0], [5.0], [7.0]], 2)
    array([[2.],
           [6.]])
    """
    X = check_matrix(X, "X").astype(np.float64)
    n_segments = min(check_integer(n_segments, "n_segments", 1), len(X))
    segments = np.arange(len(X)) * n_segments // len(X)
    return np.stack([X[segments == s].mean(axis=0) for s in range(n_segments)])


def nystrom_factors(
    queries: ArrayLike, keys: ArrayLike, *, n_landmarks: int, scale: float
) -> NystromFactors:
    """Softmax weights among queries, keys and landmarks, which are means of segments of them.

    ::

        F = sm(scale q k~^T),     A = sm(scale q~ k~^T),     B = sm(scale q~ k^T)

    with q~ and k~ the `segment_means` of queries and keys, and sm the softmax of each row.

    Parameters
    ----------
    queries : array-like of shape (n_queries, n_features)
    keys : array-like of shape (n_keys, n_features)
    n_landmarks : int
        >= 1; at most as many are used as there are queries, and keys.
    scale : float
        > 0, such as ``n_features ** -0.5``.

    Returns
    -------
    NystromFactors

    Raises
    ------
    ValueError
        On NaN, infinity, unequal numbers of features, or a number out of range.

    References
    ----------
    Xiong et al. (2021); EQUATIONS QK-Nystrom.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import nystrom_factors
    >>> x = [[0.0], [0.0], [0.0]]
    >>> nystrom_factors(x, x, n_landmarks=1, scale=1.0).to_keys.round(3)
    array([[0.333, 0.333, 0.333]])
    """
    queries, keys = check_queries_and_keys(queries, keys)
    scale = check_positive(scale, "scale")
    n_landmarks = min(check_integer(n_landmarks, "n_landmarks", 1), len(queries), len(keys))
    q, k = (x.astype(np.float64) for x in (queries, keys))
    of_queries, of_keys = (segment_means(x, n_landmarks) for x in (q, k))
    pairs = (q, of_keys), (of_queries, of_keys), (of_queries, k)
    return NystromFactors(*(softmax(scale * a @ b.T, axis=1) for a, b in pairs))


def nystrom_matrix(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    n_landmarks: int,
    scale: float,
    n_iter: int | None = None,
) -> Array:
    """The Nyström quadrature ``F A^+ B`` of the softmax matrix ``sm(scale q k^T)``.

    Its rank is at most the number of landmarks. It is the softmax matrix itself if all queries and
    keys are landmarks: then F, A and B all are that matrix, and ``A A^+ A = A``. Rows sum to one
    where A can be inverted; entries may be negative.

    Parameters
    ----------
    queries, keys, n_landmarks, scale
        As in `nystrom_factors`.
    n_iter : int, optional
        Take `iterated_pseudo_inverse` in place of the pseudo-inverse; where all queries and keys
        are landmarks, the matrix is F all the same.

    Returns
    -------
    ndarray of shape (n_queries, n_keys)
        In float64.

    Raises
    ------
    ValueError
        As `nystrom_factors` and `iterated_pseudo_inverse` do.

    References
    ----------
    Williams and Seeger (2001); Xiong et al. (2021); EQUATIONS QK-Nystrom.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.special import softmax
    >>> from twinsolve.solvers.kernel_smoothing import nystrom_matrix
    >>> X = np.random.default_rng(0).standard_normal((6, 2))
    >>> bool(np.allclose(nystrom_matrix(X, X, n_landmarks=6, scale=1.0), softmax(X @ X.T, axis=1)))
    True
    """
    F, A, B = nystrom_factors(queries, keys, n_landmarks=n_landmarks, scale=scale)
    if n_landmarks >= max(len(F), B.shape[1]):
        return F
    inverse = np.linalg.pinv(A) if n_iter is None else iterated_pseudo_inverse(A, n_iter)
    return np.asarray(F @ inverse @ B)


def nystrom_smoother(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    n_landmarks: int,
    scale: float,
    n_iter: int | None = None,
) -> Array:
    """Smooth the values by `nystrom_matrix`: ``F A^+ (B y)``.

    Parameters
    ----------
    queries, keys, n_landmarks, scale, n_iter
        As in `nystrom_matrix`.
    values : array-like of shape (n_keys, n_values)

    Returns
    -------
    ndarray of shape (n_queries, n_values)
        In float64.

    Raises
    ------
    ValueError
        As `nystrom_matrix` does, and if there are not as many values as keys.

    References
    ----------
    EQUATIONS QK-Nystrom.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import nystrom_smoother
    >>> x = [[0.0], [0.0], [0.0]]
    >>> nystrom_smoother(x, x, [[1.0], [2.0], [6.0]], n_landmarks=1, scale=1.0).round(6)
    array([[3.],
           [3.],
           [3.]])
    """
    queries, keys = check_queries_and_keys(queries, keys)
    values = check_values(values, keys).astype(np.float64)
    M = nystrom_matrix(queries, keys, n_landmarks=n_landmarks, scale=scale, n_iter=n_iter)
    return np.asarray(M @ values)


def iterated_pseudo_inverse(A: ArrayLike, n_iter: int) -> Array:
    """The pseudo-inverse of a nonnegative matrix by iterations of third order, from its spectrum.

    ::

        Z_0 = A^T / (max column sum * max row sum),
        Z  <-  Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4

    ``E = I - A Z`` becomes ``(3 E^3 + E^4) / 4``, and Z tends to the pseudo-inverse. Singular
    vectors stay those of A^T, so that each singular value is iterated by itself, without the
    rounding of products. Small ones grow by at most 13/4 a step: few steps regularise the inverse.

    Parameters
    ----------
    A : array-like of shape (m, n)
        >= 0, with an entry that is not 0.
    n_iter : int
        >= 0.

    Returns
    -------
    ndarray of shape (n, m)
        In float64.

    Raises
    ------
    ValueError
        On NaN, infinity, negative entries, a matrix of zeros, or an `n_iter` out of range.

    References
    ----------
    Razavi et al. (2014); Xiong et al. (2021); EQUATIONS QK-pinv.

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import iterated_pseudo_inverse
    >>> iterated_pseudo_inverse([[2.0, 0.0], [0.0, 1.0]], 20)
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    A = check_matrix(A, "A").astype(np.float64)
    check_integer(n_iter, "n_iter", 0)
    if (A < 0).any() or not A.any():
        raise ValueError("A: must be >= 0 with an entry that is not 0")
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    z = s / (A.sum(axis=0).max() * A.sum(axis=1).max())
    for _ in range(n_iter):
        z = z * (13 - s * z * (15 - s * z * (7 - s * z))) / 4
    return np.asarray((Vt.T * z) @ U.T)


def pseudo_inverse_residual(A: ArrayLike, Z: ArrayLike) -> float:
    """The largest violation of Penrose's four conditions, which the pseudo-inverse alone meets.

    ::

        A Z A = A,     Z A Z = Z,     A Z and Z A symmetric

    Each is a largest entry, relative to that of A, of Z, or to 1.

    Parameters
    ----------
    A : array-like of shape (m, n)
    Z : array-like of shape (n, m)

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity or shapes that do not fit.

    References
    ----------
    Penrose (1955).

    Examples
    --------
    >>> from twinsolve.solvers.kernel_smoothing import pseudo_inverse_residual
    >>> pseudo_inverse_residual([[2.0]], [[0.25]])
    0.5
    """
    A = check_matrix(A, "A").astype(np.float64)
    Z = check_matrix(Z, "Z", n_features=len(A)).astype(np.float64)
    if len(Z) != A.shape[1]:
        raise ValueError(f"Z: must have {A.shape[1]} rows, one for each column of A, got {len(Z)}")
    AZ, ZA = A @ Z, Z @ A
    tiny = np.finfo(np.float64).tiny
    off = (
        np.abs(AZ @ A - A).max() / max(np.abs(A).max(), tiny),
        np.abs(ZA @ Z - Z).max() / max(np.abs(Z).max(), tiny),
        np.abs(AZ - AZ.T).max(),
        np.abs(ZA - ZA.T).max(),
    )
    return float(max(off))
