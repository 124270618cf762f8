"""Numbers that say how good clusters are and how far two coefficient matrices lie apart."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from sklearn.metrics.cluster import contingency_matrix

from .solution import check_matrix

_SUPPORT = 1e-8


def clustering_accuracy(labels_true: ArrayLike, labels_pred: ArrayLike) -> float:
    """Share of samples that agree under the best one-to-one matching of clusters to classes.

    Parameters
    ----------
    labels_true, labels_pred : array-like of shape (n_samples,)

    Returns
    -------
    float
        In [0, 1]. Normalised mutual information and the adjusted Rand index are scikit-learn's.

    Raises
    ------
    ValueError
        If the two differ in length or are empty.

    References
    ----------
    EQUATIONS ME-1.

    Examples
    --------
    >>> from twinsolve.solvers import clustering_accuracy
    >>> clustering_accuracy([0, 0, 1, 1], [5, 5, 3, 5])
    0.75
    """
    true, predicted = np.asarray(labels_true), np.asarray(labels_pred)
    if true.shape != predicted.shape or true.ndim != 1 or len(true) == 0:
        raise ValueError(
            f"labels: need two equally long lists, got shapes {true.shape} and {predicted.shape}"
        )
    table = contingency_matrix(true, predicted)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(true))


def coefficient_distance(
    coef: ArrayLike | csr_array, reference: ArrayLike | csr_array
) -> dict[str, float]:
    """How far coefficients C lie from reference coefficients C*.

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
    >>> from twinsolve.solvers import coefficient_distance
    >>> coefficient_distance([[1.0, 1.0]], [[1.0, 0.0]])["support_precision"]
    0.5
    """
    C, R = _dense(coef, "coef"), _dense(reference, "reference")
    if C.shape != R.shape:
        raise ValueError(f"coef: has shape {C.shape}, but the reference has {R.shape}")
    norm, reference_norm = np.linalg.norm(C), np.linalg.norm(R)
    found, wanted = _support(C), _support(R)
    hits = (found & wanted).sum()
    precision, recall = _ratio(hits, found.sum()), _ratio(hits, wanted.sum())
    return {
        "distance": _ratio(np.linalg.norm(C - R), reference_norm),
        "cosine": _ratio((C * R).sum(), norm * reference_norm),
        "support_precision": precision,
        "support_recall": recall,
        "support_f1": _ratio(2 * precision * recall, precision + recall),
    }


def relative_residual(
    coef: ArrayLike | csr_array, X: ArrayLike, targets: ArrayLike | None = None
) -> float:
    """Share of the samples that the coefficients leave unexplained: ``|T - C X|_F / |T|_F``.

    Parameters
    ----------
    coef : array-like or csr_array of shape (n_targets, n_samples)
    X : array-like of shape (n_samples, n_features)
    targets : array-like of shape (n_targets, n_features), optional
        The samples T to represent; None is X itself.

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
    >>> from twinsolve.solvers import relative_residual
    >>> relative_residual([[0.0, 1.0], [1.0, 0.0]], [[2.0], [2.0]])
    0.0
    """
    X = check_matrix(X, "X").astype(np.float64)
    T = X if targets is None else check_matrix(targets, "targets", n_features=X.shape[1])
    C = _dense(coef, "coef")
    if C.shape != (len(T), len(X)):
        raise ValueError(f"coef: must have shape {(len(T), len(X))}, got {C.shape}")
    return _ratio(np.linalg.norm(T - C @ X), np.linalg.norm(T))


def _dense(coef: ArrayLike | csr_array, name: str) -> np.ndarray:
    dense = coef.toarray() if hasattr(coef, "toarray") else coef
    return check_matrix(dense, name).astype(np.float64)


def _support(C: np.ndarray) -> np.ndarray:
    size = np.abs(C)
    return size > _SUPPORT * size.max(axis=1, keepdims=True)


def _ratio(numerator: Any, denominator: Any) -> float:
    """Quotient with 0 / 0 = 0 and x / 0 = infinity."""
    if denominator == 0:
        return 0.0 if numerator == 0 else float("inf")
    return float(numerator / denominator)
