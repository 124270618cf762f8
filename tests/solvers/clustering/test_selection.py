"""What "auto" and `choose_settings` choose, without labels."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.cluster import SpectralClustering
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    ElasticNetSubspaceClustering,
    KSubspaces,
    LeastSquaresSubspaceClustering,
    LocallyLinearSubspaceClustering,
    LowRankSubspaceClustering,
    NearestNeighborClustering,
    OMPSubspaceClustering,
    OutlierSubspaceClustering,
    SparseSubspaceClustering,
    ThresholdingSubspaceClustering,
    choose_clusterer,
    choose_settings,
)
from twinsolve.solvers.clustering import rank_clusterings, selection_score
from twinsolve.solvers.clustering.order import row_order
from twinsolve.solvers.clustering.ranking import rand_indices
from twinsolve.solvers.clustering.selection import equal_estimators
from twinsolve.unrolled.clustering import (
    AttentionSubspaceClustering,
    DeepSubspaceClustering,
    UnrolledSubspaceClustering,
)

AUTO = [
    (SparseSubspaceClustering, "gamma", (50.0, 5.0, 20.0, 200.0)),
    (ElasticNetSubspaceClustering, "gamma", (50.0, 5.0, 20.0, 200.0)),
    (OutlierSubspaceClustering, "alpha", (20.0, 5.0, 50.0)),
    (OMPSubspaceClustering, "n_nonzero", (5, 3, 10)),
    (LeastSquaresSubspaceClustering, "lam", (0.01, 0.001, 0.1)),
    (LowRankSubspaceClustering, "lam", (0.01, 0.001, 0.1)),
    (LocallyLinearSubspaceClustering, "n_neighbors", (5, 3, 10)),
    (NearestNeighborClustering, "n_neighbors", (5, 3, 10)),
    (ThresholdingSubspaceClustering, "n_neighbors", (5, 3, 10)),
    (UnrolledSubspaceClustering, "gamma", (50.0, 5.0, 20.0, 200.0)),
    (AttentionSubspaceClustering, "temperature", (10.0, 3.0, 30.0, 100.0, 300.0)),
    (DeepSubspaceClustering, "shrinkage", (0.1, 100.0)),
]
QUICK = {UnrolledSubspaceClustering: {"max_iter": 5, "n_layers": 3}}


@pytest.fixture(scope="module")
def points():
    X, y = make_union_of_subspaces(
        n_samples=25, n_subspaces=3, n_features=12, dimension=4, noise=0.4, random_state=0
    )
    order = row_order(X)  # so that rounding is the same
    return 3 * X[order], y[order]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("kind", "name", "values"), AUTO, ids=lambda x: getattr(x, "__name__", ""))
def test_auto_is_the_default_and_takes_the_value_of_highest_score(points, kind, name, values):
    X, _ = points
    if name == "lam":
        relative, values = values, kind(3)._choices_of(name, X)
        assert_allclose(values, np.multiply(relative, (X**2).sum(axis=1).mean()))
    model = kind(3, random_state=0, **QUICK.get(kind, {}))
    assert getattr(model, name) == "auto"
    fitted = [clone(model).set_params(**{name: value}).fit(X) for value in values]
    scores = [selection_score(one.affinity_matrix_, one.labels_, 3) for one in fitted]
    best = fitted[int(np.argmax(scores))]
    assert len(set(scores)) > 1
    model.fit(X)
    assert getattr(model, name) == "auto"
    assert getattr(model, f"{name}_") == getattr(best, f"{name}_")
    assert_array_equal(model.labels_, best.labels_)
    assert abs(model.coef_ - best.coef_).max() == 0
    assert_array_equal(model.predict(X[:9] + 0.1), best.predict(X[:9] + 0.1))
    assert set(vars(model)) == set(vars(best))


def test_the_grid_may_be_of_any_parameters_of_any_clusterer_with_an_affinity(points):
    X, _ = points
    model = OMPSubspaceClustering(3, random_state=0)
    chosen = choose_settings(
        model, X, {"n_nonzero": [3, 6], "assign_labels": ["kmeans", "cluster_qr"]}
    )
    assert len(chosen.scores) == 4
    assert chosen.score == max(score for _, score in chosen.scores)
    assert chosen.settings == next(s for s, score in chosen.scores if score == chosen.score)
    assert chosen.estimator.n_nonzero == chosen.settings["n_nonzero"]
    assert not hasattr(model, "labels_")
    foreign = choose_settings(SpectralClustering(3, random_state=0), X, {"gamma": [0.01, 0.1]})
    assert foreign.score == max(score for _, score in foreign.scores) > 0
    model = OMPSubspaceClustering(None, random_state=0)
    with pytest.warns(UserWarning, match="no candidate has a score above 0"):
        assert choose_settings(model, X, {"n_nonzero": [3, 6]}).score == 0


def test_bad_grids_are_named(points):
    X, _ = points
    with pytest.raises(ValueError, match="estimator: KSubspaces makes no affinity"):
        choose_settings(KSubspaces(3, dimension=3), X, {"dimension": [3]})
    with pytest.raises(ValueError, match="Invalid parameter"):
        choose_settings(OMPSubspaceClustering(3), X, {"gamma": [3]})
    with pytest.raises(ValueError, match="non-empty"):
        choose_settings(OMPSubspaceClustering(3), X, {"n_nonzero": []})


def test_the_clusters_count_that_those_of_large_scores_confirm():
    rng = np.random.default_rng(0)
    labellings = [rng.integers(3, size=30) for _ in range(5)]
    labellings[3] = 2 - labellings[1]  # the same clusters
    scores = np.array([0.9, 0.88, 0.3, 0.87, 0.2])
    ranking, agreement = rank_clusterings(scores, labellings)
    assert ranking[:2].tolist() == [1, 3]  # not the one of largest score, which is alone
    indices = [[adjusted_rand_score(a, b) for a in labellings] for b in labellings]
    assert_allclose(agreement, np.average(indices, axis=1, weights=scores**24), atol=1e-12)
    labellings[4] = labellings[2]  # those of small scores confirm nothing
    assert rank_clusterings(scores, labellings)[0][0] == 1


def test_a_graph_in_too_many_parts_is_not_chosen_whoever_agrees_with_it():
    same, other = [0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 0]
    ranking, _ = rank_clusterings([0, 0.8, 0.8, 0.81], [same, same, same, other])
    assert ranking.tolist() == [1, 2, 3, 0]
    ranking, agreement = rank_clusterings([0, 0, 0], [same, same, other])
    assert ranking.tolist() == [0, 1, 2]
    assert np.isnan(agreement).all()


def test_of_two_the_score_decides_and_those_without_one_are_not_ranked():
    ranking, agreement = rank_clusterings([0.1, np.nan, 0.3, 0.3], [[0, 1], None, [0, 0], [1, 1]])
    assert ranking.tolist() == [2, 3, 0]
    assert np.flatnonzero(np.isnan(agreement)).tolist() == [1]
    assert rank_clusterings([0.7, 0.8], [[0, 1, 1], [0, 0, 1]])[0].tolist() == [1, 0]
    assert rank_clusterings([np.nan], [None])[0].size == 0
    with pytest.raises(
        ValueError, match="scores: must hold one score for each of the 2 labellings"
    ):
        rank_clusterings([0.1], [[0, 1], [1, 0]])


def test_rand_indices_are_those_of_each_pair():
    rng = np.random.default_rng(0)
    labellings = [rng.integers(k, size=20) for k in (1, 2, 3, 5)] + [np.arange(20)]
    expected = [[adjusted_rand_score(a, b) for a in labellings] for b in labellings]
    assert_allclose(rand_indices(labellings), expected, atol=1e-12)


@pytest.mark.parametrize("labellings", [[[0, 1, 1], [0, 1]], [None, [0, 1]], [[[0, 1]], [[0, 1]]]])
def test_labellings_are_of_the_same_samples(labellings):
    with pytest.raises(ValueError, match="labellings: must hold one label for each sample"):
        rank_clusterings([0.1, 0.2], labellings)


def test_an_estimator_that_is_given_again_does_not_confirm_itself(points):
    X, _ = points
    models = [OMPSubspaceClustering(3, n_nonzero=n, random_state=0) for n in range(2, 8)]
    models += [
        LocallyLinearSubspaceClustering(3, n_neighbors=n, random_state=0) for n in range(2, 18)
    ]
    alone = choose_clusterer(models, X)
    worst = clone(models[alone.ranking[2]])  # the best, if it had friends
    crowd = choose_clusterer([*models, *(clone(worst) for _ in range(20))], X)
    assert_array_equal(crowd.ranking, alone.ranking)
    assert_array_equal(crowd.scores[:22], alone.scores)
    assert np.isnan(crowd.scores[22:]).all()
    assert crowd.estimator.get_params() == alone.estimator.get_params()


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (OMPSubspaceClustering(3, n_nonzero=5), OMPSubspaceClustering(3, n_nonzero=5), True),
        (SparseSubspaceClustering(3, gamma=5), SparseSubspaceClustering(3, gamma=5.0), True),
        (SparseSubspaceClustering(3), SparseSubspaceClustering(3, gamma=5.0), False),
        (OMPSubspaceClustering(3), OMPSubspaceClustering(3, assign_labels="cluster_qr"), False),
        (OMPSubspaceClustering(3, affinity=abs), OMPSubspaceClustering(3, affinity=len), False),
        (OMPSubspaceClustering(3), LocallyLinearSubspaceClustering(3), False),
    ],
)
def test_estimators_are_equal_by_class_and_parameters(first, second, equal):
    assert equal_estimators(first, second) is equal


def test_a_choice_where_nothing_can_be_told_apart():
    model = OMPSubspaceClustering(2, n_nonzero=2, random_state=0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 4))
    for same in (np.ones((12, 4)), np.zeros((12, 4))):
        with pytest.raises(ValueError, match="X: has 1 distinct point, fewer than n_clusters=2"):
            choose_clusterer([model], same)
    with pytest.raises(ValueError, match="X: has 3 distinct points, fewer than n_clusters=4"):
        choose_clusterer([clone(model).set_params(n_clusters=4)], np.repeat(X[:3], 4, axis=0))
    for k, reason in ((1, "n_clusters=1: all points are one"), (12, "is the number of points")):
        with pytest.warns(UserWarning, match=reason):
            choose_clusterer([clone(model).set_params(n_clusters=k)], X)
    pairs = np.repeat(X[:6], 2, axis=0)  # each point by its double: six parts
    with pytest.warns(UserWarning, match="no candidate has a score above 0"):
        choose_clusterer([clone(model).set_params(n_nonzero=1)], pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_clusterer([model], X)


def test_only_what_is_chosen_warns():
    X = np.repeat([[0.0], [1.0]], 8, axis=0) + 0.1 * np.random.default_rng(0).random((16, 1))

    class Talkative(SpectralClustering):
        def fit(self, X, y=None):
            for _ in range(2):
                warnings.warn(f"of {self.gamma}", ConvergenceWarning, stacklevel=1)
            return super().fit(X)

    wide, narrow = (Talkative(2, gamma=gamma, random_state=0) for gamma in (0.1, 10.0))
    for choose in (
        lambda: choose_settings(wide, X, {"gamma": [0.1, 10.0]}),
        lambda: choose_clusterer([wide, narrow], X),
    ):
        with pytest.warns(ConvergenceWarning) as said:
            assert choose().estimator.gamma == 10
        assert [str(one.message) for one in said] == ["of 10.0"]


def test_what_are_no_candidates_is_said(points):
    X, _ = points
    model = OMPSubspaceClustering(3, n_nonzero=3)
    for wrong in (model, 3):
        with pytest.raises(TypeError, match="estimators: must be a sequence of clusterers"):
            choose_clusterer(wrong, X)
    for wrong in (3, OMPSubspaceClustering):
        with pytest.raises(TypeError, match="estimators: must be clusterers with get_params"):
            choose_clusterer([model, wrong], X)
    for other, words in ((2, "2, 3"), (None, "3, None")):
        mixed = [model, clone(model).set_params(n_clusters=other)]
        with pytest.raises(ValueError, match=f"estimators: must have .* n_clusters, got {words}"):
            choose_clusterer(mixed, X)


def test_a_clusterer_is_chosen_among_methods_without_labels(points):
    X, _ = points
    kinds = {OMPSubspaceClustering: "n_nonzero", LocallyLinearSubspaceClustering: "n_neighbors"}
    models = [
        kind(3, random_state=0, **{name: value})
        for kind, name in kinds.items()
        for value in range(2, 8)
    ]
    chosen = choose_clusterer(iter(models), X)
    fitted = [clone(model).fit(X) for model in models]
    scores = [selection_score(model.affinity_matrix_, model.labels_, 3) for model in fitted]
    assert_array_equal(chosen.scores, scores)
    labellings = [model.labels_ for model in fitted]
    ranking, agreement = rank_clusterings(scores, labellings)
    assert_array_equal(chosen.ranking, ranking)
    assert_array_equal(chosen.agreement, agreement)
    assert chosen.score == scores[ranking[0]]
    assert_array_equal(chosen.estimator.labels_, fitted[ranking[0]].labels_)
    assert not hasattr(models[ranking[0]], "labels_")
    with pytest.raises(ValueError, match="estimators: must hold at least one"):
        choose_clusterer([], X)
    with pytest.raises(ValueError, match="estimator: KSubspaces makes no affinity"):
        choose_clusterer([KSubspaces(3, dimension=3)], X)


def test_clusterings_count_by_the_24th_power_of_their_scores():
    rng = np.random.default_rng(0)
    labellings = [rng.integers(3, size=30) for _ in range(6)]
    scores = np.array([0.9, 0.85, 0.2, 0.7, 0.71, -0.8])
    _, agreement = rank_clusterings(scores, labellings)
    weights = np.maximum(scores, 0) ** 24
    assert_allclose(agreement, np.average(rand_indices(labellings), axis=1, weights=weights))
    order, _ = rank_clusterings([0.9, -0.7, -0.6, 0], [[0, 1, 1]] * 4)
    assert order.tolist() == [0, 3, 2, 1]


def test_the_first_of_equal_settings_is_chosen():
    """Scores that differ by rounding alone are equal."""
    X = np.vstack([np.eye(2)[[0, 0, 0, 1, 1, 1]] * [[1], [2], [3], [1], [2], [3]]])
    for values in ([1, 2], [2, 1]):
        chosen = choose_settings(OMPSubspaceClustering(2, random_state=0), X, {"n_nonzero": values})
        assert len({score for _, score in chosen.scores}) == 1
        assert chosen.settings == {"n_nonzero": values[0]}
    same = [[0, 0, 1, 1]] * 3
    for noise in ([0, 1e-15, -1e-15], [0, -1e-15, 1e-15]):
        assert rank_clusterings(0.9 + np.array(noise), same)[0].tolist() == [0, 1, 2]
