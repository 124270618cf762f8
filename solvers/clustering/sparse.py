"""Subspace clustering by sparse self-expression: SSC, elastic net, orthogonal matching pursuit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, diags_array

from ...validation import check_integer, check_positive
from ..inputs import Array
from ..self_expression import omp_self_expression, sparse_self_expression
from ..self_expression.constrained import affine_sparse_code
from ..solution import Solution, warn_unless_converged
from ..sparse_coding import lam_max, sparse_code
from ..sparse_coding.lasso import Lasso
from ..sparse_coding.matching_pursuit import pursue_rows
from ..sparse_coding.penalty import Penalty, check_l1_ratio
from ..sparse_coding.problem import check_points
from ..sparse_coding.row_blocks import Progress
from .affinity import unit_rows
from .base import Auto, Choices, SubspaceClustering, mean_point


@dataclass(eq=False, repr=False, kw_only=True)
class _LassoClustering(SubspaceClustering):
    gamma: float | Auto = "auto"
    tol: float = 1e-6
    max_iter: int = 100
    n_jobs: int | None = None
    directory: str | Path | None = None
    progress: Progress | None = None

    # Each is a parameter of one subclass; the other subclass has these values.
    l1_ratio = 1.0
    affine = False
    nonnegative = False
    _choices: ClassVar[Choices] = {"gamma": (50.0, 5.0, 20.0, 200.0)}

    def _settings(self, largest: Array) -> dict[str, Any]:
        """Return the arguments of the solver; `largest` is lam_max of each point."""
        ratio = check_l1_ratio(self.l1_ratio)
        if check_positive(self.gamma_, "gamma") <= 1:
            raise ValueError(f"gamma: must be > 1, or all coefficients are zero; got {self.gamma_}")
        return {
            "lam": np.where(largest > 0, largest, 1.0) / (self.gamma_ * ratio),
            "l1_ratio": ratio,
            "nonnegative": self.nonnegative,
            "tol": self.tol,
            "max_iter": self.max_iter,
            "n_jobs": self.n_jobs,
        }

    def _lam_max(self, X: Array, samples: Array, *, zero_diagonal: bool = False) -> Array:
        """Return `lam_max` of the points X in the samples, both centred if affine.

        Otherwise the penalties would depend on the origin.
        """
        if self.affine:
            centre = mean_point(samples)
            X, samples = X - centre, samples - centre
        return lam_max(X, samples, zero_diagonal=zero_diagonal)

    def _represent(self, X: Array) -> csr_array:
        solution = self._affine_codes(X) if self.affine else self._codes(X)
        self.objective_ = solution.objective
        self.gap_ = solution.gap
        self.n_iter_ = int(solution.n_iter.max())
        return solution.coef

    def _affine_codes(self, X: Array) -> Solution:
        settings = self._settings(self._lam_max(X, X, zero_diagonal=True))
        return sparse_self_expression(
            X, affine=True, progress=self.progress, directory=self.directory, **settings
        )

    def _codes(self, X: Array) -> Solution:
        """Codes by `sparse_self_expression`, whose penalties and solution share their cells."""
        X = check_points(X, min_rows=2)
        problem = Lasso(X, X, self.tol, self.max_iter)
        settings = self._settings(problem.lam_max(self.n_jobs, zero_diagonal=True))
        lam, ratio, nonnegative = (settings[name] for name in ("lam", "l1_ratio", "nonnegative"))
        penalty = Penalty.checked(lam, len(X), ratio, nonnegative, zero_diagonal=True)
        solution = problem.solve(penalty, None, self.n_jobs, self.progress, self.directory)
        warn_unless_converged(solution)
        return solution

    def _origin(self) -> Array | float:
        return mean_point(self._fit_X) if self.affine else 0.0

    def _represent_new(self, X: Array) -> csr_array:
        settings = self._settings(self._lam_max(X, self._fit_X))
        if self.affine:
            penalty = Penalty(*(settings.pop(name) for name in ("lam", "l1_ratio", "nonnegative")))
            solution = affine_sparse_code(X, self._fit_X, penalty, **settings)
            warn_unless_converged(solution)
            return solution.coef
        return sparse_code(X, self._fit_X, **settings).coef


@dataclass(eq=False, repr=False, kw_only=True)
class SparseSubspaceClustering(_LassoClustering):
    """Sparse subspace clustering (SSC): represent each point by few others, certified.

    ::

        min_c  |x_i - c X|^2 + lam_i |c|_1   subject to   c_i = 0,   c 1 = 1 if affine,
                                                          c >= 0 if nonnegative
        lam_i = 2 max_{j != i} |x_i . x_j| / gamma      (of points less their mean if affine)

    followed by an affinity of the coefficients and the spectral step. Samples are not scaled. If
    their norms carry no information, as with images under changing light, scale them to unit norm
    first, as `sklearn.preprocessing.Normalizer` and `twinsolve cluster` do.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    gamma : float or "auto", default="auto"
        Above 1. The penalty of a point is 1 / gamma times the penalty that makes its coefficients
        zero; larger values give more non-zeros. "auto" fits 50, 5, 20 and 200, and takes the one
        whose clusters are best separated and balanced (`choose_settings`).
    affine : bool, default=False
        Whether the coefficients of each point sum to one, for affine subspaces, which need not
        contain the origin. The result then does not depend on the origin.
    nonnegative : bool, default=False
        Whether coefficients must be >= 0: each point then lies in the cone of few others. The
        penalties `lam_i` are the same.
    tol : float, default=1e-6
        Largest accepted gap of a point, on the scale of `sparse_self_expression`.
    max_iter : int, default=100
        Largest number of working sets for a point, or of Bregman iterations if `affine`.
    affinity : callable, default=symmetric_affinity
        Makes the affinity from the coefficients. It may combine the steps `keep_l1_mass`,
        `scale_by_row_maximum`, `unit_rows`, `symmetric_affinity`, `svd_power_affinity` and others.
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
    random_state : int, RandomState or None
        Seeds k-means.
    n_jobs : int, optional
        Number of threads that share the points. None is 1, or what ``joblib.parallel_config`` says.
    directory : str or Path, optional
        Folder for the coefficients found so far. If `fit` is interrupted and called again, it
        continues from them.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over blocks of points, as in
        `sparse_self_expression`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Row i represents sample i; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    objective_ : ndarray of shape (n_samples,)
        The objective above of each row of `coef_`.
    gap_ : ndarray of shape (n_samples,)
        Certified gap of each row of `coef_`, on the scale of `sparse_self_expression`.
    gamma_ : float
        The gamma that was used.
    n_iter_ : int
        Largest number of active-set steps of a point.
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
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS SE-12, SE-15n
    for `nonnegative`, CL-1, CL-4.

    Examples
    --------
    >>> from twinsolve.solvers import SparseSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> model = SparseSubspaceClustering(2, random_state=0).fit(X)
    >>> model.labels_
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    >>> model.predict([[-5.0, 0.1], [0.0, 7.0]])
    array([0, 1], dtype=int32)
    """

    affine: bool = False
    nonnegative: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class ElasticNetSubspaceClustering(_LassoClustering):
    """Elastic net subspace clustering (EnSC): sparse, with better connected clusters.

    ::

        min_c  |x_i - c X|^2 + lam_i (r |c|_1 + (1 - r) / 2 |c|^2)   subject to   c_i = 0
        r = l1_ratio,   lam_i = 2 max_{j != i} |x_i . x_j| / (gamma r)

    followed by an affinity of the coefficients and the spectral step.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    gamma : float or "auto", default="auto"
        Above 1. The penalty of a point is 1 / gamma times the penalty that makes its coefficients
        zero; larger values give more non-zeros. "auto" fits 50, 5, 20 and 200, and takes the one
        whose clusters are best separated and balanced (`choose_settings`).
    l1_ratio : float, default=0.9
        In (0, 1]; 1 is `SparseSubspaceClustering`.
    tol, max_iter, affinity, assign_labels, random_state, n_jobs, directory, progress
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_, coef_, affinity_matrix_, objective_, gap_, gamma_, n_iter_, n_features_in_
        As in `SparseSubspaceClustering`.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the coefficients did not converge, the graph does not tell the clusters apart, or its
        eigenvectors are not certified (`spectral_labels`).
    UserWarning
        If "auto" has to choose among settings that are equally bad (`choose_settings`).

    References
    ----------
    You, Li, Robinson and Vidal, "Oracle Based Active Set Algorithm for Scalable Elastic Net
    Subspace Clustering" (2016); EQUATIONS CL-1, CL-2.

    Examples
    --------
    >>> from twinsolve.solvers import ElasticNetSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> ElasticNetSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    l1_ratio: float = 0.9


