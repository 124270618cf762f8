"""Locally linear embedding as a scikit-learn transformer. Samples are rows."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..inputs import Array, validate_points
from .embedding import locally_linear_embedding
from .weights import locally_linear_weights


class LocallyLinearEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Coordinates on a manifold, from weights that reconstruct each point from its neighbours.

    ::

        C = argmin |X - C X|_F^2 + regularisation,  rows supported on neighbours and of sum 1
        Y = argmin |Y - C Y|_F^2  subject to  Y^T Y = I,  Y^T 1 = 0

    `locally_linear_weights` and `locally_linear_embedding` state and solve these problems. The
    coordinates of a new point are the mean of those of its neighbours, with the weights that
    reconstruct the point.

    Parameters
    ----------
    n_neighbors : int, default=5
    n_components : int, default=2
        Number of coordinates, smaller than the number of samples.
    reg : float, default=1e-3
        Regularisation of the weights relative to the trace of the local Gram matrix.
    tol : float, default=1e-6
        Relative residual of the eigenvectors at which the iteration stops.
    max_iter : int, default=100
        Largest number of steps of the iteration.
    random_state : int, RandomState or None
        Draws the start of the iteration.
    n_jobs : int, optional
        Number of threads for neighbours and weights; None is 1, unless in a
        `joblib.parallel_config`.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        Y, float32 if X is.
    reconstruction_error_ : float
        ``|Y - C Y|_F^2``.
    residual_ : ndarray of shape (n_components,)
        Residuals ``|M y - mu y|`` of the eigenvectors, the certificate of `embedding_`.
    weights_ : csr_array of shape (n_samples, n_samples)
        C, in float64.
    n_iter_ : int
    n_features_in_ : int

    References
    ----------
    Roweis and Saul (2000); EQUATIONS SE-9, SE-10 with erratum E3-c, QK-LLE.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers import LocallyLinearEmbedding
    >>> t = np.linspace(0, 1, 20)
    >>> model = LocallyLinearEmbedding(n_neighbors=4, n_components=1)
    >>> y = model.fit_transform(np.c_[np.cos(t), np.sin(t)])
    >>> y.shape, bool(abs(np.corrcoef(t, y[:, 0])[0, 1]) > 0.99)
    ((20, 1), True)
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        n_components: int = 2,
        reg: float = 1e-3,
        tol: float = 1e-6,
        max_iter: int = 100,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_components = n_components
        self.reg = reg
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: None = None) -> "LocallyLinearEmbedding":
        """Find the coordinates of the rows of X.

        Raises
        ------
        ValueError
            On NaN, infinity, sparse points, fewer than two samples, or numbers of neighbours or
            components that are not smaller than the number of samples.
        """
        points = validate_points(self, X, ensure_min_samples=2)
        self.weights_ = locally_linear_weights(
            points.astype(np.float64),
            n_neighbors=self.n_neighbors,
            reg=self.reg,
            n_jobs=self.n_jobs,
        )
        embedding = locally_linear_embedding(
            self.weights_,
            self.n_components,
            tol=self.tol,
            max_iter=self.max_iter,
            random_state=self.random_state,
        )
        self.embedding_ = embedding.coordinates.astype(points.dtype)
        self.reconstruction_error_ = float(embedding.eigenvalues.sum())
        self.residual_, self.n_iter_ = embedding.residual, embedding.n_iter
        self._points, self._n_features_out = points, self.n_components
        return self

    def fit_transform(self, X: ArrayLike, y: None = None) -> Array:
        """Find and return the coordinates of the rows of X."""
        return self.fit(X).embedding_

    def transform(self, X: ArrayLike) -> Array:
        """Coordinates of new points, by the weights that reconstruct them from training points.

        A training point is its own nearest neighbour here, and gets nearly its own coordinates.
        """
        check_is_fitted(self)
        points = validate_points(self, X, reset=False)
        weights = locally_linear_weights(
            self._points,
            n_neighbors=self.n_neighbors,
            reg=self.reg,
            queries=points,
            n_jobs=self.n_jobs,
        )
        return weights @ self.embedding_
