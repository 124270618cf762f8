"""Denoising by sparse filter responses: l1 analysis with a bank of filters, total variation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, check_matrix
from ..solution import Solution, certified, warn_unless_converged
from .filter_banks import FilterBank
from .problem import MORE, default_tol


@dataclass(frozen=True)
class _Analysis:
    """The problem ``min_u 1/2 |u - f|^2 + lam |K u|``.

    Its dual variable p has ``|p|_* <= lam``, and gives ``u = f - K^T p``.
    """

    f: Array
    lam: float
    analyze: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]
    norm_bound: float  # upper bound of |K|_2^2
    isotropic: bool  # whether sizes are norms of vectors along the first axis

    def sizes(self, responses: Array) -> Array:
        return np.sqrt((responses**2).sum(axis=0)) if self.isotropic else np.abs(responses)

    def project(self, p: Array) -> Array:
        sizes = self.sizes(p)
        return p * (self.lam / np.maximum(sizes, self.lam))

    def certify(self, u: Array, p: Array) -> tuple[Array, Array, Array]:
        """Return objective, relative gap and dual point, for `certified`.

        For any u and any feasible p, the duality gap is the sum of
        ``1/2 |u - f + K^T p|^2`` and ``lam |K u| - <K u, p>``, which are both >= 0.
        """
        responses = self.analyze(u)
        penalty = self.lam * float(self.sizes(responses).sum())
        objective = float(((u - self.f) ** 2).sum()) / 2 + penalty
        residual = u - self.f + self.adjoint(p)
        gap = float((residual**2).sum()) / 2 + penalty - float((responses * p).sum())
        energy = float(self.energy)
        return np.asarray(objective), np.asarray(gap / energy if energy > 0 else 0.0), p

    @property
    def energy(self) -> Array:
        """``|f - mean(f)|^2``, to which the gap is relative."""
        return np.asarray(((self.f - self.f.mean()) ** 2).sum())


def l1_analysis(
    f: ArrayLike, bank: FilterBank, *, lam: float, tol: float | None = None, max_iter: int = 2000
) -> Solution:
    """Denoise an image so that its responses to a bank of filters are sparse.

    ::

        min_u  1/2 |u - f|^2 + lam |K u|_1

    by accelerated projected gradients on the dual, restarted where they increase the objective:
    ``p <- clip(p + tau K (f - K^T p), -lam, lam)`` and ``u = f - K^T p`` with
    ``tau = 1 / |K|_2^2``. With DCT filters, circular borders and ``lam = t / size**2``, the first u
    is the average over all windows of soft thresholding at t in the transform.

    Parameters
    ----------
    f : array-like of shape (height, width)
    bank : FilterBank
        The operator K. Each filter must sum to 0.
    lam : float
        Weight > 0.
    tol : float, optional
        Largest relative duality gap. None is 1e-8, and 1e-5 where f is float32.
    max_iter : int, default=2000

    Returns
    -------
    Solution
        `coef` is u, of the shape and dtype of f, and `dual` is p. The gap is
        ``(primal - dual) / |f - mean f|^2``, so that ``1/2 |u - u*|^2 <= gap |f - mean f|^2``.

    Raises
    ------
    ValueError
        On NaN, infinity, filters that do not sum to 0, or numbers that are not positive.

    Warns
    -----
    ConvergenceWarning
        If `tol` is missed.

    References
    ----------
    Chambolle (2004); Beck and Teboulle (2009); EQUATIONS FE-5, FE-2.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import FilterBank, dct_filters, l1_analysis
    >>> l1_analysis(np.eye(2), FilterBank(dct_filters(2)), lam=0.5).coef
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    if np.abs(bank.filters.sum(axis=(1, 2))).max() > 1e-8 * np.abs(bank.filters).max():
        raise ValueError(
            "bank: each filter must sum to 0, so that a constant added to the image is added to "
            "the solution"
        )
    return _solve(f, lam, bank, bank.adjoint, bank.norm_bound(), False, tol, max_iter)


