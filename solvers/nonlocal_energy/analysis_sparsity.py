"""Denoising by sparse filter responses: l1 analysis with a bank of filters, total variation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, check_matrix
from ..solution import MORE, Solution, certified, warn_unless_converged
from .filter_banks import FilterBank
from .problem import check_with_holes, default_tol


@dataclass(frozen=True)
class _Analysis:
    """The problem ``min_u 1/2 |u - f|^2 + lam |K u|``.

    Its dual variable p has ``|p|_* <= lam``, and gives ``u = f - K^T p``. With holes, the sum of
    squares is over valid pixels, and f is their mean in the holes. Then u may be held to the range
    of f, as total variation never grows where values are clipped.
    """

    f: Array
    lam: float
    analyze: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]
    norm_bound: float  # upper bound of |K|_2^2
    isotropic: bool  # whether sizes are norms of vectors along the first axis
    valid: Array | None = None  # None is all

    def sizes(self, responses: Array) -> Array:
        return np.sqrt((responses**2).sum(axis=0)) if self.isotropic else np.abs(responses)

    def project(self, p: Array) -> Array:
        sizes = self.sizes(p)
        return p * (self.lam / np.maximum(sizes, self.lam))

    def certify(self, u: Array, p: Array) -> tuple[Array, Array, Array]:
        """Return objective, relative gap and dual point, for `certified`.

        For any u and any feasible p, the duality gap is the sum of
        ``1/2 |u - f + K^T p|^2`` and ``lam |K u| - <K u, p>``, which are both >= 0. In holes the
        square becomes ``q_i u_i - min(q_i low, q_i high)``, with ``q = K^T p`` and the range of f.
        """
        responses, pull = self.analyze(u), self.adjoint(p)
        penalty = self.lam * float(self.sizes(responses).sum())
        valid = slice(None) if self.valid is None else self.valid
        objective = float(((u - self.f)[valid] ** 2).sum()) / 2 + penalty
        residual = (u - self.f + pull)[valid]
        gap = float((residual**2).sum()) / 2 + penalty - float((responses * p).sum())
        if self.valid is not None:
            q, (low, high) = pull[~self.valid], self.range
            gap += float((q * u[~self.valid] - np.minimum(q * low, q * high)).sum())
        energy = float(self.energy)
        return np.asarray(objective), np.asarray(gap / energy if energy > 0 else 0.0), p

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest level; the mean, in holes, is between them."""
        return float(self.f.min()), float(self.f.max())

    @property
    def energy(self) -> Array:
        """``|f - mean(f)|^2`` over valid pixels, to which the gap is relative."""
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
    mask: ArrayLike | None = None,
    tol: float | None = None,
    max_iter: int = 5000,
) -> Solution:
    """Denoise an image by its total variation, and fill its holes.

    ::

        min_u  1/2 |u - f|^2 + lam sum_p (|D_y u|_p^2 + |D_x u|_p^2)^(1/2)      isotropic
        min_u  1/2 |u - f|^2 + lam sum_p |D_y u|_p + |D_x u|_p                  otherwise

    with forward differences that are 0 at the last row or column. See `l1_analysis` for the
    algorithm; ``|D|_2^2 <= 8``. With a `mask`, ``|u - f|^2`` is over valid pixels only, and the
    algorithm is that of Chambolle and Pock.

    Parameters
    ----------
    f : array-like of shape (height, width)
    lam : float
        Weight > 0.
    isotropic : bool, default=True
    mask : array-like of bool of shape (height, width), optional
        True at valid pixels. Holes may hold NaN.
    tol : float, optional
        Largest relative duality gap. None is 1e-8, and 1e-5 where f is float32.
    max_iter : int, default=5000

    Returns
    -------
    Solution
        As for `l1_analysis`; `dual` has shape (2, height, width). With holes all norms of the gap
        are over valid pixels, where the minimiser is unique; in holes it may not be. The dual
        objective is that of u within the range of f, which has the same minimum.

    Raises
    ------
    ValueError
        On NaN or infinity at valid pixels, numbers that are not positive, or a mask of another
        shape.

    Warns
    -----
    ConvergenceWarning
        If `tol` is missed.

    References
    ----------
    Rudin, Osher and Fatemi (1992); Chambolle (2004); Chambolle and Pock (2011); EQUATIONS FE-5.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.nonlocal_energy import total_variation
    >>> total_variation(np.array([[0.0, 0.0, 1.0, 1.0]]), lam=0.1).coef.round(6)
    array([[0.05, 0.05, 0.95, 0.95]])
    >>> holed, mask = [[0.0, np.nan, 0.0, 1.0]], [[True, False, True, True]]
    >>> total_variation(np.array(holed), lam=0.1, mask=mask).coef.round(6)
    array([[0.05, 0.05, 0.05, 0.9 ]])
    """
    values, valid = check_with_holes(f, mask)
    return _solve(
        values, lam, _differences, _differences_adjoint, 8.0, isotropic, tol, max_iter, valid
    )


def _solve(
    f: ArrayLike,
    lam: float,
    analyze: Callable[[Array], Array],
    adjoint: Callable[[Array], Array],
    norm_bound: float,
    isotropic: bool,
    tol: float | None,
    max_iter: int,
    valid: Array | None = None,
) -> Solution:
    """Solve for u and the dual variable; return a certified solution."""
    image = check_matrix(f, "f")
    dtype, values = image.dtype, image.astype(np.float64, copy=False)
    level = values[0, 0] if valid is None else values[valid][0]
    values = values - level  # responses do not depend on it, up to rounding
    if valid is not None:
        values = np.where(valid, values, values[valid].mean())
    problem = _Analysis(
        values, check_positive(lam, "lam"), analyze, adjoint, norm_bound, isotropic, valid
    )
    tol = default_tol(tol, dtype)
    max_iter = check_integer(max_iter, "max_iter", minimum=1)
    solve = _ascend_with_momentum if valid is None else _alternate
    u, p, n_iter = solve(problem, tol if dtype == np.float64 else tol / 10, max_iter)
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


def _alternate(problem: _Analysis, tol: float, max_iter: int) -> tuple[Array, Array, int]:
    """Run the steps of Chambolle and Pock on u and p; return u, p, n_iter.

    The length of the steps balances the sizes of u and p; a tenth did best on photographs.
    """
    assert problem.valid is not None
    valid, (low, high) = problem.valid, problem.range
    length = float(0.1 * problem.f[valid].std() / problem.lam) or 1.0
    p, u = np.zeros_like(problem.analyze(problem.f)), problem.f
    ahead, n_iter = u, 0
    for n_iter in range(1, max_iter + 1):
        p = problem.project(p + problem.analyze(ahead) / (length * problem.norm_bound))
        moved = u - length * problem.adjoint(p)
        fitted = (moved + length * problem.f) / (1 + length)
        before, u = u, np.where(valid, fitted, np.clip(moved, low, high))
        ahead = 2 * u - before
        if n_iter % 10 == 0 and problem.certify(u, p)[1] <= tol:
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
