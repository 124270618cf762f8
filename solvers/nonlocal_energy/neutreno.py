"""Smoothing with a pull back to the observed tokens: what NeuTRENO attention unrolls."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..solution import (
    Array,
    Solution,
    certified,
    check_integer,
    check_lam,
    check_matrix,
    warn_unless_converged,
)
from .convergence import warn_if_diverging
from .differences import EPS
from .problem import MORE, ROUNDING, check_size, default_tol, record, relative_error
from .weights import Transitions, check_transitions, common_dtype


def neutreno_iteration(
    f: ArrayLike,
    A: Any,
    *,
    lam: float | ArrayLike,
    n_iter: int,
    relaxed: bool = False,
    history: bool = False,
) -> Solution:
    """Run a given number of NeuTRENO iterations with one fixed attention matrix, from u = f.

    ::

        u <- A u + lam (f - u)                          relaxed=False, the layer
        u <- (A u + lam f) / (1 + lam)                  relaxed=True, the safe form

    Both have the fixed point of `neutreno_fixed_point`. The safe form contracts by
    ``1 / (1 + lam)`` for any A and lam. The layer's form may diverge, even at lam = 0.6 (erratum
    E2-d), and always does for ``lam >= 2`` (E2-e): see `neutreno_spectral_radius` and
    `neutreno_lam_limit`. For ``A = diag(d)^-1 K`` with K symmetric it is a step of length
    ``1 / d_i`` along the gradient of the degree-weighted `regularized_energy`.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
        Values of the first layer.
    A : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        Nonnegative with row sums 1, not necessarily symmetric; or the function ``u -> A @ u``,
        whose nonnegativity is taken on trust. Row sums may miss 1 by 1e-6, or by 1.2e-4 if A is
        float32 or a function; those of a matrix are then made 1.
    lam : float or array-like of shape (n_tokens,)
        Weight > 0, one in all or one a token. Published models use 0.6 and 0.4.
    n_iter : int
        Number of iterations, all of which are run.
    relaxed : bool, default=False
        Use the safe form.
    history : bool, default=False
        Record u_0 to u_n as `coef` of shape (n_iter + 1, n_tokens, n_features), and their
        `objective` and `gap` of shape (n_iter + 1, n_features).

    Returns
    -------
    Solution
        As of `neutreno_fixed_point`, with its default `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, A not nonnegative or a row sum that is not 1,
        ``lam <= 0``, ``lam`` not above what a function's row sums miss, tokens so large that they
        overflow, or ``n_iter < 0``.

    Warns
    -----
    ConvergenceWarning
        If the layer's form diverges for this A and lam, however few iterations are run.

    References
    ----------
    Nguyen, Nguyen and Baraniuk, "Mitigating over-smoothing in transformers via regularized nonlocal
    functionals" (2023); EQUATIONS NT-22 to NT-26, NT-CONV, NT-rel.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import neutreno_iteration
    >>> A = [[0.5, 0.5], [0.5, 0.5]]
    >>> neutreno_iteration([[0.0], [4.0]], A, lam=0.5, n_iter=1).coef
    array([[2.],
           [2.]])
    >>> neutreno_iteration([[0.0], [4.0]], A, lam=0.5, n_iter=1, relaxed=True).coef.round(3)
    array([[1.333],
           [2.667]])
    """
    problem, dtype = _check(f, A, lam)
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    if not relaxed:
        warn_if_diverging(problem.transitions, problem.lam)
    step = 1 / (1 + problem.lam) if relaxed else 1.0
    u, trajectory = problem.f, [problem.f]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(n_iter):
            u = u + step * problem.residual(u)
            if history:
                trajectory.append(u)
        return certified(
            u,
            problem.certify,
            dtype=dtype,
            tol=default_tol(None, dtype),
            n_iter=n_iter,
            cure="increase n_iter, or take `neutreno_fixed_point`",
            ended=f"the {n_iter} iterations asked for were run",
            unit="column",
            history=record(problem.certify, trajectory) if history else None,
        )


def neutreno_fixed_point(
    f: ArrayLike,
    A: Any,
    *,
    lam: float | ArrayLike,
    tol: float | None = None,
    max_iter: int = 1000,
) -> Solution:
    """Fixed point of the NeuTRENO iteration, for any attention matrix: the layer at infinite depth.

    ::

        u = A u + lam (f - u),     i.e.  u = lam ((1 + lam) I - A)^-1 f

    It exists and is unique even where the iteration diverges. A dense A is factored where that is
    cheaper than the safe iteration ``u <- (A u + lam f) / (1 + lam)``, which is run otherwise. For
    ``A = diag(d)^-1 K`` with K symmetric this is `minimize_energy` with ``fidelity="degree"``; the
    minimiser of the energy with a constant fidelity ``lam`` has ``lam / d_i`` here.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
    A : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        As in `neutreno_iteration`.
    lam : float or array-like of shape (n_tokens,)
        Weight > 0, one in all or one a token.
    tol : float, optional
        Largest certified relative error `gap`. None is 1e-8, and 1e-5 where the answer is float32,
        whose rounding the gap counts. The safe iteration needs about
        ``log(1 / tol) / log(1 + lam)`` steps.
    max_iter : int, default=1000
        Largest number of iterations.

    Returns
    -------
    Solution
        `coef` is u, of the shape of f, float32 if f is and A is or is a function. With the residual
        ``r = A u + lam (f - u) - u`` in `dual`, a column has `objective` ``max_i |r_i|`` (without
        symmetry there is no energy) and `gap` ``max_i |r_i / lam_i|`` over half the range of f:
        the largest error of u over that is at most the gap, as the inverse has positive entries and
        row sums ``1 / lam``. Of a function A the row sums may miss 1: ``lam_i`` is replaced by
        ``1 + lam_i - sum_j A_ij`` in the gap, and half the range by the largest entry of f, as a
        shift then matters. A bound on the rounding errors of r is added to it.

    Raises
    ------
    ValueError
        As `neutreno_iteration`, and on ``tol <= 0``.

    Warns
    -----
    ConvergenceWarning
        If a column misses `tol`.

    References
    ----------
    EQUATIONS NT-FP, NT-rel, FF-3b; erratum E2-c.

    Examples
    --------
    >>> from twinsolve.solvers.nonlocal_energy import neutreno_fixed_point
    >>> A = [[0.5, 0.5], [0.5, 0.5]]
    >>> neutreno_fixed_point([[0.0], [4.0]], A, lam=1.0).coef
    array([[1.],
           [3.]])
    """
    problem, dtype = _check(f, A, lam)
    tol = default_tol(tol, dtype)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    u, n_iter = problem.f, 0
    if factored := problem.favours_factor(tol):
        u = _solve_by_factor(problem)
    else:
        residual = problem.residual(u)
        while n_iter < max_iter and (problem.gap(residual) > tol / 2).any():
            u = u + residual / (1 + problem.lam)
            residual, n_iter = problem.residual(u), n_iter + 1
    solution = certified(
        u,
        problem.certify,
        dtype=dtype,
        tol=tol,
        n_iter=n_iter,
        cure=MORE if n_iter >= max_iter and not factored else ROUNDING,
        unit="column",
    )
    warn_unless_converged(solution)
    return solution


class _Problem(NamedTuple):
    f: Array
    transitions: Transitions
    lam: Array  # (n_tokens, 1)

    def residual(self, u: Array) -> Array:
        return self.transitions.product(u) + self.lam * (self.f - u) - u

    def gap(self, residual: Array) -> Array:
        excess, f = self.transitions.excess, self.f
        if excess.any():
            f = np.vstack([f, -f])
        with np.errstate(over="ignore"):
            return relative_error(residual / (self.lam - excess), f)

    def certify(self, u: Array) -> tuple[Array, Array, Array]:
        """Objective, gap, which covers rounding errors, and residual, for `certified`."""
        change, rounding = self.transitions.certified_change(u)
        pull = self.lam * (self.f - u)
        residual = change + pull
        rounding += 2 * EPS * (np.abs(change) + np.abs(pull))
        gap = self.gap(np.abs(residual) + rounding)
        return np.abs(residual).max(axis=0), gap, residual

    def favours_factor(self, tol: float) -> bool:
        """Whether LU costs less than the safe iteration, whose products wait for memory."""
        n_iter = float(np.log(2 / tol)) / float(np.log1p(self.lam.min()))
        dense = isinstance(self.transitions.matrix, np.ndarray)
        return dense and bool(len(self.f) < 3 * n_iter * max(16, self.f.shape[1]))


def _check(f: ArrayLike, A: Any, lam: float | ArrayLike) -> tuple[_Problem, Any]:
    f = check_matrix(f, "f")
    transitions = check_transitions(A, len(f))
    lams = check_lam(lam, len(f))[:, None]
    check_size(f, float(lams.max()))
    if not (lams > (excess := np.abs(transitions.excess))).all():
        raise ValueError(
            f"lam: must exceed what the row sums of the function A miss of 1, up to "
            f"{excess.max():.3g}"
        )
    return _Problem(f.astype(np.float64), transitions, lams), common_dtype(f, A)


def _solve_by_factor(problem: _Problem) -> Array:
    matrix = np.diag(1 + problem.lam[:, 0]) - problem.transitions.matrix
    try:
        return np.linalg.solve(matrix, problem.lam * problem.f)
    except np.linalg.LinAlgError:  # lam is below the rounding errors of 1; the gap says so
        return problem.f
