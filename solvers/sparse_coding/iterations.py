"""Reference iterations for sparse coding: what sparse attention unrolls."""

import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array, Solution, check_integer, check_lam
from .problem import TOL, certify, check_problem


@np.errstate(over="ignore", invalid="ignore")  # a step too long diverges, and the gap says so
def ista(
    Y: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float | ArrayLike,
    n_iter: int,
    step: float | ArrayLike | None = None,
    zero_diagonal: bool = False,
    nonnegative: bool = False,
) -> Solution:
    """Run a given number of ISTA iterations on the sparse coding problem, from zero codes.

    ::

        C <- S_{step lam / 2}( C + step (Y - C D) D^T ),   then diag(C) <- 0 if asked

    for ``min_C |Y - C D|_F^2 + lam |C|_1``. `step` multiplies half the gradient. For
    ``step <= 1 / |D|_2^2`` the objective never increases and after k iterations it is at most
    ``|C* - C_0|_F^2 / (step k)`` above the optimum; a longer step may diverge, and `gap` says so.
    With ``zero_diagonal=True`` and ``Y = dictionary = X`` this is ISTA for sparse self-expression;
    zeroing the diagonal is part of the exact proximal step.

    Parameters
    ----------
    Y : array-like of shape (n_signals, n_features)
    dictionary : array-like of shape (n_atoms, n_features)
    lam : float or array-like of shape (n_signals,)
        Penalty > 0.
    n_iter : int
        Number of iterations, all of which are run.
    step : float or array-like of shape (n_iter,), optional
        One step length, or one an iteration. None is ``1 / |D^T D|_F``, which is never longer than
        ``1 / |D|_2^2``.
    zero_diagonal : bool, default=False
        Exclude atom i from the code of signal i; needs as many signals as atoms.
    nonnegative : bool, default=False
        Threshold one-sidedly: exact for the same problem with ``C >= 0``.

    Returns
    -------
    Solution
        `coef` is a dense array; `converged` says whether `gap` is at most 1e-6.

    Raises
    ------
    ValueError
        On NaN, infinity, wrong shapes, ``lam <= 0``, ``n_iter < 0`` or ``step <= 0``.

    References
    ----------
    Daubechies, Defrise and De Mol (2004); EQUATIONS SE-15, SE-15n, SE-18 and LS-3 (default step).
    The papers print the threshold without the step and the factor 1/2 (erratum E3-d/e), one-sided
    (E3-f), and without the zero diagonal (E3-g).

    Examples
    --------
    >>> from twinsolve.solvers import ista
    >>> ista([[3.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]], lam=2.0, n_iter=1, step=1.0).coef
    array([[2., 0.]])
    """
    Y, D = check_problem(Y, dictionary, zero_diagonal=zero_diagonal)
    lams = check_lam(lam, len(Y))
    n_iter = check_integer(n_iter, "n_iter", minimum=0)
    gram, correlation = _gram(D), Y.astype(np.float64) @ D.T.astype(np.float64)
    C = np.zeros_like(correlation)
    for length in _check_steps(step, n_iter, gram):
        C += length * (correlation - C @ gram)
        C = _soft_threshold(C, length * lams[:, None] / 2, nonnegative)
        if zero_diagonal:
            np.fill_diagonal(C, 0)
    C = C.astype(np.result_type(Y, D), copy=False)
    objective, gap, dual = certify(Y, D, C, lams, zero_diagonal, nonnegative)
    return Solution(C, objective, gap, dual, np.full(len(Y), n_iter), gap <= TOL)


def _check_steps(step: float | ArrayLike | None, n_iter: int, gram: Array) -> Array:
    if step is None:
        norm = np.linalg.norm(gram)
        step = 1 / norm if norm > 0 else 1.0
    steps = np.asarray(step, dtype=np.float64)
    if steps.shape not in ((), (n_iter,)):
        raise ValueError(f"step: must be a number or hold {n_iter} entries, got {steps.shape}")
    if not (np.isfinite(steps).all() and (steps > 0).all()):
        raise ValueError(f"step: must be finite and > 0, got {step!r}")
    return np.broadcast_to(steps, (n_iter,))


def _gram(D: Array) -> Array:
    D = D.astype(np.float64, copy=False)
    return D @ D.T


def _soft_threshold(Z: Array, threshold: Array, nonnegative: bool) -> Array:
    if nonnegative:
        return np.maximum(Z - threshold, 0)
    return np.sign(Z) * np.maximum(np.abs(Z) - threshold, 0)
