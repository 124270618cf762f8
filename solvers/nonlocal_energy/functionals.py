"""Nonlocal smoothness J, the regularised energy E, and their gradients. Tokens are rows."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from scipy.spatial.distance import cdist
from sklearn.utils import gen_batches

from ..inputs import Array, check_matrix
from .problem import check_energy_problem
from .weights import Weights, check_weights, common_dtype, not_callable

_BLOCK_ENTRIES = 2**22


def smoothness(u: ArrayLike, K: Any) -> float:
    """Nonlocal smoothness functional of tokens u under symmetric weights K.

    ::

        J(u) = 1/4 sum_ij K_ij |u_i - u_j|^2 = 1/2 tr u^T (diag(d) - K) u,     d_i = sum_j K_ij

    The papers write ``1/2 sum_ij k_ij |u_i - u_j|^2`` with weights k that need not be symmetric.
    This is J for ``K = k + k.T``, so pass this K; for symmetric k it is ``2 k``.

    Parameters
    ----------
    u : array-like of shape (n_tokens, n_features)
    K : array-like or sparse array of shape (n_tokens, n_tokens)
        Symmetric and nonnegative; the diagonal has no effect.

    Returns
    -------
    float
        Summed over the features. As it is computed from differences, it is accurate in relative
        terms even if u is almost constant.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, or K not symmetric or not nonnegative.

    References
    ----------
    Gilboa and Osher, "Nonlocal operators with applications to image processing" (2008);
    EQUATIONS NT-5.

    Examples
    --------
    >>> from twinsolve.solvers import smoothness
    >>> smoothness([[0.0], [2.0]], [[0.0, 3.0], [3.0, 0.0]])
    6.0
    """
    u = check_matrix(u, "u").astype(np.float64)
    return _sum_of_differences(u, check_weights(not_callable(K, "K"), len(u)))


def smoothness_gradient(u: ArrayLike, K: Any) -> Array:
    """Gradient of `smoothness`: row i is ``sum_j K_ij (u_i - u_j)``, i.e. ``(diag(d) - K) u``.

    A gradient step with the length ``1 / d_i`` for token i gives ``diag(d)^-1 K u``: attention with
    shared queries and keys. Attention with q != k is in general no such step (errata E2-a, E2-b).

    Parameters
    ----------
    u, K
        As given to `smoothness`.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)

    Raises
    ------
    ValueError
        As `smoothness` does.

    References
    ----------
    EQUATIONS NT-8, NT-10 to NT-14.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import smoothness_gradient
    >>> smoothness_gradient([[0.0], [2.0]], [[0.0, 3.0], [3.0, 0.0]])
    array([[-6.],
           [ 6.]])
    """
    u = check_matrix(u, "u")
    weights = check_weights(not_callable(K, "K"), len(u))
    gradient = weights.laplacian(u.astype(np.float64))
    return gradient.astype(common_dtype(u, K), copy=False)


def regularized_energy(
    u: ArrayLike, f: ArrayLike, K: Any, lam: float, *, fidelity: str = "constant"
) -> float:
    """Smoothness of u plus its squared distance to the observed tokens f.

    ::

        E(u) = J(u) + lam/2 sum_i      |u_i - f_i|^2        fidelity="constant"
        E(u) = J(u) + lam/2 sum_i d_i  |u_i - f_i|^2        fidelity="degree"

    with J and d as in `smoothness`.

    Parameters
    ----------
    u, f : array-like of shape (n_tokens, n_features)
    K : array-like or sparse array of shape (n_tokens, n_tokens)
        Symmetric and nonnegative.
    lam : float
        Weight > 0 of the fidelity.
    fidelity : {"constant", "degree"}, default="constant"
        "constant" is the energy E of the literature. "degree" is the energy that attention with a
        constant skip weight minimises (see `minimize_energy`).

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, K not symmetric or not nonnegative, ``lam <= 0``
        or an unknown fidelity.

    References
    ----------
    EQUATIONS NT-5, NT-FP; the two fidelities differ (erratum E2-c).

    Examples
    --------
    >>> from twinsolve.solvers import regularized_energy
    >>> K = [[0.0, 3.0], [3.0, 0.0]]
    >>> regularized_energy([[0.0], [2.0]], [[1.0], [2.0]], K, 4.0)
    8.0
    >>> regularized_energy([[0.0], [2.0]], [[1.0], [2.0]], K, 4.0, fidelity="degree")
    12.0
    """
    problem, _ = check_energy_problem(f, not_callable(K, "K"), lam, fidelity)
    u = check_matrix(u, "u", n_features=problem.f.shape[1]).astype(np.float64)
    _check_length(u, problem.f)
    distance = (problem.fidelity * (u - problem.f) ** 2).sum()
    return _sum_of_differences(u, problem.weights) + float(distance) / 2


def energy_gradient(
    u: ArrayLike, f: ArrayLike, K: Any, lam: float, *, fidelity: str = "constant"
) -> Array:
    """Gradient of `regularized_energy` with respect to u.

    Row i is ``sum_j K_ij (u_i - u_j) + lam (u_i - f_i)``; with ``fidelity="degree"`` the second
    term is multiplied by ``d_i``. The gradient vanishes only at the minimiser.

    Parameters
    ----------
    u, f, K, lam, fidelity
        As given to `regularized_energy`.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)

    Raises
    ------
    ValueError
        As `regularized_energy` does.

    References
    ----------
    EQUATIONS NT-8, NT-21.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import energy_gradient
    >>> energy_gradient([[0.0], [2.0]], [[1.0], [2.0]], [[0.0, 3.0], [3.0, 0.0]], 4.0)
    array([[-10.],
           [  6.]])
    """
    problem, dtype = check_energy_problem(f, not_callable(K, "K"), lam, fidelity)
    u = check_matrix(u, "u", n_features=problem.f.shape[1])
    _check_length(u, problem.f)
    return problem.gradient(u.astype(np.float64)).astype(np.result_type(u, dtype), copy=False)


def _check_length(u: Array, f: Array) -> None:
    if len(u) != len(f):
        raise ValueError(f"u: has {len(u)} rows, but f has {len(f)}")


def _sum_of_differences(u: Array, weights: Weights) -> float:
    """Return ``1/4 sum_ij K_ij |u_i - u_j|^2``."""
    K = weights.matrix
    if issparse(K):
        edges = K.tocoo()
        columns = (column[edges.row] - column[edges.col] for column in u.T)
        return float(sum(edges.data @ differences**2 for differences in columns)) / 4
    blocks = gen_batches(len(u), max(1, _BLOCK_ENTRIES // len(u)))
    return float(sum(np.vdot(K[rows], cdist(u[rows], u, "sqeuclidean")) for rows in blocks)) / 4
