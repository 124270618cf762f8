"""Subspace clustering as scikit-learn estimators: represent, make an affinity, cut the graph."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.linear_model import orthogonal_mp
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted, validate_data

from ..self_expression import (
    least_squares_self_expression,
    low_rank_self_expression,
    omp_self_expression,
    sparse_self_expression,
)
from ..solution import Array, check_integer, check_positive
from ..sparse_coding import lam_max, sparse_code
from ..sparse_coding.problem import check_l1_ratio
from .affinity import low_rank_affinity, symmetric_affinity
from .spectral import check_n_clusters, eigengap_n_clusters, spectral_labels

_BLOCK_ENTRIES = 2**22
_RELATIVE_LAM = 0.01


class _SubspaceClustering(ClusterMixin, BaseEstimator, ABC):
    """Represent the samples by each other, make an affinity of the coefficients, cut the graph."""

    n_clusters: int | None
    affinity: Callable[[Any], Any]
    assign_labels: Literal["kmeans", "cluster_qr"]
    random_state: int | np.random.RandomState | None

    def fit(self, X: ArrayLike, y: None = None) -> "_SubspaceClustering":
        """Represent the rows of X by each other and cluster them.

        Raises
        ------
        ValueError
            On NaN, infinity, one sample, more clusters than samples, or a parameter outside its
            range.
        """
        points = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        if self.n_clusters is not None:
            check_n_clusters(self.n_clusters, len(points))
        self._fit_X = points
        self.coef_ = self._represent(points)
        self.affinity_matrix_ = self.affinity(self.coef_)
        n_clusters = self.n_clusters
        if n_clusters is None:
            n_clusters = eigengap_n_clusters(self.affinity_matrix_)
        self.labels_ = spectral_labels(
            self.affinity_matrix_,
            n_clusters,
            assign_labels=self.assign_labels,
            random_state=self.random_state,
        )
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Labels of new points, by solving for them against the training points.

        Each point takes the cluster whose training points, with their coefficients, leave the
        smallest residual ``|x - sum_{j in cluster} c_j x_j|``.

        Raises
        ------
        ValueError
            On NaN, infinity or a wrong number of features.
        """
        check_is_fitted(self)
        points = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        coef = self._represent_new(points)
        clusters = np.unique(self.labels_)
        residuals = []
        for cluster in clusters:
            members = np.flatnonzero(self.labels_ == cluster)
            explained = coef[:, members] @ self._fit_X[members]
            residuals.append(np.linalg.norm(points - explained, axis=1))
        return clusters[np.argmin(residuals, axis=0)]

    @abstractmethod
    def _represent(self, X: Array) -> Array | csr_array:
        """Coefficients of the training points, shape (n_samples, n_samples)."""

    @abstractmethod
    def _represent_new(self, X: Array) -> Array | csr_array:
        """Coefficients of new points by the training points, shape (n_points, n_samples)."""


class _LassoClustering(_SubspaceClustering):
    gamma: float
    tol: float
    max_iter: int
    n_jobs: int | None

    def _settings(self, largest: Array) -> dict[str, Any]:
        ratio = check_l1_ratio(getattr(self, "l1_ratio", 1.0))
        if check_positive(self.gamma, "gamma") <= 1:
            raise ValueError(f"gamma: must be > 1, or all coefficients are zero; got {self.gamma}")
        return {
            "lam": np.where(largest > 0, largest, 1.0) / (self.gamma * ratio),
            "l1_ratio": ratio,
            "tol": self.tol,
            "max_iter": self.max_iter,
            "n_jobs": self.n_jobs,
        }

    def _represent(self, X: Array) -> csr_array:
        settings = self._settings(lam_max(X, X, zero_diagonal=True))
        solution = sparse_self_expression(X, **settings)
        self.gap_ = solution.gap
        self.n_iter_ = int(solution.n_iter.max())
        return solution.coef

    def _represent_new(self, X: Array) -> csr_array:
        settings = self._settings(lam_max(X, self._fit_X))
        return sparse_code(X, self._fit_X, **settings).coef


