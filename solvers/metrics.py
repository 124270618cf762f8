"""Measures of the quality of clusters and of the difference of two coefficient matrices."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from sklearn.metrics.cluster import contingency_matrix
from sklearn.utils import check_array, column_or_1d

from .clustering.eigenvectors import components, leading_eigenvectors
from .clustering.spectral import check_affinity
from .inputs import Array, check_dense_or_sparse, check_matrix

__all__ = [
    "clustering_accuracy",
    "coefficient_distance",
    "connectivity",
    "relative_residual",
    "subspace_preserving_error",
]

_SUPPORT = 1e-8


def clustering_accuracy(labels_true: ArrayLike, labels_pred: ArrayLike) -> float:
    """Share of samples that agree under the best one-to-one matching of clusters to classes.

    Parameters
    ----------
    labels_true, labels_pred : array-like of shape (n_samples,)

    Returns
    -------
    float
        In [0, 1]. For normalised mutual information and the adjusted Rand index, use scikit-learn.

    Raises
    ------
    ValueError
        If the two differ in length, are empty, or hold NaN.

    References
    ----------
    EQUATIONS ME-1.

    Examples
    --------
    >>> from twinsolve.solvers import clustering_accuracy
    >>> clustering_accuracy([0, 0, 1, 1], [5, 5, 3, 5])
    0.75
    """
    true = _check_labels(labels_true, "labels_true")
    predicted = _check_labels(labels_pred, "labels_pred")
    if len(true) != len(predicted):
        raise ValueError(
            f"labels_pred: must be as many as labels_true, got {len(predicted)} for {len(true)}"
        )
    table = contingency_matrix(true, predicted)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(true))


def coefficient_distance(
    coef: ArrayLike | csr_array, reference: ArrayLike | csr_array
) -> dict[str, float]:
    """Differences between coefficients C and reference coefficients C*.

    Parameters
    ----------
    coef, reference : array-like or csr_array of shape (n_rows, n_atoms)

    Returns
    -------
    dict
        ``distance``: ``|C - C*|_F / |C*|_F``; ``cosine``: ``<C, C*> / (|C|_F |C*|_F)``;
        ``support_precision``, ``support_recall`` and ``support_f1`` of the support of C against
        that of C*, where entry (i, j) is in the support if ``|c_ij| > 1e-8 max_l |c_il|``.

    Raises
    ------
    ValueError
        If the shapes differ or an entry is not finite.

    References
    ----------
    EQUATIONS ME-4.

    Examples
    --------
    >>> from twinsolve.solvers.metrics import coefficient_distance
    >>> coefficient_distance([[1.0, 1.0]], [[1.0, 0.0]])["support_precision"]
    0.5
    """
    C, R = _check_dense(coef, "coef"), _check_dense(reference, "reference")
    if C.shape != R.shape:
        raise ValueError(f"coef: has shape {C.shape}, but reference has shape {R.shape}")
    norm, reference_norm = np.linalg.norm(C), np.linalg.norm(R)
    support, reference_support = _find_support(C), _find_support(R)
    hits = (support & reference_support).sum()
    precision, recall = _ratio(hits, support.sum()), _ratio(hits, reference_support.sum())
    return {
        "distance": _ratio(np.linalg.norm(C - R), reference_norm),
        "cosine": float(np.clip(_ratio((C * R).sum(), norm * reference_norm), -1, 1)),
        "support_precision": precision,
        "support_recall": recall,
        "support_f1": _ratio(2 * precision * recall, precision + recall),
    }


def subspace_preserving_error(coef: ArrayLike | csr_array, labels_true: ArrayLike) -> float:
    """Share of the l1 norm of a row that falls on samples of other classes, averaged over rows.

    It is ``mean_i sum_{j: y_j != y_i} |c_ij| / |c_i|_1``, with y the `labels_true`; zero rows count
    as 0.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_samples, n_samples)
    labels_true : array-like of shape (n_samples,)

    Returns
    -------
    float
        In [0, 1]; 0 if every row uses samples of its own class only.

    Raises
    ------
    ValueError
        If the shapes do not fit or an entry is not finite.

    References
    ----------
    You, Robinson and Vidal, "Scalable Sparse Subspace Clustering by Orthogonal Matching Pursuit"
    (2016); EQUATIONS ME-2.

    Examples
    --------
    >>> from twinsolve.solvers.metrics import subspace_preserving_error
    >>> subspace_preserving_error([[0.0, 3.0, -1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0, 0, 1])
    0.08333333333333333
    """
    size = abs(csr_array(check_dense_or_sparse(coef, "coef"))).tocoo()
    labels = _labels_of(labels_true, size.shape)
    row, column = size.coords
    wrong = size.data * (labels[row] != labels[column])
    mass, lost = (np.bincount(row, weights, len(labels)) for weights in (size.data, wrong))
    return float((lost / np.where(mass > 0, mass, 1)).mean())


def connectivity(affinity: ArrayLike | csr_array, labels_true: ArrayLike) -> float:
    """Connectivity of the least connected class in an affinity graph.

    For each class, the affinity A within the class has the normalised Laplacian
    ``I - D^(-1/2) A D^(-1/2)``. The result is its second-smallest eigenvalue, minimised over the
    classes; it is 0 iff some class is not connected, up to rounding. Classes of one sample are
    ignored.

    Parameters
    ----------
    affinity : array-like or csr_array of shape (n_samples, n_samples)
        Symmetric and nonnegative.
    labels_true : array-like of shape (n_samples,)

    Returns
    -------
    float
        In [0, 2].

    Raises
    ------
    ValueError
        If `affinity` is not square, symmetric, finite and nonnegative, the shapes do not fit, or no
        class has two samples.

    References
    ----------
    EQUATIONS ME-3.

    Examples
    --------
    >>> from twinsolve.solvers.metrics import connectivity
    >>> round(connectivity([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], [0, 0, 0]), 6)
    1.5
    """
    A = check_affinity(affinity)
    labels = _labels_of(labels_true, A.shape)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    values = [_second_eigenvalue(A[rows][:, rows]) for rows in classes if len(rows) > 1]
    if not values:
        raise ValueError("labels_true: must have a class with at least two samples, got none")
    return min(values)


def relative_residual(
    coef: ArrayLike | csr_array, X: ArrayLike, targets: ArrayLike | None = None
) -> float:
    """Relative norm of the residual of a representation: ``|T - C X|_F / |T|_F``.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_targets, n_samples)
    X : array-like of shape (n_samples, n_features)
    targets : array-like of shape (n_targets, n_features), optional
        The represented samples T; None is X itself.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If shapes do not fit or an entry is not finite.

    References
    ----------
    EQUATIONS SE-12.

    Examples
    --------
    >>> from twinsolve.solvers.metrics import relative_residual
    >>> relative_residual([[0.0, 1.0], [1.0, 0.0]], [[2.0], [2.0]])
    0.0
    """
    X = check_matrix(X, "X").astype(np.float64)
    T = X if targets is None else check_matrix(targets, "targets", n_features=X.shape[1])
    C = _check_dense(coef, "coef")
    if C.shape != (len(T), len(X)):
        raise ValueError(f"coef: must have shape {(len(T), len(X))}, got {C.shape}")
    return _ratio(np.linalg.norm(T - C @ X), np.linalg.norm(T))


def _check_labels(labels: ArrayLike, name: str) -> Array:
    """Return labels as a vector without NaN."""
    try:
        return column_or_1d(check_array(labels, ensure_2d=False, dtype=None, input_name=name))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _labels_of(labels: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return one label for each row and column of a square matrix of this shape."""
    values = _check_labels(labels, "labels_true")
    if shape != (len(values), len(values)):
        raise ValueError(
            f"labels_true: must hold one label for each sample, got shape {values.shape} for a "
            f"matrix of shape {shape}"
        )
    return values


def _second_eigenvalue(A: Array | csr_array) -> float:
    """Return the second-smallest eigenvalue of the normalised Laplacian."""
    if components(A).max() > 0:
        return 0.0
    return float(np.clip(1 - leading_eigenvectors(A, 2)[0][1], 0, 2))


def _check_dense(coef: ArrayLike | csr_array, name: str) -> np.ndarray:
    dense = coef.toarray() if hasattr(coef, "toarray") else coef
    return check_matrix(dense, name).astype(np.float64)


def _find_support(C: np.ndarray) -> np.ndarray:
    """Return a mask of the entries that are not negligible beside the largest of their row."""
    size = np.abs(C)
    return size > _SUPPORT * size.max(axis=1, keepdims=True)


def _ratio(numerator: Any, denominator: Any) -> float:
    """Return the quotient, with 0 / 0 = 0 and x / 0 = infinity."""
    if denominator == 0:
        return 0.0 if numerator == 0 else float("inf")
    return float(numerator / denominator)
