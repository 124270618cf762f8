"""Motion segmentation: clean motions are found, and the rule that chooses an affinity by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

from twinsolve.solvers import MotionSegmentation, sparse_self_expression
from twinsolve.solvers.clustering import (
    keep_l1_mass,
    low_rank_affinity,
    scale_by_row_maximum,
    spectral_labels,
    symmetric_affinity,
)
from twinsolve.solvers.clustering.motion import _make_affinities
from twinsolve.solvers.clustering.order import row_order
from twinsolve.solvers.sparse_coding import lam_max


def motions(dimensions=(2, 3), n_points=30, n_features=24, noise=1e-3, seed=0):
    """Points of affine subspaces, and their labels."""
    rng = np.random.default_rng(seed)
    X = [
        rng.standard_normal((n_points, d)) @ rng.standard_normal((d, n_features))
        + 5 * rng.standard_normal(n_features)
        for d in dimensions
    ]
    y = np.repeat(np.arange(len(dimensions)), n_points)
    X = np.vstack(X) + noise * rng.standard_normal((len(y), n_features))
    order = rng.permutation(len(y))
    return X[order], y[order]


@pytest.mark.parametrize(("dimensions", "noise"), [((2, 2), 0.0), ((2, 3, 3), 1e-2)])
def test_flat_and_solid_motions_are_found_and_new_points_join_them(dimensions, noise):
    X, y = motions(dimensions, noise=noise)
    train = np.arange(len(X)) % 3 > 0
    model = MotionSegmentation(len(dimensions), random_state=0).fit(X[train])
    assert adjusted_rand_score(y[train], model.labels_) == 1
    assert adjusted_rand_score(y[~train], model.predict(X[~train])) == 1
    assert_array_equal(model.predict(X[train]), model.labels_)


def test_affinities_are_those_of_the_settings():
    X, _ = motions((2, 3), noise=0.1)
    found = dict(_make_affinities(X, 2))
    U = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[0]
    ones = np.ones((len(X), 1)) / np.sqrt(len(X))
    for rank in (3, 5, 8):
        V = np.hstack([ones, U[:, : rank - 1]])
        assert_allclose(found[f"rank {rank}"], low_rank_affinity(V @ V.T), atol=1e-9)
    centred = X - X.mean(axis=0)
    scale = lam_max(centred, centred, zero_diagonal=True)
    for gamma in (50, 3000):
        coef = sparse_self_expression(X, lam=scale / gamma, affine=True, tol=1e-4).coef
        expected = symmetric_affinity(scale_by_row_maximum(keep_l1_mass(coef, 0.7)))
        assert_allclose(found[f"gamma {gamma}"].toarray(), expected.toarray(), atol=1e-12)


def test_new_points_join_a_subspace_of_dimension_three_or_what_the_cluster_spans():
    for noise, dimensions in ((0.0, [2, 3]), (1e-2, [3, 3])):
        X, _ = motions((2, 3), noise=noise)
        model = MotionSegmentation(2, random_state=0).fit(X)
        assert sorted(len(basis) for _, basis in model._subspaces) == dimensions


@pytest.mark.parametrize("assign_labels", ["kmeans", "cluster_qr"])
def test_the_kept_affinity_has_the_tightest_clusters(assign_labels):
    X, _ = motions((2, 3), noise=0.3)
    X = X[row_order(X)]
    model = MotionSegmentation(2, assign_labels=assign_labels, random_state=0).fit(X)
    labels = spectral_labels(model.affinity_matrix_, 2, assign_labels=assign_labels, random_state=0)
    assert_array_equal(model.labels_, labels)
    assert set(model.scores_) == {f"rank {r}" for r in range(3, 9)} | {
        f"gamma {gamma}" for gamma in (50, 400, 3000)
    }
    assert model.chosen_ == min(model.scores_, key=model.scores_.get)
    totals = [0.0, 0.0]
    for c in (0, 1):
        points = X[model.labels_ == c] - X[model.labels_ == c].mean(axis=0)
        Rt = np.linalg.svd(points)[2]
        for j, d in enumerate((2, 3)):
            totals[j] += np.linalg.norm(points @ Rt[d:].T, axis=1).sum()
    assert_allclose(model.scores_[model.chosen_], np.log(totals).sum(), rtol=1e-9)