class SparseSubspaceClustering(_LassoClustering):
    """Sparse subspace clustering (SSC): each point from few others, certified.

    ::

        min_c  |x_i - c X|^2 + lam_i |c|_1   subject to   c_i = 0
        lam_i = 2 max_{j != i} |x_i . x_j| / gamma

    followed by an affinity of the coefficients and the spectral step.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    gamma : float, default=50.0
        Above 1. Penalty of a point relative to the one that makes its coefficients zero: larger
        values give more non-zeros.
    tol : float, default=1e-6
        Largest accepted duality gap of a point, relative to ``|x_i|^2``.
    max_iter : int, default=100
        Most working sets tried for a point.
    affinity : callable, default=symmetric_affinity
        Makes the affinity of the coefficients. Compose it of the steps `keep_l1_mass`,
        `scale_by_row_maximum`, `unit_rows`, `symmetric_affinity`, `svd_power_affinity` and others.
    assign_labels : {"kmeans", "cluster_qr"}, default="kmeans"
    random_state : int, RandomState or None
        Seeds k-means.
    n_jobs : int, optional
        Threads that share the points. None is 1 unless in a ``joblib.parallel_config`` context.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Row i represents sample i; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    gap_ : ndarray of shape (n_samples,)
        Certified duality gap of each row of `coef_`, relative to ``|x_i|^2``.
    n_iter_ : int
        Most working sets that a point took.
    n_features_in_ : int

    References
    ----------
    Elhamifar and Vidal, "Sparse Subspace Clustering" (2013); EQUATIONS SE-12, CL-1.

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

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        gamma: float = 50.0,
        tol: float = 1e-6,
        max_iter: int = 100,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.tol = tol
        self.max_iter = max_iter
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state
        self.n_jobs = n_jobs


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
    gamma : float, default=50.0
        Above 1. Penalty of a point relative to the one that makes its coefficients zero: larger
        values give more non-zeros.
    l1_ratio : float, default=0.9
        In (0, 1]; 1 is `SparseSubspaceClustering`.
    tol, max_iter, affinity, assign_labels, random_state, n_jobs
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_, coef_, affinity_matrix_, gap_, n_iter_, n_features_in_
        As in `SparseSubspaceClustering`.

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

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        gamma: float = 50.0,
        l1_ratio: float = 0.9,
        tol: float = 1e-6,
        max_iter: int = 100,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.max_iter = max_iter
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state
        self.n_jobs = n_jobs


class OMPSubspaceClustering(_SubspaceClustering):
    """Subspace clustering by orthogonal matching pursuit (SSC-OMP): greedy and fast.

    Points are scaled to unit norm; each is represented by at most `n_nonzero` others, chosen one by
    one as the most correlated with what is not yet explained. Then an affinity of the coefficients
    and the spectral step.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_nonzero : int, default=5
        Most points that represent a point; about the dimension of the subspaces. With fewer than
        ``n_nonzero + 1`` samples, all others may be used.
    tol : float, default=1e-6
        Norm of the residual of a unit row at which it is finished; >= 0.
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Coefficients among the unit rows; the diagonal is zero.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_features_in_ : int

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

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        n_nonzero: int = 5,
        tol: float = 1e-6,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_nonzero = n_nonzero
        self.tol = tol
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state

    def _represent(self, X: Array) -> csr_array:
        most = check_integer(self.n_nonzero, "n_nonzero", minimum=1)
        return omp_self_expression(normalize(X), n_nonzero=min(most, len(X) - 1), tol=self.tol)

    def _represent_new(self, X: Array) -> Array:
        norms, lengths = (np.linalg.norm(Z, axis=1) for Z in (X, self._fit_X))
        most = min(self.n_nonzero, len(self._fit_X), X.shape[1])
        with warnings.catch_warnings():
            # Raised where fewer points than `n_nonzero` represent the new one exactly.
            warnings.filterwarnings("ignore", "Orthogonal matching pursuit ended prematurely")
            coef = orthogonal_mp(normalize(self._fit_X).T, normalize(X).T, n_nonzero_coefs=most)
        coef = coef.reshape(len(self._fit_X), len(X)).T
        return norms[:, None] * coef / np.where(lengths > 0, lengths, 1)


class _ClosedFormClustering(_SubspaceClustering):
    lam: float | None

    def _penalty(self, X: Array) -> float:
        if self.lam is not None:
            return check_positive(self.lam, "lam")
        return _RELATIVE_LAM * float((X.astype(np.float64) ** 2).sum() / len(X)) or 1.0

    def _represent_new(self, X: Array) -> Array:
        """``X R diag(h(s) / s) U^T``, which is ``U diag(h(s)) U^T`` on the training points."""
        U, s, Rt = np.linalg.svd(self._fit_X.astype(np.float64), full_matrices=False)
        kept = s > max(self._fit_X.shape) * np.finfo(X.dtype).eps * s[0]
        U, s, Rt = U[:, kept], s[kept], Rt[kept]
        coef = (X @ Rt.T) * (self._filter(s, self._penalty(self._fit_X)) / s) @ U.T
        return coef.astype(X.dtype)

    @abstractmethod
    def _filter(self, s: Array, lam: float) -> Array:
        """Eigenvalues h(s) of the coefficients for the singular values s of the samples."""