@dataclass(eq=False, repr=False, kw_only=True)
class OMPSubspaceClustering(SubspaceClustering):
    """Subspace clustering by orthogonal matching pursuit (SSC-OMP): greedy and fast.

    Points are scaled to unit norm. Each is represented by at most `n_nonzero` others, chosen one by
    one: the next point is the one most correlated with the residual. An affinity of the
    coefficients and the spectral step follow.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_nonzero : int or "auto", default="auto"
        Largest number of points that represent a point; about the dimension of the subspaces. With
        fewer than ``n_nonzero + 1`` samples, all others may be used. "auto" fits 5, 3 and 10, and
        takes the one whose clusters are best separated and balanced (`choose_settings`).
    tol : float, default=1e-6
        Norm of the residual, of a point of unit norm, at which the pursuit stops; >= 0.
    affinity, assign_labels, random_state, n_jobs
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Coefficients of the points scaled to unit norm; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_nonzero_ : int
        The number that was used.
    n_features_in_ : int

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        If the graph does not tell the clusters apart, or its eigenvectors are not certified
        (`spectral_labels`).
    UserWarning
        If "auto" has to choose among settings that are equally bad (`choose_settings`).

    References
    ----------
    You, Robinson and Vidal, "Scalable Sparse Subspace Clustering by Orthogonal Matching Pursuit"
    (2016); EQUATIONS CL-9.

    Examples
    --------
    >>> from twinsolve.solvers import OMPSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> OMPSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    n_nonzero: int | Auto = "auto"
    tol: float = 1e-6
    n_jobs: int | None = None

    _choices: ClassVar[Choices] = {"n_nonzero": (5, 3, 10)}

    def _represent(self, X: Array) -> csr_array:
        n_nonzero = check_integer(self.n_nonzero_, "n_nonzero", minimum=1)
        return omp_self_expression(
            unit_rows(X), n_nonzero=min(n_nonzero, len(X) - 1), tol=self.tol, n_jobs=self.n_jobs
        )

    def _represent_new(self, X: Array) -> csr_array:
        points, atoms = (np.ascontiguousarray(Z, dtype=np.float64) for Z in (X, self._fit_X))
        norms, lengths = (np.linalg.norm(Z, axis=1) for Z in (points, atoms))
        codes = pursue_rows(
            unit_rows(points), unit_rows(atoms), self.n_nonzero_, self.tol, n_jobs=self.n_jobs
        )
        scale = 1 / np.where(lengths > 0, lengths, 1)
        return (diags_array(norms) @ codes @ diags_array(scale)).tocsr().astype(X.dtype)
