"""Stationary distributions by state reduction, which never subtracts, so that no digit cancels."""

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse import csr_array, diags_array, issparse
from scipy.sparse.linalg import spsolve

from ..inputs import Array

_DENSE = 2000  # states up to which a sparse walk is treated as a dense one
_BLOCK = 64
_IMBALANCE = 1e-8
_LOST = (
    "A: probabilities differ by more than float64 resolves; the stationary distribution was not "
    "found"
)


@np.errstate(all="ignore")  # overflow is refused below
def irreducible_distribution(P: Any) -> Array:
    """Return the stationary distribution of an irreducible walk, from its moves to other states.

    The diagonal is not read: it is 1 less the other entries, and may round to 1.

    Raises
    ------
    ValueError
        If moves underflow, or the answer for a large sparse walk is not balanced.
    """
    large = issparse(P) and P.shape[0] > _DENSE
    weights = (
        _pinned_solve(P) if large else _reduce_states(P.toarray() if issparse(P) else P.copy())
    )
    pi = weights / weights.sum()
    if not np.isfinite(pi).all() or (large and not _is_balanced(P, pi)):
        raise ValueError(_LOST)
    return pi


def _reduce_states(P: Array) -> Array:
    """Return the states' weights, each as accurate, relatively, as the moves; overwrites P.

    States are removed from the walk one block at a time, the last states first. The moves through
    removed states are added to the direct moves (Grassmann, Taksar and Heyman 1985).
    """
    n = len(P)
    for stop in range(n, 1, -_BLOCK):
        _take_out(P, max(1, stop - _BLOCK), stop)
    weights = np.ones(n)
    for k in range(1, n):
        weights[k] = weights[:k] @ P[:k, k]
        weights[: k + 1] /= max(1, weights[k])
    return weights


def _take_out(P: Array, start: int, stop: int) -> None:
    """Remove the states start to stop - 1; their columns become visits for each earlier state."""
    size = stop - start
    # The first column holds the moves to all states before the block.
    block = np.column_stack([P[start:stop, :start].sum(axis=1), P[start:stop, start:stop]])
    leaving = np.empty(size)
    for k in range(size - 1, -1, -1):
        leaving[k] = block[k, : k + 1].sum()
        block[:k, k + 1] /= leaving[k]
        block[:k, : k + 1] += np.outer(block[:k, k + 1], block[k, : k + 1])
    if not leaving.all():
        raise ValueError(_LOST)
    within = block[:, 1:]
    np.fill_diagonal(within, 0)
    upper = np.eye(size) - np.triu(within)
    lower = np.diag(leaving) - np.tril(within)
    moves = solve_triangular(upper, P[start:stop, :start], unit_diagonal=True, check_finite=False)
    visits = solve_triangular(
        lower, P[:start, start:stop].T, lower=True, trans="T", check_finite=False
    ).T
    P[:start, :start] += visits @ moves
    P[:start, start:stop] = visits
    P[start:stop, start:stop] = within


def _pinned_solve(P: csr_array) -> Array:
    """Solve for the weights by a sparse factor; the most visited state gets the weight 1."""
    moves = _moves(P)
    pinned = int(moves.sum(axis=0).argmax())
    others = np.delete(np.arange(P.shape[0]), pinned)
    system = diags_array(moves.sum(axis=1)[others]) - moves[others][:, others]
    weights = np.ones(P.shape[0])
    weights[others] = spsolve(system.T.tocsc(), moves[[pinned]][:, others].toarray()[0])
    return weights


def _is_balanced(P: csr_array, pi: Array) -> bool:
    """Whether each state is entered as often as it is left, and no probability is negative."""
    moves = _moves(P)
    left = pi * moves.sum(axis=1)
    allowed = _IMBALANCE * left + np.finfo(np.float64).tiny
    return bool((pi >= 0).all() and (np.abs(pi @ moves - left) <= allowed).all())


def _moves(P: csr_array) -> csr_array:
    return csr_array(P - diags_array(P.diagonal()))
