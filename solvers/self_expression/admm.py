"""Sparse self-expression by the ADMM of the literature, in its two forms."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..scales import squared_norms
from ..solution import Solution, certified, warn_unless_converged
from ..sparse_coding.penalty import Penalty, soft_threshold
from ..sparse_coding.problem import certify, check_points
from .constrained import affine_scale, certify_affine


def admm_self_expression(
    X: ArrayLike,
    *,
    lam: float,
    penalty: float,
    affine: bool = False,
    circulated: bool = False,
    tol: float = 2e-4,
    max_iter: int = 200,
) -> Solution:
    """Sparse self-expression by ADMM, in the form of the SSC paper or of its circulated code.

    With ``mu = 2 / lam`` and ``p = penalty``, an iteration is (terms in brackets if affine) ::

        Z  <- (mu X X^T + p C - L [+ (p - l) 1^T]) (mu X X^T + p I [+ p 1 1^T])^-1
        C  <- S_{1 / p}(Z + L / p),  diag(C) <- 0
        L  <- L + p (Z - C)      [ l <- l + p (Z 1 - 1) ]

    It ends if ``max |Z - C| < tol`` off the diagonal ``[and max |Z 1 - 1| < tol]``. Use it only to
    reproduce numbers of the literature: `sparse_self_expression` solves the same problem faster,
    with a certificate. The circulated code sets diag(Z) to zero after the first line. This changes
    the fixed point, which is then not the optimum, as the gap shows. Neither stopping rule tests
    whether C still changes, so both may stop early.

    Parameters
    ----------
    X : array-like or sparse array of shape (n_samples, n_features)
    lam : float
        Penalty > 0 on the scale of `sparse_self_expression`; the literature takes `lam_from_alpha`.
    penalty : float
        Penalty > 0 of the constraint Z = C; alpha in the literature.
    affine : bool, default=False
        Add the constraint ``C 1 = 1``.
    circulated : bool, default=False
        Use the form of the circulated code instead of the form of the paper.
    tol : float, default=2e-4
        Tolerance of the stopping rule.
    max_iter : int, default=200

    Returns
    -------
    Solution
        `coef` is a dense array whose diagonal is exactly zero. `gap` and `objective` are those of
        `sparse_self_expression`; `message` says whether the stopping rule of ADMM ended it.

    Warns
    -----
    ConvergenceWarning
        If a row ends with a gap above `tol`, as it does if the rule stops early.

    Raises
    ------
    ValueError
        On NaN, infinity, a row whose largest entry is not within 1e-140 to 1e140 in size, fewer
        than two samples, `lam`, `penalty` or ``tol <= 0`` or ``max_iter < 1``.

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS CL-5.

    Examples
    --------
    >>> from twinsolve.solvers.self_expression import admm_self_expression
    >>> X = [[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.2, 1.0]]
    >>> admm_self_expression(X, lam=0.5, penalty=3.0, tol=1e-6).coef.round(4) + 0
    array([[0.    , 0.7212, 0.    , 0.    ],
           [0.75  , 0.    , 0.    , 0.    ],
           [0.    , 0.    , 0.    , 0.7212],
           [0.    , 0.    , 0.75  , 0.    ]])
    """
    X = check_points(X, min_rows=2)
    lam, penalty = check_positive(lam, "lam"), check_positive(penalty, "penalty")
    tol, max_iter = check_positive(tol, "tol"), check_integer(max_iter, "max_iter", minimum=1)
    points = X.astype(np.float64)
    sparse = Penalty.checked(lam, len(X), zero_diagonal=True)

    def certify_codes(codes: Array) -> tuple[Array, Array, Array]:
        if affine:
            return certify_affine(points, points, csr_array(codes), sparse)
        return certify(points, points, codes, sparse)

    C, n_iter, stopped = _admm(points, 2 / lam, penalty, affine, circulated, tol, max_iter)
    solution = certified(
        C,
        certify_codes,
        dtype=X.dtype,
        tol=tol,
        n_iter=n_iter,
        cure=cure("sparse_self_expression"),
        ended=how_admm_ended(n_iter, stopped),
        scale=affine_scale(points, points, sparse) if affine else squared_norms(points),
    )
    warn_unless_converged(solution)
    return solution


def _admm(
    X: Array, mu: float, p: float, affine: bool, circulated: bool, tol: float, max_iter: int
) -> tuple[Array, int, bool]:
    """Run the ADMM of the paper or of the circulated code."""
    n = len(X)
    data = mu * X @ X.T
    inverse = np.linalg.inv(data + p * np.eye(n) + p * affine)
    C, L, sums = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, 1))
    for iteration in range(1, max_iter + 1):
        Z = (data + p * C - L + affine * (p - sums)) @ inverse
        if circulated:
            np.fill_diagonal(Z, 0)
        C = soft_threshold(Z + L / p, 1 / p)
        np.fill_diagonal(C, 0)
        L += p * (Z - C)
        excess = Z.sum(axis=1, keepdims=True) - 1
        sums += p * affine * excess
        disagreement = np.abs(Z - C)
        np.fill_diagonal(disagreement, 0)
        if max(disagreement.max(), affine * np.abs(excess).max()) < tol:
            return C, iteration, True
    return C, max_iter, False


def how_admm_ended(n_iter: int, stopped: bool) -> str:
    """Return a sentence that says which rule ended an ADMM of the literature."""
    if stopped:
        return f"ADMM was stopped by its own rule after {n_iter} iterations"
    return f"ADMM ended at max_iter={n_iter}, before its own rule stopped it"


def cure(solver: str) -> str:
    """Return advice for an ADMM that stopped short of the optimum."""
    return f"decrease tol, increase max_iter, or take `{solver}`, which solves the problem"
