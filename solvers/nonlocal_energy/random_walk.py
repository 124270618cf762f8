"""Attention as a random walk on the tokens: the limit of repeated smoothing."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path

from ...validation import check_integer
from ..inputs import Array, check_matrix
from .spectrum import largest_moduli
from .state_reduction import irreducible_distribution
from .weights import check_transitions, common_dtype, not_callable


def random_walk_values(values: ArrayLike, A: Any, *, n_steps: int) -> Array:
    """Expected value at the end of a random walk of k steps, for each starting token.

    ::

        E[ v at the walk's token after k steps | it starts from token i ] = (A^k v)_i

    with v the rows of `values`. The walk moves from token i to token j with probability A_ij. Its
    states are the tokens, not their values: two tokens may have the same value.

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

    It is positive and unique if every token can be reached from every other, as under softmax. For
    ``A = diag(d)^-1 K`` with K symmetric and connected it is ``d / sum(d)``. It is 0 at tokens that
    the walk leaves for good: under a causal mask, it is 1 at the first token.

    The method, state reduction, never subtracts. So every entry is as accurate as the probabilities
    of moving to another token, even for a peaked softmax; the probabilities of staying are not
    read. Only a sparse A with more than 2,000 tokens in its closed class is solved as a linear
    system, whose errors grow if parts of the class are nearly disconnected.

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
        closed class of tokens, as there are then many stationary distributions. Also if
        probabilities are so small that they underflow or that the linear system fails.

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

    This is over-smoothing; `random_walk_rate` is its rate.

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
        As `stationary_distribution`, if shapes do not fit, and if the walk is periodic, as then pi
        exists but ``A^k v`` has no limit.

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

    Eigenvalues count with their multiplicity. ``A^k v`` approaches its limit like ``rate ** k``,
    times a power of k if A is not diagonalisable. The rate is 1 if there is no limit, or if the
    limit depends on the starting token.

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
    """Return the tokens of the class that the walk cannot leave, which must be unique."""
    edges = _edges(matrix)
    _, labels = connected_components(edges, connection="strong")
    pairs = edges.tocoo()
    leaves = labels[pairs.row] != labels[pairs.col]
    closed = np.setdiff1d(labels, labels[pairs.row[leaves]])
    if len(closed) > 1:
        raise ValueError(
            f"A: must have one closed class of tokens, got {len(closed)}, so that the stationary "
            "distribution is not unique"
        )
    return np.flatnonzero(labels == closed[0])


def _period(matrix: Any) -> int:
    """Return the greatest common divisor of the lengths of all cycles in the closed class."""
    closed = _closed_class(matrix)
    edges = _edges(matrix[closed][:, closed])
    levels = shortest_path(edges, unweighted=True, indices=0).astype(int)
    pairs = edges.tocoo()
    return int(np.gcd.reduce(levels[pairs.row] + 1 - levels[pairs.col]))


def _edges(matrix: Any) -> csr_array:
    """Return the moves of positive probability, without stored zeros, as a graph."""
    edges = csr_array(matrix, copy=True)
    edges.eliminate_zeros()
    return edges
