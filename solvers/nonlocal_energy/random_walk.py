"""Attention as a random walk on the tokens: what repeated smoothing tends to."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path

from ..solution import Array, check_integer, check_matrix
from .spectrum import largest_moduli
from .state_reduction import irreducible_distribution
from .weights import check_transitions, common_dtype, not_callable


def random_walk_values(values: ArrayLike, A: Any, *, n_steps: int) -> Array:
    """Mean value at the end of a random walk of k steps, for each token that it may start from.

    ::

        E[ v at the walk's token after k steps | it starts from token i ] = (A^k v)_i

    Token i moves to token j with probability A_ij. The walk is on tokens, not on their values: two
    tokens may share a value.

    Parameters
    ----------
    values : array-like of shape (n_tokens, n_features)
    A : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        Nonnegative with row sums 1, or the function ``v -> A @ v``.
    n_steps : int
        Number of steps k >= 0.

    Returns
    -------
    ndarray of shape (n_tokens, n_features)

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, A not nonnegative or a row sum that is not 1, or
        ``n_steps < 0``.

    References
    ----------
    EQUATIONS NT-L1.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import random_walk_values
    >>> random_walk_values([[0.0], [4.0]], [[1.0, 0.0], [0.5, 0.5]], n_steps=2)
    array([[0.],
           [1.]])
    """
    values = check_matrix(values, "values")
    product = check_transitions(A, len(values)).product
    v = values.astype(np.float64)
    for _ in range(check_integer(n_steps, "n_steps", minimum=0)):
        v = product(v)
    return v.astype(common_dtype(values, A), copy=False)


def stationary_distribution(A: Any) -> Array:
    """Stationary distribution of a random walk: ``pi A = pi``, ``pi >= 0``, ``sum(pi) = 1``.

    It is positive and unique where every token is reached from every other, as under softmax. For
    ``A = diag(d)^-1 K`` with K symmetric and connected it is ``d / sum(d)``. Tokens that the walk
    leaves for good have 0: under a causal mask pi is 1 at the first token.

    State reduction never subtracts: however peaked the softmax, every entry is as accurate as the
    probabilities of moving to another token; those of staying are not read. Only a sparse A with
    more than 2,000 tokens in its closed class is solved as a linear system, with errors that grow
    as parts of it are nearly apart.

    Parameters
    ----------
    A : array-like or sparse array of shape (n_tokens, n_tokens)
        Nonnegative with row sums 1.

    Returns
    -------
    ndarray of shape (n_tokens,)
        In float64.

    Raises
    ------
    ValueError
        On NaN, infinity, A not square or not nonnegative, a row sum that is not 1, or more than one
        closed class of tokens: then there are many stationary distributions. Also if probabilities
        are so small that they underflow, or that the linear system fails.

    References
    ----------
    Grassmann, Taksar and Heyman, "Regenerative analysis and steady state distributions for Markov
    chains" (1985); EQUATIONS NT-L2, NT-20.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import stationary_distribution
    >>> stationary_distribution([[0.5, 0.5], [0.25, 0.75]]).round(4)
    array([0.3333, 0.6667])
    """
    matrix = check_transitions(not_callable(A, "A")).matrix
    closed = _closed_class(matrix)
    pi = np.zeros(matrix.shape[0])
    pi[closed] = irreducible_distribution(matrix[closed][:, closed])
    return pi


def random_walk_limit(values: ArrayLike, A: Any) -> Array:
    """Limit of repeated smoothing: ``A^k v -> 1 (pi^T v)``, the same value at every token.

    `random_walk_rate` says how fast: this is over-smoothing.

    Parameters
    ----------
    values : array-like of shape (n_tokens, n_features)
    A : array-like or sparse array of shape (n_tokens, n_tokens)
        Nonnegative with row sums 1.

    Returns
    -------
    ndarray of shape (n_features,)
        ``pi^T v``.

    Raises
    ------
    ValueError
        As `stationary_distribution`, if shapes do not fit, and if the walk is periodic: then pi
        exists, but ``A^k v`` has no limit.

    References
    ----------
    EQUATIONS NT-20.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import random_walk_limit
    >>> random_walk_limit([[3.0], [6.0]], [[0.5, 0.5], [0.25, 0.75]]).round(6)
    array([5.])
    """
    values = check_matrix(values, "values")
    matrix = check_transitions(not_callable(A, "A"), len(values)).matrix
    if (period := _period(matrix)) > 1:
        raise ValueError(f"A: the walk has period {period}, so A^k v has no limit")
    limit = stationary_distribution(matrix) @ values.astype(np.float64)
    return limit.astype(common_dtype(values, A), copy=False)


def random_walk_rate(A: Any) -> float:
    """Rate of over-smoothing: the second largest absolute eigenvalue of A.

    Eigenvalues count with their multiplicity. ``A^k v`` nears its limit like ``rate ** k``, up to a
    power of k where A is not diagonalisable. The rate is 1 where there is no limit, or one that
    depends on where the walk starts.

    Parameters
    ----------
    A : array-like or sparse array of shape (n_tokens, n_tokens)
        Nonnegative with row sums 1.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        On NaN, infinity, A not square or not nonnegative, or a row sum that is not 1.
    scipy.sparse.linalg.ArpackNoConvergence
        Above 1,000 tokens, if the Arnoldi iteration fails; never for a triangular A, whose
        eigenvalues are its diagonal.

    References
    ----------
    EQUATIONS NT-20.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import random_walk_rate
    >>> random_walk_rate([[0.75, 0.25], [0.25, 0.75]])
    0.5
    """
    transitions = check_transitions(not_callable(A, "A"))
    n = transitions.matrix.shape[0]
    return float(largest_moduli(transitions, np.zeros((n, 1)), 2)[1]) if n > 1 else 0.0


def _closed_class(matrix: Any) -> Array:
    """Tokens of the only class that the walk cannot leave."""
    edges = _edges(matrix)
    _, labels = connected_components(edges, connection="strong")
    pairs = edges.tocoo()
    leaves = labels[pairs.row] != labels[pairs.col]
    closed = np.setdiff1d(labels, labels[pairs.row[leaves]])
    if len(closed) > 1:
        raise ValueError(
            f"A: {len(closed)} classes of tokens are closed, so there is no unique stationary "
            "distribution"
        )
    return np.flatnonzero(labels == closed[0])


def _period(matrix: Any) -> int:
    """Greatest common divisor of the lengths of the closed class's cycles."""
    closed = _closed_class(matrix)
    edges = _edges(matrix[closed][:, closed])
    levels = shortest_path(edges, unweighted=True, indices=0).astype(int)
    pairs = edges.tocoo()
    return int(np.gcd.reduce(levels[pairs.row] + 1 - levels[pairs.col]))


def _edges(matrix: Any) -> csr_array:
    """Return the moves of positive probability; a stored zero would count as one."""
    edges = csr_array(matrix, copy=True)
    edges.eliminate_zeros()
    return edges
