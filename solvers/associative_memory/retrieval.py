"""Retrieval of patterns: the concave-convex procedure on the energy of a memory."""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from ...validation import check_integer, check_positive
from ..inputs import Array
from .energy import check_memory, hopfield_energy


class RetrievalStep(NamedTuple):
    """States after one step, and by how much the step is proved to lower their energy.

    Attributes
    ----------
    states : ndarray of shape (n_states, n_features)
    decrease : ndarray of shape (n_states,)
        The energy falls by at least so much.
    """

    states: Array
    decrease: Array


class Retrieval(NamedTuple):
    """What a memory retrieves, and how far it is from a fixed point.

    Attributes
    ----------
    states : ndarray of shape (n_states, n_features)
    energy : ndarray of shape (n_steps + 1, n_states)
        Before the first step and after each; that of a state that has stopped stays.
    residual : ndarray of shape (n_states,)
        ``|xi - f(xi)| / M``, the size of the gradient of the energy at `states`.
    n_iter : ndarray of int of shape (n_states,)
        Steps taken.
    converged : ndarray of bool of shape (n_states,)
        Whether the residual is at most `tol`.
    """

    states: Array
    energy: Array
    residual: Array
    n_iter: Array
    converged: Array


def retrieval_step(states: ArrayLike, patterns: ArrayLike, *, beta: float) -> RetrievalStep:
    """One step of retrieval: softmax attention of the states to the patterns.

    ::

        f(xi) = sum_i p_i x_i,    p = softmax(beta X xi),    E(xi) - E(f(xi)) >= 1/2 |f(xi) - xi|^2

    It is a gradient step of length 1 on `hopfield_energy`, and its concave-convex procedure: it
    minimises the energy with the concave part replaced by its tangent.

    Parameters
    ----------
    states : array-like of shape (n_states, n_features)
    patterns : array-like of shape (n_patterns, n_features)
    beta : float
        Inverse temperature > 0.

    Returns
    -------
    RetrievalStep
        ``states`` and ``decrease``, in float64.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit or a beta that is not positive.

    References
    ----------
    Ramsauer et al., "Hopfield networks is all you need" (2021); EQUATIONS HM-1.

    Examples
    --------
    >>> from twinsolve.solvers.associative_memory import retrieval_step
    >>> retrieval_step([[3.0]], [[1.0]], beta=1.0)
    RetrievalStep(states=array([[1.]]), decrease=array([2.]))
    """
    xi, X, beta = check_memory(states, patterns, beta)
    after = softmax(beta * xi @ X.T, axis=1) @ X
    return RetrievalStep(after, ((after - xi) ** 2).sum(axis=1) / 2)


def retrieve(
    states: ArrayLike,
    patterns: ArrayLike,
    *,
    beta: float,
    tol: float = 1e-8,
    max_iter: int = 1000,
) -> Retrieval:
    """Iterate `retrieval_step` until each state is a fixed point up to a tolerance.

    The energy falls in each step by half of the squared step, so that among the first K steps there
    is one of at most ``sqrt(2 E_0 / K)``. A fixed point is a critical point of the energy: a
    pattern, nearly, or a mean of patterns that the memory does not tell apart at this beta. Each
    state stops by itself.

    Parameters
    ----------
    states, patterns, beta
        As in `retrieval_step`.
    tol : float, default=1e-8
        Largest residual ``|xi - f(xi)| / M``, > 0; M is the norm of the largest pattern.
    max_iter : int, default=1000
        >= 1.

    Returns
    -------
    Retrieval

    Raises
    ------
    ValueError
        As `retrieval_step` does, and on a `tol` or `max_iter` that is out of range.

    Warns
    -----
    ConvergenceWarning
        If a state has not converged after `max_iter` steps.

    References
    ----------
    Ramsauer et al., "Hopfield networks is all you need" (2021); EQUATIONS HM-1.

    Examples
    --------
    >>> from twinsolve.solvers.associative_memory import retrieve
    >>> found = retrieve([[0.8, 0.1]], [[1.0, 0.0], [0.0, 1.0]], beta=20.0)
    >>> found.states.round(4), found.converged
    (array([[1., 0.]]), array([ True]))
    """
    xi, X, beta = check_memory(states, patterns, beta)
    tol, max_iter = check_positive(tol, "tol"), check_integer(max_iter, "max_iter", 1)
    xi, size = xi.copy(), float(np.linalg.norm(X, axis=1).max())
    energy, n_iter = [hopfield_energy(xi, X, beta=beta)], np.zeros(len(xi), dtype=int)
    while True:
        after, decrease = retrieval_step(xi, X, beta=beta)
        residual = np.sqrt(2 * decrease)
        moves = residual > tol * size
        if not moves.any() or len(energy) > max_iter:
            break
        xi[moves] = after[moves]
        n_iter += moves
        energy.append(hopfield_energy(xi, X, beta=beta))
    if moves.any():
        warnings.warn(
            f"retrieve: {moves.sum()} of {len(xi)} states did not reach tol={tol:g} in "
            f"{max_iter} steps, the worst residual is {residual.max() / size:.3g}; increase "
            "max_iter, or beta",
            ConvergenceWarning,
            stacklevel=2,
        )
    relative = residual / size if size > 0 else residual
    return Retrieval(xi, np.array(energy), relative, n_iter, ~moves)
