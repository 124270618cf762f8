"""Permuted rows get permuted labels, from every clusterer and every choice."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.datasets import load_digits, load_iris
from sklearn.metrics import adjusted_rand_score

from twinsolve import solvers
from twinsolve.datasets import fetch_coil20, make_union_of_subspaces
from twinsolve.solvers import choose_clusterer, choose_settings
from twinsolve.solvers.clustering import (
    keep_largest,
    low_rank_affinity,
    svd_power_affinity,
    symmetric_affinity,
)
from twinsolve.solvers.clustering.order import reordered, row_order
from twinsolve.solvers.clustering.score import diagonal_share
from twinsolve.unrolled.clustering import AttentionSubspaceClustering, UnrolledSubspaceClustering

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:no candidate has a score above 0"),
]
FEW = {"LowRankSparseSubspaceClustering": {"tol": 1e-2}, "KSubspaces": {"n_init": 3}}
CLUSTERERS = sorted(
    name for name in solvers.__all__ if hasattr(getattr(solvers, name), "fit_predict")
)


def points(kind):
    """Points of which some are hard to cluster: no clusters, ties, few points of many features."""
    rng = np.random.default_rng(0)
    if kind == "noise":
        return rng.standard_normal((30, 90)), 4
    if kind == "steps":  # whole numbers, with many equal distances and correlations
        return np.unique(rng.integers(0, 4, (50, 3)), axis=0)[1:].astype(float), 3
    if kind == "circle":  # all points alike
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        return np.column_stack([np.cos(angles), np.sin(angles)]), 3
    if kind == "orthonormal":  # all alike, and nothing to represent them by
        return np.linalg.qr(rng.standard_normal((30, 30)))[0], 3
    return make_union_of_subspaces(
        12, n_subspaces=3, n_features=40, dimension=3, noise=0.3, random_state=0
    )[0], 3


def assert_follows(model, X, per_sample=("labels_",)):
    """The fit of permuted rows is the permuted fit."""
    still = model().fit(X)
    order = np.random.default_rng(1).permutation(len(X))
    moved = model().fit(X[order])
    for name in per_sample:
        if np.ndim(value := getattr(still, name, None)) == 1:
            assert_array_equal(getattr(moved, name), value[order])
    for name in ("coef_", "affinity_matrix_"):
        if hasattr(still, name):
            found, expected = (
                csr_array(C).toarray() for C in (getattr(moved, name), getattr(still, name))
            )
            assert_allclose(found, expected[np.ix_(order, order)], atol=1e-9)
    for name in getattr(still, "_choices", ()):
        assert getattr(moved, f"{name}_") == getattr(still, f"{name}_")
    return still, moved


@pytest.mark.parametrize("kind", ["noise", "steps", "circle", "orthonormal", "subspaces"])
@pytest.mark.parametrize("name", CLUSTERERS)
def test_labels_follow_the_rows(name, kind):
    X, k = points(kind)
    make = lambda: getattr(solvers, name)(k, random_state=0, **FEW.get(name, {}))  # noqa: E731
    still, moved = assert_follows(make, X, ("labels_", "objective_", "gap_"))
    new = X[:7] + 0.01
    assert_array_equal(moved.predict(new), still.predict(new))


@pytest.mark.parametrize("make", [AttentionSubspaceClustering, UnrolledSubspaceClustering])
def test_labels_of_learned_clusterers_follow_the_rows(make):
    few = {"max_iter": 5, "n_layers": 3} if make is UnrolledSubspaceClustering else {}
    X, k = points("noise")
    assert_follows(lambda: make(k, random_state=0, **few), X)


def cosines_of_two_powers(coef):
    return low_rank_affinity(coef, power=2.0) + low_rank_affinity(coef=coef)


def largest_signs(coef):
    return symmetric_affinity(keep_largest(np.sign(coef), 3))


@pytest.mark.parametrize(
    "affinity",
    [
        cosines_of_two_powers,
        largest_signs,
        partial(svd_power_affinity, n_clusters=3, dimension=2, power=2.0),
    ],
)
@pytest.mark.parametrize("kind", ["circle", "steps"])
def test_labels_by_affinities_of_users_follow_the_rows(affinity, kind):
    """Also where an own affinity puts steps together that break ties, or round, by the order."""
    X, k = points(kind)
    ways = {
        solvers.LowRankRepresentationClustering: {},
        solvers.LeastSquaresSubspaceClustering: {"lam": 0.5},
    }
    for kind_of_model, settings in ways.items():
        make = partial(kind_of_model, k, affinity=affinity, random_state=0, **settings)
        assert_follows(make, X)


def test_an_own_affinity_sees_the_samples_in_their_own_order():
    X, k = points("noise")
    seen = []
    model = solvers.OMPSubspaceClustering(k, n_nonzero=3, random_state=0)
    model.affinity = lambda coef: seen.append(coef) or symmetric_affinity(coef)
    model.fit(X)
    assert_array_equal(seen[0].toarray(), model.coef_.toarray())


def candidates(k):
    kinds = {
        solvers.SparseSubspaceClustering: {"gamma": (5.0, 50.0)},
        solvers.LowRankSubspaceClustering: {"lam": (0.01, 1.0)},
        solvers.OMPSubspaceClustering: {"n_nonzero": (3, 5)},
    }
    return [
        kind(k, random_state=0, **{name: value})
        for kind, grid in kinds.items()
        for name, values in grid.items()
        for value in values
    ]


def test_choices_follow_the_rows():
    sets = [points(kind) for kind in ("noise", "steps", "circle", "orthonormal", "subspaces")]
    sets += [(load_iris().data, 3), (load_digits().data[:120], 10)]
    for X, k in sets:
        order = np.random.default_rng(2).permutation(len(X))
        still, moved = (choose_clusterer(candidates(k), Z) for Z in (X, X[order]))
        assert_array_equal(moved.ranking, still.ranking)
        assert_array_equal(moved.scores, still.scores)
        rows = np.unique(X, axis=0, return_inverse=True)[1]  # equal rows may exchange labels
        found, expected = moved.estimator.labels_, still.estimator.labels_[order]
        assert_array_equal(*(np.sort(rows[order] * k + own) for own in (found, expected)))


def test_real_choices_follow_the_rows(real_data):
    X = fetch_coil20(data_home=real_data).data[:216:2].astype(float)
    order = np.random.default_rng(3).permutation(len(X))
    still, moved = (choose_clusterer(candidates(3), Z) for Z in (X, X[order]))
    assert_array_equal(moved.estimator.labels_, still.estimator.labels_[order])


def test_the_order_of_rows_depends_on_their_values_alone():
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((200, 3)), 1)
    X[5], X[6, 0] = X[9], -0.0
    for dtype in (np.float64, np.float32, np.int64):
        Z = X.astype(dtype)
        expected = Z[row_order(Z)]
        for _ in range(5):
            Z = rng.permutation(Z)
            assert_array_equal(Z[row_order(Z)], expected)
    assert_array_equal(row_order(4 * X), row_order(X))
    assert_array_equal(row_order(csr_array(X)), np.arange(200))
    dense = rng.standard_normal((4, 4))
    order = np.array([2, 0, 3, 1])
    assert_array_equal(reordered(csr_array(dense), order).toarray(), reordered(dense, order))


def test_points_that_represent_mainly_themselves_are_not_chosen():
    """With fewer points than features, the smaller penalties leave nothing but the diagonal."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 400))
    y = np.repeat(range(3), 20)
    X = 0.4 * centres[y] + rng.standard_normal((60, 400))
    lams = [(X**2).sum() / 60 * factor for factor in (1e-3, 1e-2, 0.1, 2.0)]
    for kind in (solvers.LowRankSubspaceClustering, solvers.LeastSquaresSubspaceClustering):
        model = kind(3, random_state=0)
        chosen = choose_settings(model, X, {"lam": lams})
        shares = [diagonal_share(kind(3, lam=lam).fit(X).coef_) for lam in lams]
        assert min(shares) < 0.5 < max(shares)
        trivial = [
            score for (_, score), own in zip(chosen.scores, shares, strict=True) if own > 0.5
        ]
        assert_allclose(trivial, [-own for own in shares if own > 0.5])
        assert diagonal_share(chosen.estimator.coef_) < 0.5
        assert adjusted_rand_score(y, chosen.estimator.labels_) == 1
        with pytest.warns(UserWarning, match="points represent mainly themselves"):
            least = choose_settings(model, X, {"lam": lams[:2]})
        assert least.settings == {"lam": lams[1]}
    every = [solvers.LowRankSubspaceClustering(3, lam=lam, random_state=0) for lam in lams]
    every += [solvers.OMPSubspaceClustering(3, n_nonzero=n, random_state=0) for n in (3, 5)]
    found = choose_clusterer(every, X)
    assert (found.scores[found.ranking[:3]] > 0).all()
    assert found.ranking[-1] == 0
    assert adjusted_rand_score(y, found.estimator.labels_) == 1


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_diagonal_share_has_no_unit(unit):
    coef = unit * np.random.default_rng(0).standard_normal((6, 6))
    sizes = np.abs(coef)
    for given in (coef, csr_array(coef)):
        assert_allclose(diagonal_share(given), np.trace(sizes) / sizes.sum())
