import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers import SparseSubspaceClustering, ista
from twinsolve.solvers.clustering import symmetric_affinity
from twinsolve.solvers.self_expression import lam_from_gamma
from twinsolve.solvers.sparse_coding import duality_gap, lam_max, lasso_objective
from twinsolve.unrolled.clustering import UnrolledSubspaceClustering

from .learned_cases import data, make

KIND = UnrolledSubspaceClustering


def noisy(seed=0):
    return data(seed, noise=0.2)[0]


def test_before_training_it_is_ista():
    X, new = noisy(), noisy(1)[:7]
    model = make(KIND, max_iter=0, gamma=20.0).fit(X)
    step = 1 / np.linalg.norm(X, 2) ** 2
    lam = lam_from_gamma(X, 20.0)
    expected = ista(X, X, lam=lam, n_iter=5, step=step, zero_diagonal=True).coef
    # Steps and penalties are stored as their logarithms.
    assert_allclose(model.coef_.toarray(), expected, atol=1e-13)
    expected = ista(new, X, lam=lam_max(new, X) / 20, n_iter=5, step=step).coef
    assert_allclose(model.coefficients(new).toarray(), expected, atol=1e-13)
    assert model.n_iter_ == len(model.loss_curve_) == 0


def test_objective_and_gap_are_those_of_sparse_subspace_clustering():
    X = noisy()
    model = make(KIND, gamma=20.0).fit(X)
    lam = lam_from_gamma(X, 20.0)
    assert_allclose(model.objective_, lasso_objective(X, X, model.coef_, lam=lam), rtol=1e-12)
    gap = duality_gap(X, X, model.coef_, lam=lam, zero_diagonal=True)
    assert_allclose(model.gap_, gap, rtol=1e-9)
    solved = SparseSubspaceClustering(3, gamma=20.0, tol=1e-9, random_state=0).fit(X)
    best = lasso_objective(X, X, solved.coef_, lam=lam)
    above = (model.objective_ - best) / (X**2).sum(axis=1)
    assert (above > -1e-9).all()
    assert (above <= model.gap_ + 1e-9).all()
    assert (model.affinity_matrix_ != symmetric_affinity(model.coef_)).nnz == 0


def distance(model, solved):
    return np.linalg.norm((model.coef_ - solved.coef_).toarray())


def test_training_lowers_what_it_trains_on():
    X, held_out = noisy(), noisy(1)
    solved = SparseSubspaceClustering(3, gamma=50.0, random_state=0).fit(X)
    untrained = make(KIND, gamma=50.0, max_iter=0).fit(X)
    longer = make(KIND, gamma=50.0, max_iter=0, n_layers=10).fit(X)
    objective, solution, both = (
        make(KIND, gamma=50.0, max_iter=100, train_on=name).fit(X)
        for name in ("objective", "solution", "both")
    )
    assert objective.objective_.mean() < longer.objective_.mean() < untrained.objective_.mean()
    assert objective.objective_.mean() < both.objective_.mean() < solution.objective_.mean()
    distances = [distance(model, solved) for model in (solution, both, objective, untrained)]
    assert distances == sorted(distances)
    assert distances[0] < 0.87 * distances[-1]
    # What was learned carries over to other points.
    lam = lam_from_gamma(held_out, 50.0)
    gaps = []
    for model in (untrained, objective):
        with torch.no_grad():
            coef = model.layers_(torch.from_numpy(held_out)).numpy()
        gaps.append(duality_gap(held_out, held_out, coef, lam=lam, zero_diagonal=True).mean())
    assert gaps[1] < 0.7 * gaps[0]


def test_training_never_ends_above_its_start():
    """Adam with these steps ends a third above the start; the state before it is kept."""
    X = noisy()
    start, trained = (
        make(KIND, gamma=50.0, n_layers=20, max_iter=n, learning_rate=0.3).fit(X) for n in (0, 40)
    )
    assert trained.loss_curve_[-1] > 1.1 * start.objective_.mean() / (X**2).sum(axis=1).mean()
    means = [(model.objective_ / (X**2).sum(axis=1)).mean() for model in (trained, start)]
    assert means[0] <= means[1] * (1 + 1e-12)


def test_steps_that_diverge_for_new_points_warn():
    X = noisy()
    model = make(KIND).fit(X)
    with torch.no_grad():
        for step in model.layers_.step:
            step.log.add_(2.0)
    with pytest.warns(ConvergenceWarning, match="of 3 of 3 points are worse than zeros"):
        model.predict(noisy(1)[:3])
    assert (model.predict(np.zeros((1, 20))) == model.labels_).any()


def test_loss_before_the_first_step_is_the_mean_relative_objective():
    X = noisy()
    untrained = make(KIND, max_iter=0).fit(X)
    solved = SparseSubspaceClustering(3, random_state=0).fit(X)
    relative = (untrained.objective_ / (X**2).sum(axis=1)).mean()
    squared = distance(untrained, solved) ** 2 / len(X)
    for name, expected in (
        ("objective", relative),
        ("solution", squared),
        ("both", relative + squared),
    ):
        model = make(KIND, max_iter=1, batch_size=1000, train_on=name).fit(X)
        assert_allclose(model.loss_curve_, [expected], rtol=1e-9)


def test_blocks_change_nothing(monkeypatch):
    X = noisy()
    expected = make(KIND).fit(X)
    monkeypatch.setattr("twinsolve.unrolled.clustering.unrolled_ista._BLOCK_ROWS", 7)
    found = make(KIND).fit(X)
    assert_allclose(found.coef_.toarray(), expected.coef_.toarray(), atol=1e-12)
    new = noisy(1)[:20]
    assert_allclose(
        found.coefficients(new).toarray(), expected.coefficients(new).toarray(), atol=1e-12
    )
