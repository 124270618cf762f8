"""Gradient flow of the regularised energy: explicit Euler steps, and the exact flow."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.sparse import block_array, csr_array, diags_array
from scipy.sparse.linalg import expm_multiply
from scipy.special import exprel
from sklearn.exceptions import ConvergenceWarning

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..solution import Solution, certified
from .problem import EnergyProblem, check_energy_problem, default_tol, record
from .weights import not_callable

_SMALL = 500


@np.errstate(over="ignore", invalid="ignore")  # a step too long diverges, and the gap says so
def gradient_flow(
    f: ArrayLike,
    K: Any,
    *,
    lam: float,
    n_iter: int,
    fidelity: str = "constant",
    step: float | None = None,
    history: bool = False,
) -> Solution:
    """Run a given number of explicit Euler steps of the gradient flow, from u = f.

    ::

        u <- u - step grad E(u),     grad E(u)_i = sum_j K_ij (u_i - u_j) + w_i (u_i - f_i)

    with ``w_i = lam`` or ``w_i = lam d_i``. This is gradient descent on `regularized_energy`. Let
    ``M = max_i (2 (d_i - K_ii) + w_i)``, an upper bound of the largest eigenvalue of the Hessian. A
    step of at most ``2 / M`` never increases the energy. A longer step may diverge, which `gap`
    shows.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
    K : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        As in `minimize_energy`.
    lam : float
        Weight > 0 of the fidelity.
    n_iter : int
        Number of steps; there is no early stopping.
    fidelity : {"constant", "degree"}, default="constant"
    step : float, optional
        None is ``1 / M``.
    history : bool, default=False
        Record u_0 to u_n as `coef` of shape (n_iter + 1, n_tokens, n_features), and their
        `objective` and `gap` of shape (n_iter + 1, n_features).

    Returns
    -------
    Solution
        As for `minimize_energy`, with its default `tol`.

    Raises
    ------
    ValueError
        As `minimize_energy`, and on ``n_iter < 0`` or ``step <= 0``.

    Warns
    -----
    ConvergenceWarning
        If the energy has increased, as the step is too long.

    References
    ----------
    EQUATIONS NT-21.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import gradient_flow
    >>> K = [[0.0, 1.0], [1.0, 0.0]]
    >>> gradient_flow([[0.0], [4.0]], K, lam=2.0, n_iter=1).coef
    array([[1.],
           [3.]])
    """
    problem, dtype = check_energy_problem(f, K, lam, fidelity)
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    weights = problem.weights
    curvature = (2 * weights.degrees + problem.fidelity).max()
    length = check_positive(step, "step") if step is not None else 1 / (curvature or 1.0)
    u, trajectory = problem.f, [problem.f]
    for _ in range(n_iter):
        u = u - length * problem.gradient(u)
        if history:
            trajectory.append(u)
    solution = certified(
        u,
        problem.certify,
        dtype=dtype,
        tol=default_tol(None, dtype),
        n_iter=n_iter,
        cure="increase n_iter, or take `minimize_energy`",
        ended=f"the {n_iter} steps asked for were taken",
        unit="column",
        history=record(problem.certify, trajectory) if history else None,
    )
    before = problem.objective(problem.f, weights.laplacian(problem.f))
    if not (solution.objective <= before + _slack(problem)).all():
        warnings.warn(
            f"the energy increases with step={length:.3g}: the flow diverges; decrease step to "
            f"at most {2 / curvature:.3g}",
            ConvergenceWarning,
            stacklevel=3,
        )
    return solution


def _slack(problem: EnergyProblem) -> Array:
    """Bound the rounding errors of an energy, including those of its gradient."""
    f = problem.f - problem.f.mean(axis=0)
    return 1e-13 * ((problem.weights.degrees + problem.fidelity) * f**2).sum(axis=0)


def exact_gradient_flow(
    f: ArrayLike, K: Any, *, lam: float, time: float, fidelity: str = "constant"
) -> Array:
    """State at a given time of the gradient flow ``du/dt = -grad E(u)`` with ``u(0) = f``.

    ::

        u(t) = u* + exp(-t H) (f - u*),     H = diag(d) - K + diag(w)

    with u* the minimiser (`minimize_energy`) and w_i the weights of the fidelity. `gradient_flow`
    with n steps of length t / n tends to u(t) as n grows.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
    K : array-like or sparse array of shape (n_tokens, n_tokens)
        Symmetric and nonnegative.
    lam : float
        Weight > 0 of the fidelity.
    time : float
        The time t >= 0. Up to 500 tokens, H is diagonalised; with more tokens, the work grows with
        ``time * max_i d_i``.
    fidelity : {"constant", "degree"}, default="constant"

    Returns
    -------
    ndarray of shape (n_tokens, n_features)

    Raises
    ------
    ValueError
        As `minimize_energy`, on ``time < 0``, and if K is a function.

    References
    ----------
    EQUATIONS NT-21; Al-Mohy and Higham (2011) for the action of the exponential.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import exact_gradient_flow
    >>> K = [[0.0, 1.0], [1.0, 0.0]]
    >>> exact_gradient_flow([[0.0], [4.0]], K, lam=2.0, time=100.0).round(6)
    array([[1.],
           [3.]])
    """
    problem, dtype = check_energy_problem(f, not_callable(K, "K"), lam, fidelity)
    time = check_positive(time, "time", allow_zero=True)
    move = _move_by_eigenvectors if len(problem.f) <= _SMALL else _move_by_products
    return (problem.f + move(problem, time)).astype(dtype, copy=False)


def _hessian(problem: EnergyProblem) -> csr_array:
    diagonal = diags_array((problem.weights.degrees + problem.fidelity)[:, 0])
    return csr_array(diagonal - csr_array(problem.weights.matrix))


# v = u - f obeys dv/dt = -H v - grad E(f).


def _move_by_eigenvectors(problem: EnergyProblem, time: float) -> Array:
    """Return ``u(t) - f`` by the eigenvectors of the Hessian."""
    curvatures, vectors = eigh(_hessian(problem).toarray())
    spans = -exprel(-time * curvatures.clip(min=0))[:, None] * time
    return np.asarray(vectors @ (spans * (vectors.T @ problem.gradient(problem.f))))


def _move_by_products(problem: EnergyProblem, time: float) -> Array:
    """Return ``u(t) - f`` by products with the Hessian."""
    n_tokens, n_features = problem.f.shape
    # An extra state for each column carries the constant term.
    drive = csr_array(problem.gradient(problem.f))
    blocks = [[_hessian(problem), drive], [None, csr_array((n_features, n_features))]]
    start = np.vstack([np.zeros((n_tokens, n_features)), np.eye(n_features)])
    return np.asarray(expm_multiply(-time * block_array(blocks).tocsr(), start)[:n_tokens])
