"""Subspace clustering by low-rank self-expression without a closed form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...validation import check_positive
from ..inputs import Array
from ..self_expression import low_rank_sparse_self_expression, robust_low_rank_self_expression
from ..solution import Solution
from .affinity import low_rank_affinity
from .base import SubspaceClustering
from .closed_form import map_linearly, relative_lam


class _JointClustering(SubspaceClustering):
    """Base of clusterers whose rows are one problem, with one objective and gap for all."""

    def _take(self, solution: Solution) -> Array:
        """Keep what the solution says of itself; return its coefficients."""
        self.objective_, self.gap_ = float(solution.objective), float(solution.gap)
        self.n_iter_ = int(solution.n_iter)
        return solution.coef

    def _represent_new(self, X: Array) -> Array:
        return map_linearly(X, self._fit_X, self.coef_)


@dataclass(eq=False, repr=False, kw_only=True)
class LowRankRepresentationClustering(_JointClustering):
    """Subspace clustering by low-rank representation (LRR) of data with outlying rows.

    ::

        min_{C, E}  |C|_* + lam sum_i |e_i|     subject to   X = C X + E

    followed by an affinity of the coefficients and the spectral step. A new point x gets the
    coefficients ``x pinv(X) C``, by the least-squares linear map from samples to their
    coefficients; no problem is solved for it. With Frobenius noise in place of outliers, use
    `LowRankSubspaceClustering`. For affine subspaces, append a constant feature to X first.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    lam : float, optional
        Weight of the outliers, > 0; larger values follow the data more closely. None is 1 over the
        root mean squared norm of the samples.
    tol : float, default=1e-6
        Largest accepted duality gap, relative to the objective.
    max_iter : int, default=5000
        Largest number of iterations of ADMM.
    affinity : callable, default=low_rank_affinity
        Makes the affinity of the coefficients.
    assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : ndarray of shape (n_samples, n_samples)
    affinity_matrix_ : ndarray of shape (n_samples, n_samples)
    objective_ : float
        The objective above at `coef_`, one number as the rows are one problem.
    gap_ : float
        Certified duality gap relative to the objective.
    n_iter_ : int
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the coefficients did not converge, the graph does not tell the clusters apart, or its
        eigenvectors are not certified (`spectral_labels`).

    References
    ----------
    Liu, Lin and Yu, "Robust subspace segmentation by low-rank representation" (2010); EQUATIONS
    CL-6, PP-3.

    Examples
    --------
    >>> from twinsolve.solvers import LowRankRepresentationClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> labels = LowRankRepresentationClustering(2, random_state=0).fit_predict(X)
    >>> labels == labels[0]
    array([ True,  True,  True, False, False, False])
    """

    lam: float | None = None
    affinity: Callable[[Any], Any] = low_rank_affinity
    tol: float = 1e-6
    max_iter: int = 5000

    def _represent(self, X: Array) -> Array:
        lam = self.lam
        if lam is None:
            lam = 1 / np.sqrt((X.astype(np.float64) ** 2).sum() / len(X) or 1.0)
        solution = robust_low_rank_self_expression(
            X, lam=check_positive(lam, "lam"), tol=self.tol, max_iter=self.max_iter
        )
        return self._take(solution)


@dataclass(eq=False, repr=False, kw_only=True)
class LowRankSparseSubspaceClustering(_JointClustering):
    """Low-rank sparse subspace clustering (LRSSC): sparse rows, connected clusters.

    ::

        min_C  |X - C X|_F^2 + lam (|C|_* + beta |C|_1)   subject to   diag(C) = 0

    followed by an affinity of the coefficients and the spectral step. A new point x gets the
    coefficients ``x pinv(X) C``, by the least-squares linear map from samples to their
    coefficients; no problem is solved for it.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    lam : float, optional
        Penalty > 0. None is 0.01 of the mean squared norm of the samples.
    beta : float, default=1.0
        Weight of the l1 norm against the nuclear norm, > 0.
    tol : float, default=1e-4
        Largest accepted duality gap, relative to ``|X|_F^2``; ADMM is slow for smaller values.
    max_iter : int, default=5000
        Largest number of iterations of ADMM, each with a singular value decomposition.
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : ndarray of shape (n_samples, n_samples)
        The diagonal is zero.
    affinity_matrix_ : ndarray of shape (n_samples, n_samples)
    objective_ : float
        The objective above at `coef_`, one number as the rows are one problem.
    gap_ : float
        Certified duality gap relative to ``|X|_F^2``.
    n_iter_ : int
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the coefficients did not converge, the graph does not tell the clusters apart, or its
        eigenvectors are not certified (`spectral_labels`).

    References
    ----------
    Wang, Xu and Leng, "Provable subspace clustering: when LRR meets SSC" (2013); EQUATIONS CL-8.

    Examples
    --------
    >>> from twinsolve.solvers import LowRankSparseSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> LowRankSparseSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    lam: float | None = None
    beta: float = 1.0
    tol: float = 1e-4
    max_iter: int = 5000

    def _represent(self, X: Array) -> Array:
        solution = low_rank_sparse_self_expression(
            X, lam=relative_lam(X, self.lam), beta=self.beta, tol=self.tol, max_iter=self.max_iter
        )
        return self._take(solution)
