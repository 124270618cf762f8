"""Subspace clustering by sparse self-expression of data with corrupted entries."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from ...validation import check_positive
from ..inputs import Array
from ..self_expression import outlier_lams_from_alpha, outlier_self_expression
from ..self_expression.outlier import solve_outlier
from ..solution import warn_unless_converged
from .base import Auto, Choices, SubspaceClustering


@dataclass(eq=False, repr=False, kw_only=True)
class OutlierSubspaceClustering(SubspaceClustering):
    """Sparse subspace clustering with sparse outliers, for data with corrupted entries like faces.

    ::

        min_{c, e}  |x_i - c X - e|^2 + lam |c|_1 + lam_outlier |e|_1   subject to   c_i = 0

    followed by an affinity of C and the spectral step. The penalties come from
    `outlier_lams_from_alpha` of the samples. A new point is represented with the same penalties,
    and joins the cluster with the smallest residual ``|x - e - sum_{j in cluster} c_j x_j|``.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    alpha : float or "auto", default="auto"
        The alpha > 0 of the circulated code; larger values penalise less. The ratio of the two
        penalties depends only on alpha and the scale of X; the literature takes raw pixels. "auto"
        fits 20, 5 and 50, and takes the one whose clusters are best separated and balanced
        (`choose_settings`).
    tol : float, default=1e-6
        Largest accepted duality gap of a point, relative to ``|x_i|^2``.
    max_iter : int, default=100
        Largest number of working sets for a point.
    affinity, assign_labels, random_state, n_jobs
        As in `SparseSubspaceClustering`. Published numbers use the affinity
        ``symmetric_affinity(scale_by_row_maximum(C))``.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Row i represents sample i; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    objective_ : ndarray of shape (n_samples,)
        The objective above of each row of `coef_`, with the best outliers e for it.
    gap_ : ndarray of shape (n_samples,)
        Certified duality gap of each row of `coef_`, relative to ``|x_i|^2``.
    alpha_ : float
        The alpha that was used.
    lam_, lam_outlier_ : float
        The penalties.
    n_iter_ : int
        Largest number of Newton steps of a point.
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the coefficients did not converge, the graph does not tell the clusters apart, or its
        eigenvectors are not certified (`spectral_labels`).
    UserWarning
        If "auto" has to choose among settings that are equally bad (`choose_settings`).

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013), for faces; EQUATIONS CL-3.

    Examples
    --------
    >>> from twinsolve.solvers import OutlierSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> OutlierSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    alpha: float | Auto = "auto"
    tol: float = 1e-6
    max_iter: int = 100
    n_jobs: int | None = None

    _choices: ClassVar[Choices] = {"alpha": (20.0, 5.0, 50.0)}
    _needs_features: ClassVar[str] = "outliers are single features"

    def _represent(self, X: Array) -> csr_array:
        rows = X[X.any(axis=1)]
        self.lam_ = self.lam_outlier_ = check_positive(self.alpha_, "alpha")
        if len(rows) > 1:
            self.lam_, self.lam_outlier_ = outlier_lams_from_alpha(rows, self.alpha_)
        solution = outlier_self_expression(
            X,
            lam=self.lam_,
            lam_outlier=self.lam_outlier_,
            tol=self.tol,
            max_iter=self.max_iter,
            n_jobs=self.n_jobs,
        )
        self.objective_ = solution.objective
        self.gap_ = solution.gap
        self.n_iter_ = int(solution.n_iter.max())
        return solution.coef

    def _represent_new(self, X: Array) -> csr_array:
        solution = solve_outlier(
            X,
            self._fit_X,
            self.lam_,
            self.lam_outlier_,
            tol=self.tol,
            max_iter=self.max_iter,
            zero_diagonal=False,
            n_jobs=self.n_jobs,
        )
        warn_unless_converged(solution)
        return solution.coef

    def _assign(self, points: Array, coef: Array | csr_array, labels: Array) -> Array:
        explained = coef @ self._fit_X
        half = self.lam_outlier_ / 2
        cleaned = explained + np.clip(points - explained, -half, half)
        return super()._assign(cleaned, coef, labels)
