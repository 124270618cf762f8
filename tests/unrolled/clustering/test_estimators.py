"""What all learned clusterers promise."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import check_estimator

from .learned_cases import SMALL, SMALLEST, data, make

ALL = list(SMALL)
UNROLLED, NETWORK, ATTENTION, DEEP, _ = ALL
BAD_SETTINGS = [
    *[(kind, {name: -1}, f"{name}: must be") for kind in (UNROLLED, NETWORK)
      for name in ("max_iter", "batch_size", "learning_rate", "gamma")],
    (UNROLLED, {"gamma": 0.9}, "gamma: must be > 1, or all"),
    (UNROLLED, {"n_layers": 0}, "n_iter: must be a whole number >= 1"),
    (UNROLLED, {"train_on": "labels"}, "train_on: must be"),
    (NETWORK, {"l1_ratio": 1.5}, "l1_ratio: must be"),
    (NETWORK, {"width": 0}, "width: must be"),
    (NETWORK, {"hidden_features": (8, 0)}, "hidden_features: must be"),
    (ATTENTION, {"operator": "attention"}, "operator: must be one of"),
    (ATTENTION, {"operator": 3}, "operator: must be a name, an Operator"),
    (ATTENTION, {"operator": "bilateral"}, r"operator: must not need .* but \w+ needs \w+"),
    (ATTENTION, {"temperature": 0}, "temperature: must be"),
    (DEEP, {"gamma": 1.0}, "gamma: must be > 1"),
    (DEEP, {"n_layers": -1}, "n_layers: must be"),
    (DEEP, {"mixing": 2.0}, "mixing: must be in"),
    (DEEP, {"shrinkage": 0.0}, "shrinkage: must be"),
    (DEEP, {"n_iter": 0}, "n_iter: must be"),
    (DEEP, {"num_heads": 9}, "num_heads: must be at most 8"),
    (DEEP, {"l1_ratio": 0.0}, "l1_ratio: must be"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ALL)
def test_scikit_learn_checks(kind):
    check_estimator(kind(**SMALLEST[kind]), on_skip=None)


def test_bad_settings_are_named():
    X, _ = data(n_samples=10, n_features=8)
    for kind, settings, words in BAD_SETTINGS:
        with pytest.raises(ValueError, match=words):
            make(kind, **settings).fit(X)


def dense(coef):
    return coef.toarray() if isinstance(coef, csr_array) else coef


@pytest.mark.parametrize("kind", ALL)
def test_subspaces_are_found_and_new_points_join_them(kind):
    X, y = data()
    order = np.arange(len(X)) % 3 > 0
    model = make(kind).fit(X[order])
    assert adjusted_rand_score(y[order], model.labels_) > 0.95
    found = np.r_[model.labels_, model.predict(X[~order])]
    assert adjusted_rand_score(np.r_[y[order], y[~order]], found) > 0.9


@pytest.mark.parametrize("kind", ALL)
def test_new_points_take_the_cluster_of_smallest_residual(kind):
    X, _ = data(noise=0.3)
    new = data(seed=1)[0][:10]
    model = make(kind).fit(X)
    coef = dense(model.coefficients(new))
    assert coef.shape == (10, len(X))
    points, keys = model._prepare(new), model._prepare(X)
    for x, c, found in zip(points, coef, model.predict(new), strict=True):
        residual = [np.linalg.norm(x - (c * (model.labels_ == k)) @ keys) for k in range(3)]
        assert found == np.argmin(residual)


@pytest.mark.parametrize("kind", ALL)
def test_float32_is_kept_and_seeds_repeat(kind):
    X, y = data()
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    model = make(kind).fit(X.astype(np.float32))
    assert model.coef_.dtype == model.affinity_matrix_.dtype == np.float32
    assert model.coefficients(X[:3].astype(np.float32)).dtype == np.float32
    assert adjusted_rand_score(y, model.labels_) > 0.95
    again = clone(model).fit(X.astype(np.float32))
    assert (dense(again.coef_) == dense(model.coef_)).all()
    assert (again.labels_ == model.labels_).all()
    revived = pickle.loads(pickle.dumps(model))
    assert (revived.predict(X) == model.predict(X)).all()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("kind", ALL)
def test_zero_rows_have_no_coefficients_and_get_none(kind):
    X, y = data(noise=0.0)
    X = np.vstack([X, np.zeros((2, 20))])
    model = make(kind).fit(X)
    C = dense(model.coef_)
    assert (C[-2:] == 0).all()
    assert (C[:, -2:] == 0).all()
    assert adjusted_rand_score(y, model.labels_[:-2]) > 0.9
    assert (dense(model.coefficients(np.zeros((1, 20)))) == 0).all()


@pytest.mark.filterwarnings("ignore:affinity. eigenvalues")  # graphs of more components
@pytest.mark.parametrize("kind", ALL)
def test_scale_of_the_data_does_not_matter(kind):
    X, _ = data()
    small, large, tiny = (
        make(kind, **SMALLEST[kind]).fit(scale * X) for scale in (1.0, 64.0, 2.0**-50)
    )
    # Powers of two scale without rounding, but norms and thresholds are taken in other orders.
    for model in (large, tiny):
        assert_allclose(dense(model.coef_), dense(small.coef_), atol=1e-5)
    assert_allclose(dense(tiny.coefficients(2.0**-50 * X)), dense(small.coefficients(X)), atol=1e-5)


@pytest.mark.parametrize("kind", ALL[:2])
def test_global_seed_does_not_matter(kind):
    X, _ = data(n_samples=10)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(dense(make(kind, **SMALLEST[kind]).fit(X).coef_))
    assert (found[0] == found[1]).all()
    other = make(kind, random_state=1, batch_size=5, **SMALLEST[kind]).fit(X)
    assert (dense(other.coef_) != found[0]).any()
