"""Smoothing with a pull towards the observed tokens, which NeuTRENO attention unrolls."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer
from ..inputs import Array, check_lam, check_matrix
from ..solution import MORE, ROUNDING, Solution, certified, warn_unless_converged
from .convergence import warn_if_diverging
from .differences import EPS
from .problem import check_size, default_tol, record, relative_error
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

        u <- A u + lam (f - u)                          relaxed=False, the form of the layer
        u <- (A u + lam f) / (1 + lam)                  relaxed=True, the safe form

    Both have the fixed point of `neutreno_fixed_point`. The safe form contracts by
    ``1 / (1 + lam)`` for any A and lam. The form of the layer may diverge, even at lam = 0.6
    (erratum E2-d), and always diverges for ``lam >= 2`` (E2-e): see `neutreno_spectral_radius` and
    `neutreno_lam_limit`. For ``A = diag(d)^-1 K`` with K symmetric, it is a gradient step of length
    ``1 / d_i`` on the degree-weighted `regularized_energy`.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
        Values of the first layer.
    A : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        Nonnegative with row sums 1, not necessarily symmetric. It may be the function
        ``u -> A @ u``, which is not checked to be nonnegative. Row sums may deviate from 1 by 1e-6,
        or by 1.2e-4 if A is float32 or a function; the rows of a matrix are then rescaled.
    lam : float or array-like of shape (n_tokens,)
        Weight > 0, one for all tokens or one for each. Published models use 0.6 and 0.4.
    n_iter : int
        Number of iterations; there is no early stopping.
    relaxed : bool, default=False
        Use the safe form.
    history : bool, default=False
        Record u_0 to u_n as `coef` of shape (n_iter + 1, n_tokens, n_features), and their
        `objective` and `gap` of shape (n_iter + 1, n_features).

    Returns
    -------
    Solution
        As for `neutreno_fixed_point`, with its default `tol`.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, A not nonnegative, a row sum that is not 1,
        ``lam <= 0``, ``lam`` not above the deviation from 1 of a function's row sum, tokens so
        large that they overflow, or ``n_iter < 0``.

    Warns
    -----
    ConvergenceWarning
        If the form of the layer diverges for this A and lam, for any number of iterations.

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
    f: ArrayLike, A: Any, *, lam: float | ArrayLike, tol: float | None = None, max_iter: int = 1000
) -> Solution:
    """Fixed point of the NeuTRENO iteration for any attention matrix: the limit of infinite depth.

    ::

        u = A u + lam (f - u),     i.e.  u = lam ((1 + lam) I - A)^-1 f

    It exists and is unique even if the iteration diverges. A dense A is factored if that is cheaper
    than the safe iteration ``u <- (A u + lam f) / (1 + lam)``; otherwise the safe iteration is run.
    For ``A = diag(d)^-1 K`` with K symmetric, this is `minimize_energy` with ``fidelity="degree"``.
    To get the minimiser with the constant fidelity ``lam``, pass the weights ``lam / d_i`` here.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
    A : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        As in `neutreno_iteration`.
    lam : float or array-like of shape (n_tokens,)
        Weight > 0, one for all tokens or one for each.
    tol : float, optional
        Largest certified relative error `gap`. None is 1e-8, or 1e-5 if the answer is float32, as
        the gap includes its rounding. The safe iteration takes about
        ``log(1 / tol) / log(1 + lam)`` steps.
    max_iter : int, default=1000
        Largest number of iterations.

    Returns
    -------
    Solution
        `coef` is u, of the shape of f. It is float32 if f is float32 and A is float32 or a
        function. `dual` is the residual ``r = A u + lam (f - u) - u``. Each column has an
        `objective` ``max_i |r_i|`` (without symmetry there is no energy) and a `gap`, which is
        ``max_i |r_i / lam_i|`` divided by half the range of f. The largest error of u, divided by
        half the range of f, is at most the gap, as the inverse has nonnegative entries and row sums
        ``1 / lam``. The row sums of a function A may deviate from 1. The gap then has
        ``1 + lam_i - sum_j A_ij`` in place of ``lam_i``, and the largest entry of f in place of
        half its range, as a shift of f then matters. The gap includes a bound on the rounding
        errors of r.

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
    """The fixed point ``(1 + lam) u = A u + lam f``, with A the `transitions` and lam a column."""

    f: Array
    transitions: Transitions
    lam: Array  # (n_tokens, 1)

    def residual(self, u: Array) -> Array:
        return self.transitions.product(u) + self.lam * (self.f - u) - u

    def gap(self, residual: Array) -> Array:
        """Return the certified relative error of a state with this residual."""
        excess, f = self.transitions.excess, self.f
        if excess.any():
            f = np.vstack([f, -f])
        with np.errstate(over="ignore"):
            return relative_error(residual / (self.lam - excess), f)

    def certify(self, u: Array) -> tuple[Array, Array, Array]:
        """Objective, gap (including rounding errors) and residual, for `certified`."""
        change, rounding = self.transitions.certified_change(u)
        pull = self.lam * (self.f - u)
        residual = change + pull
        rounding += 2 * EPS * (np.abs(change) + np.abs(pull))
        gap = self.gap(np.abs(residual) + rounding)
        return np.abs(residual).max(axis=0), gap, residual

    def favours_factor(self, tol: float) -> bool:
        """Whether an LU factor costs less than the iteration, whose time goes to memory."""
        n_iter = float(np.log(2 / tol)) / float(np.log1p(self.lam.min()))
        dense = isinstance(self.transitions.matrix, np.ndarray)
        return dense and bool(len(self.f) < 3 * n_iter * max(16, self.f.shape[1]))


def _check(f: ArrayLike, A: Any, lam: float | ArrayLike) -> tuple[_Problem, Any]:
    """Return the checked problem in float64, and the dtype of its answer."""
    f = check_matrix(f, "f")
    transitions = check_transitions(A, len(f))
    lams = check_lam(lam, len(f))[:, None]
    check_size(f, float(lams.max()))
    if not (lams > (excess := np.abs(transitions.excess))).all():
        raise ValueError(
            "lam: must be larger than the error of the row sums of the function A, which differ "
            f"from 1 by up to {excess.max():.3g}, got {lams.min():.3g}"
        )
    return _Problem(f.astype(np.float64), transitions, lams), common_dtype(f, A)


def _solve_by_factor(problem: _Problem) -> Array:
    """Solve for the fixed point by an LU factor."""
    matrix = np.diag(1 + problem.lam[:, 0]) - problem.transitions.matrix
    try:
        return np.linalg.solve(matrix, problem.lam * problem.f)
    except np.linalg.LinAlgError:  # lam is below the rounding errors of 1; the gap shows it
        return problem.f
