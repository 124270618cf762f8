"""Subspace clustering by self-expression in closed form: least squares and low rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...validation import check_positive
from ..inputs import Array
from ..self_expression import least_squares_self_expression, low_rank_self_expression
from ..self_expression.low_rank import thin_svd
from ..sparse_coding.problem import check_range
from .affinity import low_rank_affinity
from .base import Auto, Choices, SubspaceClustering

_RELATIVE_LAM = 0.01


def relative_lam(X: Array, lam: float | None) -> float:
    """Return `lam`, or 0.01 of the mean squared norm of the samples if it is None."""
    if lam is not None:
        return check_positive(lam, "lam")
    return _RELATIVE_LAM * _mean_square(X)


def _mean_square(X: Array) -> float:
    check_range(X, "X")
    return float((X.astype(np.float64) ** 2).sum() / len(X)) or 1.0


class _RegularisedClustering(SubspaceClustering):
    """Clusterers with a penalty lam; "auto" chooses it relative to the norms of the samples."""

    lam_: float | None

    _choices: ClassVar[Choices] = {"lam": (_RELATIVE_LAM, 0.1 * _RELATIVE_LAM, 10 * _RELATIVE_LAM)}

    def _choices_of(self, name: str, points: Array) -> tuple[float, ...]:
        return tuple(_mean_square(points) * lam for lam in self._choices[name])


def map_linearly(points: Array, X: Array, coef: Array) -> Array:
    """Return ``points pinv(X) coef``: the linear map that takes X to `coef`, applied to points.

    If `coef` is a spectral filter ``U diag(h(s)) U^T`` of ``X = U diag(s) R^T``, the result is
    ``points R diag(h(s) / s) U^T``.
    """
    U, s, Rt = thin_svd(X)
    return (((points @ Rt.T) / s) @ (U.T @ coef)).astype(points.dtype)


@dataclass(eq=False, repr=False, kw_only=True)
class LeastSquaresSubspaceClustering(_RegularisedClustering):
    """Subspace clustering by least squares regression (LSR), in closed form.

    ::

        min_C  |X - C X|_F^2 + lam |C|_F^2,     optionally with diag(C) = 0

    followed by an affinity of the coefficients and the spectral step. New points are represented by
    ridge regression on the training points.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    lam : float, None or "auto", default="auto"
        Penalty > 0. None is 0.01 of the mean squared norm of the samples. "auto" fits 0.01, 0.001
        and 0.1 of this mean, and takes the one whose clusters are best separated and balanced
        (`choose_settings`).
    zero_diagonal : bool, default=False
        Whether samples may not represent themselves.
    affinity, assign_labels, random_state
        As in `SparseSubspaceClustering`.

    Attributes
    ----------
    labels_ : ndarray of int of shape (n_samples,)
    coef_ : ndarray of shape (n_samples, n_samples)
    affinity_matrix_ : ndarray of shape (n_samples, n_samples)
    objective_ : ndarray of shape (n_samples,)
        Objective of each row of `coef_`; their sum is the objective above.
    gap_ : ndarray of shape (n_samples,)
        Duality gap ``|lam c - r X^T|^2 / lam`` of each row c of `coef_`, relative to ``|x_i|^2``,
        with ``r = x_i - c X``. With `zero_diagonal`, entry i of the vector is left out. It is at
        rounding level.
    lam_ : float
        The penalty that was used.
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
    Lu et al., "Robust and efficient subspace segmentation via least squares regression" (2012);
    EQUATIONS SE-LSR, SE-LSRd, QK-ridge for new points.

    Examples
    --------
    >>> from twinsolve.solvers import LeastSquaresSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> LeastSquaresSubspaceClustering(2, random_state=0).fit_predict(X)
    array([0, 0, 0, 1, 1, 1], dtype=int32)
    """

    lam: float | Auto | None = "auto"
    zero_diagonal: bool = False

    def _represent(self, X: Array) -> Array:
        lam = self.lam_ = relative_lam(X, self.lam_)
        coef = least_squares_self_expression(X, lam=lam, zero_diagonal=self.zero_diagonal)
        C, points = coef.astype(np.float64), X.astype(np.float64)
        residual, square = points - C @ points, (points**2).sum(axis=1)
        correlation = residual @ points.T
        if self.zero_diagonal:
            np.fill_diagonal(correlation, 0)
        violation = ((lam * C - correlation) ** 2).sum(axis=1) / lam
        self.objective_ = (residual**2).sum(axis=1) + lam * (C**2).sum(axis=1)
        self.gap_ = violation / np.where(square > 0, square, 1)
        return coef

    def _represent_new(self, X: Array) -> Array:
        U, s, Rt = thin_svd(self._fit_X)
        ridge = s / (s**2 + self.lam_)
        return ((X @ Rt.T * ridge) @ U.T).astype(X.dtype)


@dataclass(eq=False, repr=False, kw_only=True)
class LowRankSubspaceClustering(_RegularisedClustering):
    """Low-rank subspace clustering (LRSC; LRR with Frobenius noise), in closed form.

    ::

        min_C  |X - C X|_F^2 + lam |C|_*

    followed by an affinity of the coefficients and the spectral step. The coefficients of new
    points come from the spectral filter of the solution, not from an optimisation problem.

    Parameters
    ----------
    n_clusters : int or None, default=8
        None takes the number at the eigengap, at most 10 (`eigengap_n_clusters`).
    lam : float, None or "auto", default="auto"
        Penalty > 0; ``2 / tau`` for the tau of LRSC. None and "auto" as in
        `LeastSquaresSubspaceClustering`.
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
    objective_ : float
        The objective above at `coef_`, one number as the rows are one problem. `low_rank_gap`
        certifies it.
    lam_ : float
        The penalty that was used.
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
    Favaro, Vidal and Ravichandran, "A closed form solution to robust subspace estimation and
    clustering" (2011); EQUATIONS SE-LRR, CL-7, PP-3, QK-low rank for new points.

    Examples
    --------
    >>> from twinsolve.solvers import LowRankSubspaceClustering
    >>> X = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 2.0]]
    >>> labels = LowRankSubspaceClustering(2, random_state=0).fit_predict(X)
    >>> labels == labels[0]
    array([ True,  True,  True, False, False, False])
    """

    lam: float | Auto | None = "auto"
    affinity: Callable[[Any], Any] = low_rank_affinity

    def _represent(self, X: Array) -> Array:
        lam = self.lam_ = relative_lam(X, self.lam_)
        coef = low_rank_self_expression(X, lam=lam)
        C, points = coef.astype(np.float64), X.astype(np.float64)
        # The nuclear norm of a positive semidefinite matrix is its trace.
        self.objective_ = float(((points - C @ points) ** 2).sum() + lam * np.trace(C))
        return coef

    def _represent_new(self, X: Array) -> Array:
        return map_linearly(X, self._fit_X, self.coef_)