def total_variation(
    f: ArrayLike,
    *,
    lam: float,
    isotropic: bool = True,
    tol: float | None = None,
    max_iter: int = 5000,
) -> Solution:
    """Denoise an image by its total variation.

    ::

        min_u  1/2 |u - f|^2 + lam sum_p (|D_y u|_p^2 + |D_x u|_p^2)^(1/2)      isotropic
        min_u  1/2 |u - f|^2 + lam sum_p |D_y u|_p + |D_x u|_p                  otherwise

    with forward differences that are 0 at the last row or column. See `l1_analysis` for the
    algorithm; ``|D|_2^2 <= 8``.

    Parameters
    ----------
    f : array-like of shape (height, width)
    lam : float
        Weight > 0.
    isotropic : bool, default=True
    tol : float, optional
        Largest relative duality gap. None is 1e-8, and 1e-5 where f is float32.
    max_iter : int, default=5000

    Returns
    -------
    Solution
        As for `l1_analysis`; `dual` has shape (2, height, width).

    Raises
    ------
    ValueError
        On NaN, infinity or numbers that are not positive.

    Warns
    -----
    ConvergenceWarning
        If `tol` is missed.

    References
    ----------
    Rudin, Osher and Fatemi (1992); Chambolle (2004); EQUATIONS FE-5.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import total_variation
    >>> total_variation(np.array([[0.0, 0.0, 1.0, 1.0]]), lam=0.1).coef.round(6)
    array([[0.05, 0.05, 0.95, 0.95]])
    """
    return _solve(f, lam, _differences, _differences_adjoint, 8.0, isotropic, tol, max_iter)


def _solve(
    f: ArrayLike,
    lam: float,
    analyze: Callable[[Array], Array],
    adjoint: Callable[[Array], Array],
    norm_bound: float,
    isotropic: bool,
    tol: float | None,
    max_iter: int,
) -> Solution:
    """Solve for u by ascent in the dual variable; return a certified solution."""
    image = check_matrix(f, "f")
    dtype, values = image.dtype, image.astype(np.float64, copy=False)
    level = values[0, 0]  # responses do not depend on it, up to rounding
    problem = _Analysis(
        values - level, check_positive(lam, "lam"), analyze, adjoint, norm_bound, isotropic
    )
    tol = default_tol(tol, dtype)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    u, p, n_iter = _ascend_with_momentum(
        problem, tol if dtype == np.float64 else tol / 10, max_iter
    )
    solution = certified(
        u + level,
        lambda u: problem.certify(u - level, p),
        dtype=dtype,
        tol=tol,
        n_iter=n_iter,
        cure=MORE,
        scale=problem.energy,
    )
    warn_unless_converged(solution)
    return solution


def _ascend_with_momentum(
    problem: _Analysis, tol: float, max_iter: int
) -> tuple[Array, Array, int]:
    """Run FISTA on the dual variable, restarted where it descends; return u, p, n_iter."""
    p = extrapolated = np.zeros_like(problem.analyze(problem.f))
    u, t, n_iter = problem.f, 1.0, 0
    for n_iter in range(1, max_iter + 1):
        ascent = problem.analyze(problem.f - problem.adjoint(extrapolated)) / problem.norm_bound
        stepped = problem.project(extrapolated + ascent)
        move = stepped - p
        if ((extrapolated - stepped) * move).sum() > 0:
            t = 1.0
        next_t = (1 + np.sqrt(1 + 4 * t * t)) / 2
        p, extrapolated, t = stepped, stepped + (t - 1) / next_t * move, next_t
        if n_iter % 10 == 0 or n_iter == max_iter:
            u = problem.f - problem.adjoint(p)
            if problem.certify(u, p)[1] <= tol:
                break
    return u, p, n_iter


def _differences(u: Array) -> Array:
    """Return forward differences down and right, (2, height, width); 0 at the far borders."""
    differences = np.zeros((2, *u.shape))
    differences[0, :-1] = np.diff(u, axis=0)
    differences[1, :, :-1] = np.diff(u, axis=1)
    return differences


def _differences_adjoint(p: Array) -> Array:
    """Return the adjoint of `_differences`."""
    image = np.zeros(p.shape[1:])
    image[:-1] -= p[0, :-1]
    image[1:] += p[0, :-1]
    image[:, :-1] -= p[1, :, :-1]
    image[:, 1:] += p[1, :, :-1]
    return image
