"""The energy of a memory of patterns, and bounds on its retrieval."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from ...validation import check_positive
from ..inputs import Array, check_matrix


def hopfield_energy(states: ArrayLike, patterns: ArrayLike, *, beta: float) -> Array:
    """Energy of each state in a memory of patterns.

    ::

        E(xi) = -1/beta log sum_i exp(beta x_i . xi) + 1/2 |xi|^2 + log(N) / beta + M^2 / 2 >= 0

    with N patterns ``x_i`` of which the largest has the norm M. Its gradient is ``xi - f(xi)``,
    where ``f(xi)`` is softmax attention of the state to the patterns at scale beta.

    Parameters
    ----------
    states : array-like of shape (n_states, n_features)
    patterns : array-like of shape (n_patterns, n_features)
    beta : float
        Inverse temperature > 0.

    Returns
    -------
    ndarray of shape (n_states,)
        In float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or a beta that is not positive.

    References
    ----------
    Ramsauer et al., "Hopfield networks is all you need" (2021); EQUATIONS HM-1.

    Examples
    --------
    >>> from twinsolve.solvers.associative_memory import hopfield_energy
    >>> hopfield_energy([[1.0], [2.0]], [[1.0]], beta=3.0)
    array([0. , 0.5])
    """
    xi, X, beta = check_memory(states, patterns, beta)
    products = xi @ X.T
    largest = products.max(axis=1)
    below = beta * (products - largest[:, None])
    excess = np.expm1(below).mean(axis=1)  # in (-1, 0]; small where beta is
    with np.errstate(divide="ignore"):
        log_mean = np.log1p(excess)
    log_mean = np.where(excess > -0.5, log_mean, logsumexp(below, axis=1) - np.log(len(X)))
    half_squares = (xi**2).sum(axis=1) / 2 + (X**2).sum(axis=1).max() / 2
    energy: Array = half_squares - largest - log_mean / beta
    return energy


def retrieval_lipschitz_bound(patterns: ArrayLike, *, beta: float) -> float:
    """Lipschitz constant of a step of retrieval: ``beta diam^2 / 4``.

    The diameter is the largest distance of two patterns. The bound is reached half-way between two
    patterns. Below 1 it is the rate at which all states tend to one fixed point.

    Parameters
    ----------
    patterns, beta
        As in `hopfield_energy`.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity or a beta that is not positive.

    References
    ----------
    EQUATIONS HM-1.

    Examples
    --------
    >>> from twinsolve.solvers.associative_memory import retrieval_lipschitz_bound
    >>> retrieval_lipschitz_bound([[1.0], [-1.0]], beta=0.5)
    0.5
    """
    X = check_matrix(patterns, "patterns").astype(np.float64, copy=False)
    return float(check_positive(beta, "beta") * cdist(X, X, "sqeuclidean").max() / 4)


def retrieval_error_bound(states: ArrayLike, patterns: ArrayLike, *, beta: float) -> Array:
    """Bound on the distance of one step of retrieval from each pattern.

    ::

        |f(xi) - x_i| <= 2 M (N - 1) exp(-beta (D_i - 2 M |xi - x_i|))
        D_i = min_{j != i} x_i . (x_i - x_j)

    A pattern is retrieved in one step where it is separated from the others and the state is near.
    For two opposite patterns the bound is at most twice the distance.

    Parameters
    ----------
    states, patterns, beta
        As in `hopfield_energy`.

    Returns
    -------
    ndarray of shape (n_states, n_patterns)
        In float64; infinity where the bound overflows.

    Raises
    ------
    ValueError
        As `hopfield_energy` does.

    References
    ----------
    Ramsauer et al., "Hopfield networks is all you need" (2021); EQUATIONS HM-2.

    Examples
    --------
    >>> from twinsolve.solvers.associative_memory import retrieval_error_bound
    >>> retrieval_error_bound([[1.0]], [[1.0], [-1.0]], beta=2.0).round(6)
    array([[3.66313e-02, 1.09196e+02]])
    """
    xi, X, beta = check_memory(states, patterns, beta)
    products = X @ X.T
    away = products.diagonal()[:, None] - products
    np.fill_diagonal(away, np.inf)
    M = np.sqrt(products.diagonal().max())
    with np.errstate(over="ignore"):
        leak = np.exp(-beta * (away.min(axis=1) - 2 * M * cdist(xi, X)))
        bound: Array = 2 * M * (len(X) - 1) * leak
    return bound


def check_memory(states: ArrayLike, patterns: ArrayLike, beta: float) -> tuple[Array, Array, float]:
    """Return states, patterns and beta, in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, unequal widths or a beta that is not positive.
    """
    X = check_matrix(patterns, "patterns").astype(np.float64, copy=False)
    xi = check_matrix(states, "states", n_features=X.shape[1]).astype(np.float64, copy=False)
    return xi, X, check_positive(beta, "beta")
