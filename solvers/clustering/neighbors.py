"""Clustering by graphs of nearest points (by distance or angle) or by weights of neighbours."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.sparse import csr_array
from sklearn.neighbors import NearestNeighbors

from ...validation import check_integer
from ..inputs import Array, narrow
from ..locally_linear import locally_linear_weights
from .affinity import unit_rows
from .base import Auto, Choices, SubspaceClustering, mean_point

_BLOCK_ENTRIES = 2**22
_NUMBERS: Choices = {"n_neighbors": (5, 3, 10)}


@dataclass(eq=False, repr=False, kw_only=True)
class NeighborClustering(SubspaceClustering):
    """Base of clusterers whose coefficients weigh neighbours, but do not represent points."""

    n_neighbors: int | Auto = "auto"

    _choices: ClassVar[Choices] = _NUMBERS

    def _assign(self, points: Array, coef: Array | csr_array, labels: Array) -> Array:
        """Return, for each point, the cluster with the largest sum of weights."""
        clusters, members = np.unique(labels, return_inverse=True)
        one_hot = csr_array((np.ones(len(members)), (np.arange(len(members)), members)))
        return clusters[(coef @ one_hot).toarray().argmax(axis=1)]


@dataclass(eq=False, repr=False, kw_only=True)
class NearestNeighborClustering(NeighborClustering):
    """Spectral clustering of the graph of nearest neighbours: a baseline.

    ::

        c_ij = 1                                       weights="binary"
        c_ij = exp(-d_ij^2 / (sigma_i sigma_j))        weights="gaussian"

    for the `n_neighbors` points j != i at the smallest distance ``d_ij``, and zero otherwise.
    ``sigma_i`` is the distance of point i to the last of its neighbours. An affinity of the
    coefficients and the spectral step follow. A new point joins the cluster with the largest sum of
    weights among its neighbours.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_neighbors : int or "auto", default="auto"
        With fewer than ``n_neighbors + 1`` samples, all others are used. "auto" fits 5, 3 and 10,
        and takes the one whose clusters are best separated and balanced (`choose_settings`).
    metric : {"euclidean", "cosine"}, default="euclidean"
        ``cosine`` is the Euclidean distance after scaling points to unit norm: neighbours have the
        largest cosine.
    weights : {"binary", "gaussian"}, default="binary"
    affinity, assign_labels, random_state, n_jobs
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Weights of the neighbours of each sample.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_neighbors_ : int
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
    von Luxburg, "A tutorial on spectral clustering" (2007); Zelnik-Manor and Perona, "Self-tuning
    spectral clustering" (2004) for ``gaussian``; EQUATIONS CL-10.

    Examples
    --------
    >>> from twinsolve.solvers import NearestNeighborClustering
    >>> X = [[1.0, 0.0], [1.1, 0.0], [1.2, 0.0], [0.0, 1.0], [0.0, 1.1], [0.0, 1.2]]
    >>> NearestNeighborClustering(2, n_neighbors=2, random_state=0).fit_predict(X)
    array([1, 1, 1, 0, 0, 0], dtype=int32)
    """

    metric: Literal["euclidean", "cosine"] = "euclidean"
    weights: Literal["binary", "gaussian"] = "binary"
    n_jobs: int | None = None

    def _represent(self, X: Array) -> csr_array:
        if self.metric not in ("euclidean", "cosine"):
            raise ValueError(f"metric: must be 'euclidean' or 'cosine', got {self.metric!r}")
        if self.weights not in ("binary", "gaussian"):
            raise ValueError(f"weights: must be 'binary' or 'gaussian', got {self.weights!r}")
        n_neighbors = check_integer(self.n_neighbors_, "n_neighbors", minimum=1)
        self._search = NearestNeighbors(
            n_neighbors=min(n_neighbors, len(X) - 1), n_jobs=self.n_jobs
        )
        distance, indices = self._search.fit(self._scale_by_metric(X)).kneighbors()
        self._reach = distance[:, -1]
        return self._weigh(distance, indices, X.dtype)

    def _restore(self, places: Array) -> None:
        super()._restore(places)
        self._reach = self._reach[places]
        self._search.fit(self._scale_by_metric(self._fit_X))

    def _represent_new(self, X: Array) -> csr_array:
        distance, indices = self._search.kneighbors(self._scale_by_metric(X))
        return self._weigh(distance, indices, X.dtype)

    def _scale_by_metric(self, X: Array) -> Array:
        return unit_rows(X) if self.metric == "cosine" else X

    def _weigh(self, distance: Array, indices: Array, dtype: np.dtype) -> csr_array:
        """Return the weights of neighbours at these distances, as a sparse matrix."""
        n, q = distance.shape
        data = np.ones((n, q))
        if self.weights == "gaussian":
            scale = distance[:, -1:] * self._reach[indices]
            # Where a scale is zero, only coincident points have a weight.
            np.divide(distance**2, scale, out=data, where=scale > 0)
            data[(scale == 0) & (distance == 0)] = 0
            data[(scale == 0) & (distance > 0)] = np.inf
            data = np.exp(-data)
        parts = data.ravel().astype(dtype), indices.ravel(), np.arange(0, n * q + 1, q)
        coef = narrow(csr_array(parts, shape=(n, len(self._reach))))
        coef.eliminate_zeros()
        coef.sort_indices()
        return coef


@dataclass(eq=False, repr=False, kw_only=True)
class LocallyLinearSubspaceClustering(SubspaceClustering):
    """Clustering by locally linear reconstruction weights: the C of LLE as coefficients.

    ::

        min_c  |x_i - c X|^2 + reg tr(g) |c|^2   subject to   c 1 = 1,   c_j = 0 unless x_j is near

    where near means among the `n_neighbors` nearest points, with the local Gram matrix
    ``g_ab = (x_a - x_i).(x_b - x_i)`` of these. An affinity of the coefficients and the spectral
    step follow. A new point is represented by its nearest training points.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_neighbors : int or "auto", default="auto"
        With fewer than ``n_neighbors + 1`` samples, all others are used. "auto" fits 5, 3 and 10,
        and takes the one whose clusters are best separated and balanced (`choose_settings`).
    reg : float, default=1e-3
        Regularisation >= 0, as in `locally_linear_weights`.
    affinity, assign_labels, random_state, n_jobs
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
        Rows sum to one; `locally_linear_residual` certifies them.
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_neighbors_ : int
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
    Roweis and Saul, "Nonlinear Dimensionality Reduction by Locally Linear Embedding" (2000);
    EQUATIONS SE-9, SE-AFF, and QK-LLE for new points.

    Examples
    --------
    >>> from twinsolve.solvers import LocallyLinearSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 7.0], [0.0, 8.0], [0.0, 9.0]]
    >>> LocallyLinearSubspaceClustering(2, n_neighbors=2, random_state=0).fit_predict(X)
    array([1, 1, 1, 0, 0, 0], dtype=int32)
    """

    n_neighbors: int | Auto = "auto"
    reg: float = 1e-3
    n_jobs: int | None = None

    _choices: ClassVar[Choices] = _NUMBERS

    def _represent(self, X: Array) -> csr_array:
        n_neighbors = check_integer(self.n_neighbors_, "n_neighbors", minimum=1)
        return locally_linear_weights(
            X, n_neighbors=min(n_neighbors, len(X) - 1), reg=self.reg, n_jobs=self.n_jobs
        )

    def _origin(self) -> Array:
        return mean_point(self._fit_X)

    def _represent_new(self, X: Array) -> csr_array:
        count = min(self.n_neighbors_, len(self._fit_X))
        return locally_linear_weights(
            self._fit_X, n_neighbors=count, reg=self.reg, queries=X, n_jobs=self.n_jobs
        )


@dataclass(eq=False, repr=False, kw_only=True)
class ThresholdingSubspaceClustering(NeighborClustering):
    """Thresholding-based subspace clustering (TSC) of nearest points by angle: a baseline.

    ``c_ij = exp(-2 arccos |u_i . u_j|)`` with ``u_i = x_i / |x_i|`` for the `n_neighbors` points
    j != i with the largest ``|u_i . u_j|``, and zero otherwise. Orthogonal points and zero rows
    have no edges. An affinity of the coefficients and the spectral step follow.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    n_neighbors : int or "auto", default="auto"
        With fewer than ``n_neighbors + 1`` samples, all others are used. "auto" fits 5, 3 and 10,
        and takes the one whose clusters are best separated and balanced (`choose_settings`).
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : csr_array of shape (n_samples, n_samples)
    affinity_matrix_ : csr_array of shape (n_samples, n_samples)
    n_neighbors_ : int
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
    Heckel and Boelcskei, "Robust Subspace Clustering via Thresholding" (2015); EQUATIONS CL-10.

    Examples
    --------
    >>> from twinsolve.solvers import ThresholdingSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> ThresholdingSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    def _represent(self, X: Array) -> csr_array:
        return self._find_nearest(X, exclude_self=True)

    def _represent_new(self, X: Array) -> csr_array:
        return self._find_nearest(X, exclude_self=False)

    def _find_nearest(self, X: Array, exclude_self: bool) -> csr_array:
        """Return ``exp(-2 angle)`` of each row's `n_neighbors` nearest training points."""
        n_neighbors = check_integer(self.n_neighbors_, "n_neighbors", minimum=1)
        U, atoms = unit_rows(X), unit_rows(self._fit_X)
        n, n_atoms = len(U), len(atoms)
        q = min(n_neighbors, n_atoms - exclude_self)
        size = max(1, _BLOCK_ENTRIES // n_atoms)
        neighbors, weights = [], []
        for start in range(0, n, size):
            cosines = np.abs(U[start : start + size] @ atoms.T)
            if exclude_self:
                rows = np.arange(len(cosines))
                cosines[rows, start + rows] = -1
            nearest = np.argpartition(-cosines, q - 1, axis=1)[:, :q]
            largest = np.minimum(np.take_along_axis(cosines, nearest, axis=1), 1)
            neighbors.append(nearest)
            weights.append(np.where(largest > 0, np.exp(-2 * np.arccos(largest)), 0))
        indices, data = np.concatenate(neighbors).ravel(), np.concatenate(weights).ravel()
        indptr = np.arange(0, n * q + 1, q)
        coef = narrow(csr_array((data, indices, indptr), shape=(n, n_atoms)))
        coef.eliminate_zeros()
        coef.sort_indices()
        return coef
