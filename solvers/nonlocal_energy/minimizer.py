"""The exact minimiser of the regularised energy: conjugate gradients, or a Cholesky factor."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from ...validation import check_integer
from ..inputs import Array
from ..solution import MORE, ROUNDING, Solution, certified, warn_unless_converged
from .problem import (
    EnergyProblem,
    check_energy_problem,
    check_with_holes,
    default_tol,
    reciprocal,
)


def minimize_energy(
    f: ArrayLike,
    K: Any,
    *,
    lam: float,
    fidelity: str = "constant",
    mask: ArrayLike | None = None,
    tol: float | None = None,
    max_iter: int = 1000,
) -> Solution:
    """Minimise the regularised energy: denoise the tokens f along the weights K.

    ::

        min_u  J(u) + lam/2 sum_i      |u_i - f_i|^2        fidelity="constant"
        min_u  J(u) + lam/2 sum_i d_i  |u_i - f_i|^2        fidelity="degree"

    with ``J(u) = 1/4 sum_ij K_ij |u_i - u_j|^2`` and ``d_i = sum_j K_ij`` (see `smoothness`). The
    minimisers are ``u = lam (diag(d) - K + lam I)^-1 f`` and, with ``A = diag(d)^-1 K``,
    ``u = lam ((1 + lam) I - A)^-1 f``. The second is the fixed point of NeuTRENO attention with
    shared queries and keys. The columns of f are independent problems.

    Conjugate gradients, preconditioned by the diagonal, work on all columns at once and stop when
    the certificate is reached. A dense K is factored (Cholesky) if it is small or f has many
    columns.

    With a `mask` the fidelity is a sum over valid tokens. The others follow from their neighbours.

    Parameters
    ----------
    f : array-like of shape (n_tokens, n_features)
        Observed tokens.
    K : array-like or sparse array of shape (n_tokens, n_tokens), or callable
        Symmetric and nonnegative; ``k + k.T`` for directed weights k. Weights too large to store
        may be the function ``u -> K @ u``, which must be symmetric, nonnegative and accurate in
        float64; this is not checked.
    lam : float
        Weight > 0 of the fidelity.
    fidelity : {"constant", "degree"}, default="constant"
        A token without neighbours gets ``u_i = f_i``. This is a choice for "degree", where the
        energy does not depend on such a token.
    mask : array-like of bool of shape (n_tokens,), optional
        True at valid tokens. Others may hold NaN, and need a path along K to a valid one.
    tol : float, optional
        Largest certified relative error `gap` of any token. None is 1e-8, or 1e-5 if the answer is
        float32, as the gap includes its rounding.
    max_iter : int, default=1000
        Largest number of conjugate-gradient iterations. If they fail, a dense K is factored.

    Returns
    -------
    Solution
        `coef` is u, of the shape of f, float32 if f and K are. Each column has an `objective`, its
        energy, and a `gap`, certified in float64::

            |u - u*|_inf / s  <=  gap = max_i |grad E(u)_i / w_i| / s,    s = (max f - min f) / 2

        with w_i the weights of the fidelity, and the range of f over valid tokens. With holes,
        ``(H z)_i / max z`` stands for w_i, where H is the Hessian and ``z > 0`` about solves
        ``H z = diag(H)``. If f is constant up to rounding, s is ``|f|_inf``. The gap includes a
        bound on the rounding errors of the gradient. For a stored K this bound is tiny, as the
        gradient is a sum of differences ``K_ij (u_i - u_j)``. For a function it is
        ``n_tokens eps`` times ``d_i |u_i - mean(u)|``, which is large if one weight far exceeds the
        others. As E is quadratic, the gap without holes bounds the energy too: with `dual`
        ``y = grad J(u)`` the duality gap is ``1/2 sum_i |y_i + w_i (u_i - f_i)|^2 / w_i``, at most
        ``gap^2 s^2 sum_i w_i / 2``. `n_iter` counts conjugate-gradient iterations.

    Raises
    ------
    ValueError
        On NaN, infinity, shapes that do not fit, K not symmetric or not nonnegative, ``lam <= 0``,
        ``tol <= 0``, an unknown fidelity, a mask of another shape, holes without a path to a valid
        token, or f or K so large that the energy overflows. K and its
        transpose may differ by rounding errors (1,000 eps of the smaller row sum).

    Warns
    -----
    ConvergenceWarning
        If a column misses `tol`.

    References
    ----------
    EQUATIONS NT-5, NT-21, NT-FP, NT-P1. The limit of attention with a constant skip weight
    minimises the degree-weighted energy, not the energy that the paper states (erratum E2-c).

    Examples
    --------
    >>> from twinsolve.solvers import minimize_energy
    >>> K = [[0.0, 1.0], [1.0, 0.0]]
    >>> minimize_energy([[0.0], [4.0]], K, lam=2.0).coef
    array([[1.],
           [3.]])
    """
    values, valid = check_with_holes(f, mask, 1)
    problem, dtype = check_energy_problem(values, K, lam, fidelity, valid)
    tol = default_tol(tol, dtype)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    dense = isinstance(problem.weights.matrix, np.ndarray)
    allowed = min(max_iter, _count_worthwhile(*problem.f.shape)) if dense else max_iter
    u, n_iter = _conjugate_gradients(problem, tol / 2, allowed)
    if dense:
        _, gradient, gap, _ = problem.certificate(u)
        if (gap > tol).any():
            u += _factored_step(problem, -gradient)
    stopped_early = not dense and (n_iter >= max_iter).any()
    more_helps = stopped_early and (problem.certificate(u)[3] <= tol).all()
    solution = certified(
        u,
        problem.certify,
        dtype=dtype,
        tol=tol,
        n_iter=n_iter,
        cure=MORE if more_helps else ROUNDING,
        unit="column",
    )
    warn_unless_converged(solution)
    return solution


def _count_worthwhile(n_tokens: int, n_features: int) -> int:
    """Return how many iterations cost as much as a Cholesky factor; 0 if too few to converge.

    The operation counts give ``n_tokens / (6 n_features)``. With few columns it is less, as
    products then wait for memory.
    """
    n_iter = n_tokens // max(100, 6 * n_features)
    return n_iter if n_iter >= 20 else 0


def _conjugate_gradients(problem: EnergyProblem, tol: float, max_iter: int) -> tuple[Array, Array]:
    """Run preconditioned conjugate gradients from u = f, for each column by itself."""
    weights = problem.weights
    inverse = reciprocal(weights.degrees + problem.fidelity)
    u = problem.f.copy()
    residual = -problem.gradient(u)
    direction, previous = np.zeros_like(u), np.zeros(u.shape[1])
    n_iter = np.zeros(u.shape[1], dtype=np.intp)
    for _ in range(max_iter):
        active = problem.gap(residual) > tol
        if not active.any():
            break
        step = inverse * residual
        slope = (residual * step).sum(axis=0)
        direction = step + slope * reciprocal(previous) * direction
        curved = weights.laplacian(direction) + problem.fidelity * direction
        length = active * slope * reciprocal((direction * curved).sum(axis=0))
        u += length * direction
        residual -= length * curved
        previous = slope
        n_iter += active
    return u, n_iter


def _factored_step(problem: EnergyProblem, residual: Array) -> Array:
    """Return the step to the minimum by a Cholesky factor of the Hessian."""
    hessian = -problem.weights.matrix
    pivots = problem.weights.degrees + problem.fidelity
    np.fill_diagonal(hessian, np.where(pivots > 0, pivots, 1))
    try:
        factor = cho_factor(hessian.T, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:  # lam is below the rounding errors of the degrees; the gap shows it
        return np.zeros_like(residual)
    return np.asarray(cho_solve(factor, residual, check_finite=False))
