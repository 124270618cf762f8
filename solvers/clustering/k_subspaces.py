"""k-subspaces: k-means with subspaces in place of centres. Samples are rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ...validation import check_integer
from ..inputs import Array, validate_points
from ..symmetric import leading_eigh
from .order import row_order
from .spectral import check_n_clusters

_NO_EIGENGAP = "without an affinity there is no eigengap to tell it"

_Run = tuple[float, Array, "_Flats", int]  # inertia, labels, flats, and number of alternations


class KSubspaces(ClusterMixin, BaseEstimator):
    """Clustering by alternating nearest-subspace labels and principal subspaces of clusters.

    ::

        min over labels l and orthonormal B_1, ..., B_k (dimension x n_features) of
            sum_i |x_i - x_i B_{l_i}^T B_{l_i}|^2

    Subspaces pass through the origin; affine ones (k-flats) through points c_1, ..., c_k that are
    minimised over too, in ``|(x_i - c_{l_i}) (I - B_{l_i}^T B_{l_i})|^2``. Each restart begins with
    random subspaces, and the best restart is returned: the first of those that find the same
    clusters, as rounding alone tells them apart. The subspace of an empty cluster moves to the
    point with the largest distance from its own subspace. So a cluster is empty only if all points
    lie on the subspaces of the others. The objective never increases within a restart, but may end
    in a local minimum.

    Parameters
    ----------
    n_clusters : int, default=8
        Not None: without an affinity there is no eigengap that tells the number, and the objective
        falls with every further subspace.
    dimension : int, default=1
        Dimension of every subspace, at most `n_features`.
    affine : bool, default=False
        Whether subspaces may lie off the origin.
    n_init : int, default=20
        Number of restarts.
    max_iter : int, default=100
        Largest number of alternations in a restart.
    random_state : int, RandomState or None

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    bases_ : ndarray of shape (n_clusters, dimension, n_features)
        Orthonormal rows.
    offsets_ : ndarray of shape (n_clusters, n_features)
        A point on each subspace: the mean of its cluster if `affine`, else 0.
    inertia_ : float
        The objective.
    n_iter_ : int
        Number of alternations of the best restart.
    n_features_in_ : int

    References
    ----------
    Bradley and Mangasarian, "k-Plane Clustering" (2000); Tseng, "Nearest q-flat to m points"
    (2000); EQUATIONS CL-10.

    Examples
    --------
    >>> from twinsolve.solvers import KSubspaces
    >>> X = [[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -3.0]]
    >>> KSubspaces(2, random_state=0).fit(X).inertia_
    0.0
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        dimension: int = 1,
        affine: bool = False,
        n_init: int = 20,
        max_iter: int = 100,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.dimension = dimension
        self.affine = affine
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: None = None) -> "KSubspaces":
        """Find the subspaces and the labels.

        Raises
        ------
        ValueError
            On NaN, infinity, one sample, more clusters than samples or None, or a `dimension`
            above `n_features`.
        """
        points = validate_points(self, X, ensure_min_samples=2)
        order = row_order(points)
        unit = _unit(points)
        points = points[order] / unit
        check_n_clusters(self.n_clusters, len(points), why_not_none=_NO_EIGENGAP)
        check_integer(self.dimension, "dimension", minimum=1, maximum=points.shape[1])
        check_integer(self.n_init, "n_init", minimum=1)
        check_integer(self.max_iter, "max_iter", minimum=1)
        rng = check_random_state(self.random_state)
        centre = points.mean(axis=0) if self.affine else np.zeros_like(points[0])
        points -= centre
        runs = [self._alternate(points, rng) for _ in range(self.n_init)]
        rounding = float(_rounding(points).sum())
        inertia, labels, flats, self.n_iter_ = _first_of_the_best(runs, rounding)
        self.inertia_ = inertia * float(unit) * float(unit)
        self.bases_, self.offsets_ = flats.bases, (flats.offsets + centre) * unit
        self.labels_ = labels[np.argsort(order)]
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Index of the nearest subspace of each row of X."""
        check_is_fitted(self)
        points = validate_points(self, X, reset=False)
        unit = _unit(points, self.offsets_)
        points, offsets = points / unit, self.offsets_ / unit
        centre = offsets.mean(axis=0)
        flats = _Flats(self.bases_, offsets - centre, self.affine)
        return flats.distances(points - centre).argmin(axis=1)

    def _alternate(self, X: Array, rng: np.random.RandomState) -> _Run:
        """Alternate labels and subspaces from random ones; return inertia, both, and n_iter."""
        shape = (self.n_clusters, X.shape[1], self.dimension)
        bases = np.linalg.qr(rng.standard_normal(shape))[0].transpose(0, 2, 1).astype(X.dtype)
        offsets = np.zeros_like(bases[:, 0])
        if self.affine:
            offsets = X[rng.choice(len(X), self.n_clusters, replace=False)]
        flats = _Flats(bases, offsets, self.affine)
        labels = _fill_clusters(X, flats)
        previous = np.full_like(labels, -1)
        n_iter = 0
        while n_iter < self.max_iter and not np.array_equal(labels, previous):
            for cluster in range(self.n_clusters):
                flats.fit(cluster, X[labels == cluster])
            previous, labels = labels, _fill_clusters(X, flats)
            n_iter += 1
        inertia = sum(flats.residual(c, X[labels == c]) for c in range(self.n_clusters))
        return inertia, labels, flats, n_iter


@dataclass
class _Flats:
    """Subspaces with orthonormal `bases` through `offsets`, which stay 0 unless `affine`."""

    bases: Array
    offsets: Array
    affine: bool

    def fit(self, cluster: int, points: Array) -> None:
        """Move the subspace of a cluster to these points, in place; without points it stays."""
        if self.affine and len(points):
            self.offsets[cluster] = points.mean(axis=0)
        self.bases[cluster] = _principal(points - self.offsets[cluster], self.bases[cluster])

    def distances(self, X: Array, clusters: Any = slice(None)) -> Array:
        """Squared distances ``|x - c|^2 - |B (x - c)|^2`` of all points from subspaces.

        They are exact up to rounding relative to ``|x|^2`` and ``|c|^2``.
        """
        bases, offsets = self.bases[clusters], self.offsets[clusters]
        # (n_samples, n_clusters, dim)
        coordinates = (X @ bases.reshape(-1, X.shape[1]).T).reshape(len(X), *bases.shape[:2])
        squares = (X * X).sum(axis=1)[:, None]
        if self.affine:
            coordinates = coordinates - np.einsum("kdj,kj->kd", bases, offsets)
            squares = squares - 2 * X @ offsets.T + (offsets * offsets).sum(axis=1)
        return np.maximum(squares - (coordinates * coordinates).sum(axis=2), 0)

    def residual(self, cluster: int, points: Array) -> float:
        """Sum of the squared distances of points from one subspace."""
        shifted, basis = points - self.offsets[cluster], self.bases[cluster]
        residual = shifted - (shifted @ basis.T) @ basis
        return float((residual * residual).sum())


def _unit(*arrays: Array) -> Any:
    """Return a power of two near the largest entry, so that squares neither vanish nor overflow."""
    largest = max(max(float(x.max()), -float(x.min())) for x in arrays)
    exponent = int(np.frexp(largest)[1]) - 1  # one more may overflow
    kind = arrays[0].dtype
    return np.ldexp(kind.type(1), max(exponent, np.finfo(kind).minexp)) if largest else kind.type(1)


def _rounding(X: Array) -> Array:
    """Return the error by rounding of the squared distance of each point from a subspace."""
    return X.shape[1] * np.finfo(X.dtype).eps * (X * X).sum(axis=1)


def _first_of_the_best(runs: list[_Run], rounding: float) -> _Run:
    """Return the first run whose clusters and, up to rounding, inertia are those of the best."""
    least, labels, *_ = min(runs, key=lambda run: run[0])
    clusters = _named_in_order(labels)
    return next(
        run
        for run in runs
        if run[0] <= least + rounding and np.array_equal(_named_in_order(run[1]), clusters)
    )


def _named_in_order(labels: Array) -> Array:
    """Return the labels with the clusters named by their first points."""
    _, first, clusters = np.unique(labels, return_index=True, return_inverse=True)
    return first[clusters]


def _fill_clusters(X: Array, flats: _Flats) -> Array:
    """Move the subspaces of empty clusters to the worst fitted points; return the labels."""
    distances = flats.distances(X)
    rounding = _rounding(X)
    for _ in flats.bases:
        labels = distances.argmin(axis=1)
        empty = np.flatnonzero(np.bincount(labels, minlength=len(flats.bases)) == 0)
        nearest_distance = distances.min(axis=1)
        worst = nearest_distance.argmax()
        if not len(empty) or nearest_distance[worst] <= rounding[worst]:
            break
        cluster = empty[0]
        flats.fit(cluster, X[[worst]])
        distances[:, [cluster]] = flats.distances(X, [cluster])
    return distances.argmin(axis=1)


def _principal(points: Array, basis: Array) -> Array:
    """Orthonormal basis of the principal subspace of the points.

    It minimises the objective up to rounding relative to ``|points|^2``. It comes from the smaller
    Gram matrix; directions of `basis` replace those whose eigenvalues are zero up to rounding.
    """
    wide = points.shape[0] < points.shape[1]
    gram = points @ points.T if wide else points.T @ points
    if not len(gram):
        return basis
    values, vectors = leading_eigh(gram, min(len(gram), len(basis)))
    known = values > len(gram) * np.finfo(gram.dtype).eps * values[0]
    leading = vectors.T[known]
    if wide:
        leading = leading @ points / np.sqrt(values[known, None])
    completed = np.linalg.qr(np.vstack([leading, basis]).T)[0].T
    return completed[: len(basis)]