class LeastSquaresSubspaceClustering(_ClosedFormClustering):
    """Subspace clustering by least squares regression (LSR), in closed form.

    ::

        min_C  |X - C X|_F^2 + lam |C|_F^2,     optionally with diag(C) = 0

    followed by an affinity of the coefficients and the spectral step. New points are represented by
    ridge regression on the training points.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    lam : float, optional
        Penalty > 0. None is 0.01 of the mean squared norm of the samples.
    zero_diagonal : bool, default=False
        No sample represents itself.
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : ndarray of shape (n_samples, n_samples)
    affinity_matrix_ : ndarray of shape (n_samples, n_samples)
    n_features_in_ : int

    References
    ----------
    Lu et al., "Robust and efficient subspace segmentation via least squares regression" (2012);
    EQUATIONS SE-LSR, SE-LSRd, QK-ridge for new points.

    Examples
    --------
    >>> from twinsolve.solvers import LeastSquaresSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> LeastSquaresSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        lam: float | None = None,
        zero_diagonal: bool = False,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.lam = lam
        self.zero_diagonal = zero_diagonal
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state

    def _represent(self, X: Array) -> Array:
        lam = self._penalty(X)
        return least_squares_self_expression(X, lam=lam, zero_diagonal=self.zero_diagonal)

    def _filter(self, s: Array, lam: float) -> Array:
        return s**2 / (s**2 + lam)


class LowRankSubspaceClustering(_ClosedFormClustering):
    """Low-rank subspace clustering (LRSC; LRR with Frobenius noise), in closed form.

    ::

        min_C  |X - C X|_F^2 + lam |C|_*

    followed by an affinity of the coefficients and the spectral step. New points go through the
    spectral filter of the solution, which is not the minimiser of a problem of their own.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    lam : float, optional
        Penalty > 0; ``2 / tau`` for the tau of LRSC. None is 0.01 of the mean squared norm of the
        samples.
    affinity : callable, default=low_rank_affinity
        Makes the affinity of the coefficients.
    assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : ndarray of shape (n_samples, n_samples)
        Symmetric and positive semidefinite.
    affinity_matrix_ : ndarray of shape (n_samples, n_samples)
    n_features_in_ : int

    References
    ----------
    Favaro, Vidal and Ravichandran, "A closed form solution to robust subspace estimation and
    clustering" (2011); EQUATIONS SE-LRR, CL-7, PP-3, QK-low rank for new points.

    Examples
    --------
    >>> from twinsolve.solvers import LowRankSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> LowRankSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        lam: float | None = None,
        affinity: Callable[[Any], Any] = low_rank_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.lam = lam
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state

    def _represent(self, X: Array) -> Array:
        return low_rank_self_expression(X, lam=self._penalty(X))

    def _filter(self, s: Array, lam: float) -> Array:
        return np.maximum(0, 1 - lam / (2 * s**2))


class ThresholdingSubspaceClustering(_SubspaceClustering):
    """Thresholding-based subspace clustering (TSC): the nearest points by angle, a baseline.

    ``c_ij = exp(-2 arccos |u_i . u_j|)`` for the `n_neighbors` points j != i with the largest
    ``|u_i . u_j|``, ``u_i = x_i / |x_i|``, and zero otherwise. Orthogonal points and zero rows are
    not joined. Then an affinity of the coefficients and the spectral step.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_neighbors : int, default=5
        With fewer than ``n_neighbors + 1`` samples, all others are used.
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_features_in_ : int

    References
    ----------
    Heckel and Boelcskei, "Robust Subspace Clustering via Thresholding" (2015); EQUATIONS CL-10.

    Examples
    --------
    >>> from twinsolve.solvers import ThresholdingSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> ThresholdingSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    def __init__(
        self,
        n_clusters: int | None = 8,
        *,
        n_neighbors: int = 5,
        affinity: Callable[[Any], Any] = symmetric_affinity,
        assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_neighbors = n_neighbors
        self.affinity = affinity
        self.assign_labels = assign_labels
        self.random_state = random_state

    def predict(self, X: ArrayLike) -> Array:
        """Labels of new points: the cluster with the largest sum of weights among their neighbours.

        Raises
        ------
        ValueError
            On NaN, infinity or a wrong number of features.
        """
        check_is_fitted(self)
        points = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        clusters, members = np.unique(self.labels_, return_inverse=True)
        one_hot = csr_array((np.ones(len(members)), (np.arange(len(members)), members)))
        mass = self._represent_new(points) @ one_hot
        return clusters[mass.toarray().argmax(axis=1)]

    def _represent(self, X: Array) -> csr_array:
        return self._nearest(X, exclude_self=True)

    def _represent_new(self, X: Array) -> csr_array:
        return self._nearest(X, exclude_self=False)

    def _nearest(self, X: Array, exclude_self: bool) -> csr_array:
        most = check_integer(self.n_neighbors, "n_neighbors", minimum=1)
        U, atoms = normalize(X), normalize(self._fit_X)
        n, n_atoms = len(U), len(atoms)
        q = min(most, n_atoms - exclude_self)
        size = max(1, _BLOCK_ENTRIES // n_atoms)
        found, weights = [], []
        for start in range(0, n, size):
            cosines = np.abs(U[start : start + size] @ atoms.T)
            if exclude_self:
                rows = np.arange(len(cosines))
                cosines[rows, start + rows] = -1
            nearest = np.argpartition(-cosines, q - 1, axis=1)[:, :q]
            cosine = np.minimum(np.take_along_axis(cosines, nearest, axis=1), 1)
            found.append(nearest)
            weights.append(np.where(cosine > 0, np.exp(-2 * np.arccos(cosine)), 0))
        indices, data = np.concatenate(found).ravel(), np.concatenate(weights).ravel()
        coef = csr_array((data, indices, np.arange(0, n * q + 1, q)), shape=(n, n_atoms))
        coef.eliminate_zeros()
        coef.sort_indices()
        return coef
