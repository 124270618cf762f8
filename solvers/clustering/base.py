"""Base class of the subspace clusterers: represent the samples, make an affinity, cut the graph."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from ..inputs import Array, check_dense_or_sparse, refuse_sparse, validate_points
from ..sparse_points import Coordinates
from .affinity import symmetric_affinity
from .order import reordered, row_order, samples_in
from .selection import choose_settings
from .spectral import check_n_clusters, spectral_labels

Auto = Literal["auto"]
Choices = Mapping[str, tuple[float, ...]]

_DENSE = 0.2  # share of non-zeros above which sparse products are slower than dense ones


@dataclass(eq=False, repr=False)
class SubspaceClustering(ClusterMixin, BaseEstimator, ABC):
    """Represent the samples by each other, make an affinity of the coefficients, cut the graph.

    Subclasses are dataclasses, so that a constructor lists its parameters once. If the coefficients
    minimise an objective, `_represent` sets `objective_` to its value: an array with one value for
    each sample if the samples are independent problems, and a float if they are one problem.
    `_choices` holds the parameters that may be ``"auto"``, each with the values to choose among;
    the first value wins a tie. `_represent` reads the chosen values as ``gamma_`` and the like.

    Samples are represented and cut in the order of `row_order`, whatever their own order.
    `_represent` sees `_fit_X` in that order too; `_restore` puts back what belongs to samples.

    Sparse samples become `Coordinates` with the same inner products. A subclass that needs features
    says why in `_needs_features`.
    """

    _choices: ClassVar[Choices] = {}
    _needs_features: ClassVar[str] = ""

    n_clusters: int | None = 8
    _: KW_ONLY
    affinity: Callable[[Any], Any] = symmetric_affinity
    assign_labels: Literal["kmeans", "cluster_qr"] = "kmeans"
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: ArrayLike, y: None = None) -> "SubspaceClustering":
        """Represent the rows of X by each other and cluster them.

        Parameters
        ----------
        X : array-like or sparse array of shape (n_samples, n_features)
            Sparse samples take the memory of min(n_samples, n_features) dense features.
        y : None
            Is ignored.

        Raises
        ------
        ValueError
            On NaN, infinity, one sample, more clusters than samples, or a parameter outside its
            range.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            If the coefficients did not converge, or the graph does not tell the clusters apart, or
            its eigenvectors are not certified (`spectral_labels`).
        UserWarning
            If "auto" has to choose among settings that are equally bad (`choose_settings`).
        """
        samples = self._fit_coordinates(self._validate(X, ensure_min_samples=2))
        order = row_order(samples)
        points = self._prepare(samples[order])
        if self.n_clusters is not None:
            check_n_clusters(self.n_clusters, len(points))
        auto = [name for name in self._choices if self._is_auto(name)]
        if auto:
            grid = {name: self._choices_of(name, points) for name in auto}
            parameters = self.get_params(deep=False)
            for name, fitted in vars(choose_settings(self, samples, grid).estimator).items():
                if name not in (*parameters, "n_features_in_", "_coordinates"):
                    setattr(self, name, fitted)
            return self
        for name in self._choices:
            setattr(self, f"{name}_", getattr(self, name))
        self._fit_X = points
        self.coef_ = self._represent(points)
        self._restore(np.argsort(order))
        with samples_in(order):
            self.affinity_matrix_ = self.affinity(self.coef_.copy())
        weights = check_dense_or_sparse(self.affinity_matrix_, "affinity")
        if weights.shape != (len(points), len(points)):
            raise ValueError(
                f"affinity: must return shape {(len(points), len(points))}, got {weights.shape}"
            )
        labels = spectral_labels(
            reordered(weights, order),
            self.n_clusters,
            assign_labels=self.assign_labels,
            random_state=self.random_state,
        )
        self.labels_ = labels[np.argsort(order)]
        return self

    def _validate(self, X: ArrayLike, **options: Any) -> Any:
        """Return points as an array, or as a csr_array if they are sparse."""
        if self._needs_features:
            refuse_sparse(X, self._needs_features)
        points = validate_points(self, X, order="C", accept_sparse="csr", **options)
        return check_dense_or_sparse(points, "X")

    def _fit_coordinates(self, samples: Any) -> Array:
        """Return the samples, or their coordinates if they are sparse."""
        self._coordinates = Coordinates()
        if issparse(samples):
            self._coordinates, samples = Coordinates.build(samples)
        dense: Array = samples
        return dense

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self._needs_features
        return tags

    def _restore(self, places: Array) -> None:
        """Reorder what `_represent` stored about each sample to the `places` of the samples."""
        self._fit_X = self._fit_X[places]
        self.coef_ = reordered(self.coef_, places)
        for name in ("objective_", "gap_"):
            value = np.asarray(getattr(self, name, 0.0))
            if value.ndim == 1:
                setattr(self, name, value[places])

    def _is_auto(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, str) and value == "auto"

    def _choices_of(self, name: str, points: Array) -> tuple[float, ...]:
        """Return the values of a parameter among which "auto" chooses for these points."""
        return self._choices[name]

    def predict(self, X: ArrayLike) -> Array:
        """Labels of new points, each represented by the training points.

        A point x joins the cluster with the smallest residual ``|x - sum_{j in cluster} c_j x_j|``,
        where c_j are the `coefficients` of x and x_j the training points. If coefficients sum to
        one, the mean of the training points is subtracted from all points first.

        Raises
        ------
        ValueError
            On NaN, infinity or a wrong number of features.
        """
        points = self._new_points(X)
        return self._assign(points, self._represent_new(points), self.labels_)

    def coefficients(self, X: ArrayLike) -> Array | csr_array:
        """Coefficients by which the training points represent new points, as `predict` uses them.

        Parameters
        ----------
        X : array-like of shape (n_points, n_features)

        Returns
        -------
        ndarray or csr_array of shape (n_points, n_samples)
            Every training point may have a coefficient, even one that equals the new point.

        Raises
        ------
        ValueError
            On NaN, infinity or a wrong number of features.
        """
        return self._represent_new(self._new_points(X))

    def assign(self, X: ArrayLike, coef: Array | csr_array, labels: Array) -> Array:
        """Labels that `predict` would give if the training points had the labels `labels`.

        Parameters
        ----------
        X : array-like of shape (n_points, n_features)
        coef : ndarray or csr_array of shape (n_points, n_samples)
            The `coefficients` of X, which do not depend on labels.
        labels : ndarray of int of shape (n_samples,)
            Labels of the training points.

        Returns
        -------
        ndarray of int of shape (n_points,)

        Raises
        ------
        ValueError
            On NaN, infinity or a wrong number of features.
        """
        return self._assign(self._new_points(X), coef, labels)

    def _new_points(self, X: ArrayLike) -> Array:
        """Return new points as a checked array, prepared like the training points."""
        check_is_fitted(self)
        points = self._validate(X, reset=False)
        if self._coordinates.basis is not None:
            points = csr_array(points)
        return self._prepare(self._coordinates(points) if issparse(points) else points)

    def _assign(self, points: Array, coef: Array | csr_array, labels: Array) -> Array:
        """Return, for each point, the cluster whose samples' coefficients explain it best."""
        if isinstance(coef, csr_array) and coef.nnz > _DENSE * coef.shape[0] * coef.shape[1]:
            coef = coef.toarray()
        clusters, origin = np.unique(labels), self._origin()
        residuals = []
        for cluster in clusters:
            members = np.flatnonzero(labels == cluster)
            explained = coef[:, members] @ (self._fit_X[members] - origin)
            residuals.append(np.linalg.norm(points - origin - explained, axis=1))
        return clusters[np.argmin(residuals, axis=0)]

    def _origin(self) -> Array | float:
        """Return what to subtract from points: the mean if coefficients sum to one, else 0."""
        return 0.0

    def _prepare(self, X: Array) -> Array:
        """Return the points to represent; a subclass may transform the samples."""
        return X

    @abstractmethod
    def _represent(self, X: Array) -> Array | csr_array:
        """Coefficients of the training points, shape (n_samples, n_samples)."""

    @abstractmethod
    def _represent_new(self, X: Array) -> Array | csr_array:
        """Coefficients of new points by the training points, shape (n_points, n_samples)."""


def mean_point(X: Array) -> Array:
    """Mean of the samples, in float64."""
    mean: Array = X.mean(axis=0, dtype=np.float64)
    return mean
