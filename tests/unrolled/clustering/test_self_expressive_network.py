from contextlib import nullcontext

import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize

from twinsolve.solvers import sparse_self_expression
from twinsolve.solvers.clustering import nearest_rows_affinity
from twinsolve.solvers.sparse_coding import duality_gap
from twinsolve.unrolled.clustering import SelfExpressiveSubspaceClustering

from .learned_cases import data, make

KIND = SelfExpressiveSubspaceClustering


def test_objective_and_gap_are_those_of_the_elastic_net():
    X, _ = data()
    model = make(KIND, gamma=50.0, l1_ratio=0.8).fit(X)
    U = normalize(X)
    with torch.no_grad():
        loss = model.network_.objective(torch.from_numpy(U).float()).numpy()
    # The network computes in float32.
    assert_allclose(model.objective_ * 50 / 2, loss, rtol=1e-4)
    problem = {"lam": 2 / 50, "l1_ratio": 0.8}
    gap = duality_gap(U, U, model.coef_, zero_diagonal=True, **problem)
    assert_allclose(model.gap_, gap, rtol=1e-12)
    assert (model.gap_ >= 0).all()
    best = sparse_self_expression(U, tol=1e-9, **problem).objective
    above = model.objective_ - best
    assert (above > -1e-9).all()
    assert (above <= model.gap_ + 1e-9).all()
    assert (model.affinity_matrix_ != nearest_rows_affinity(model.coef_)).nnz == 0


def test_training_lowers_the_objective_in_and_out_of_sample():
    X, _ = data()
    new = data(seed=0, n_samples=40)[0]
    means = []
    for max_iter in (0, 20, 150):
        with pytest.warns(ConvergenceWarning) if max_iter == 0 else nullcontext():
            model = make(KIND, max_iter=max_iter).fit(X)
        means.append(model.objective_.mean())
        assert model.n_iter_ == len(model.loss_curve_) == max_iter
        residual = normalize(new) - model.coefficients(new) @ normalize(X)
        means[-1] += (residual**2).sum(axis=1).mean()
    assert means[2] < 0.5 * means[1]
    assert means[1] < means[0]


def test_gradients_are_clipped_to_the_norm_that_its_docstring_says(monkeypatch):
    largest, clip = [], torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda *given: largest.append(given[1]) or clip(*given)
    )
    make(KIND, max_iter=3).fit(data()[0])
    assert largest == [1e-3] * 3


def test_a_network_of_zeros_warns():
    with pytest.warns(ConvergenceWarning, match="no better than zeros"):
        model = make(KIND, gamma=1e-6, max_iter=400, learning_rate=0.05).fit(data()[0])
    assert model.coef_.nnz == 0
    assert_allclose(model.objective_, 1)
