"""Atoms near subspaces are found to lie there, however many the subspaces are."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import clustering_accuracy
from twinsolve.solvers.kernels.spans import cluster, find_spans, fit_basis


def _points(k, d, p, noise, n=3000):
    X, y = make_union_of_subspaces(
        n // k, n_subspaces=k, n_features=p, dimension=d, noise=noise, random_state=0
    )
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def _labels(spans, n):
    labels = np.full(n, -1)
    for label, rows in enumerate(spans):
        assert (labels[rows] < 0).all()
        labels[rows] = label
    assert (labels >= 0).all()
    return labels


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize(("k", "d", "p"), [(5, 3, 20), (20, 6, 50), (60, 4, 50), (10, 12, 80)])
def test_the_spans_of_separate_subspaces_are_these(k, d, p, noise):
    X, y = _points(k, d, p, noise)
    spans = find_spans(X)
    assert clustering_accuracy(y, _labels(spans, len(X))) > 0.99
    large = [rows for rows in spans if len(rows) >= 4 * d]
    assert np.mean([len(fit_basis(X[rows])[0]) == d for rows in large]) > 0.95


def test_outliers_are_clusters_beside_the_subspaces():
    X, _ = _points(8, 5, 50, 0.01)
    outliers = np.random.default_rng(0).standard_normal((600, 50))
    X = np.vstack([X, outliers / np.linalg.norm(outliers, axis=1, keepdims=True)])
    spans = sorted(find_spans(X), key=len)[::-1]
    assert np.mean([len(fit_basis(X[rows])[0]) == 5 for rows in spans[:8]]) >= 7 / 8
    assert all((rows < 3000).mean() > 0.99 for rows in spans[:8])


@pytest.mark.parametrize("n", [1, 2, 15, 17, 300])
def test_atoms_without_spans_and_few_atoms_are_all_placed(n):
    X = np.random.default_rng(0).standard_normal((n, 30))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    _labels(find_spans(X), n)
    _labels(find_spans(np.repeat(X[:1], n, 0)), n)


def test_a_basis_is_orthonormal_and_says_which_vectors_are_near():
    X, _ = _points(1, 4, 30, 0.05)
    for rows in (X, X[:20]):
        basis, near = fit_basis(rows)
        assert_allclose(basis @ basis.T, np.eye(4), atol=1e-12)
        outside = 1 - np.square(rows @ basis.T).sum(axis=1)
        assert outside.max() <= near < 0.05
    assert fit_basis(np.eye(40))[1] == 0, "nothing lies near few of these directions"


def test_labels_of_clusters_have_no_gaps():
    X = np.repeat(np.eye(3), 5, 0)
    assert_array_equal(np.unique(cluster(X, 6)), [0, 1, 2])
