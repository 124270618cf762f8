"""Subspace clustering by self-expression in closed form: least squares and low rank."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..self_expression import least_squares_self_expression, low_rank_self_expression
from ..solution import Array, check_positive
from .affinity import low_rank_affinity, symmetric_affinity
from .base import SubspaceClustering

_RELATIVE_LAM = 0.01


class _ClosedFormClustering(SubspaceClustering):
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
