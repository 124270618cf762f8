"""Deep self-expression: its iterations, its layers, and the clusterer."""

import copy

import numpy as np
import torch
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize
from torch.nn import functional as F
from torch.testing import assert_close

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import ElasticNetSubspaceClustering
from twinsolve.solvers.clustering import symmetric_affinity, unit_rows
from twinsolve.unrolled import DeepSelfExpression, UnrolledADMM
from twinsolve.unrolled.clustering import DeepSubspaceClustering

from .. import draws


def tokens(*shape, seed=0):
    return F.normalize(draws.tokens(*shape, seed=seed), dim=-1)


def admm(n_iter=10, lam=0.1, **settings):
    return UnrolledADMM(n_iter, lam, **{"dtype": torch.float64} | settings)


def deep(n_layers, d=5, **settings):
    return DeepSelfExpression(d, n_layers, **{"dtype": torch.float64, "lam": 0.1} | settings)


def curves(seed=0, n_curves=3, n_samples=40):
    """Closed curves that cross the same few dimensions."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, (n_curves * n_samples, 1))
    waves = np.hstack([np.cos(angle), np.sin(angle), np.cos(2 * angle) / 2, np.sin(2 * angle) / 2])
    owner = np.repeat(np.arange(n_curves), n_samples)
    frames = rng.standard_normal((n_curves, 4, 8)) / 3
    centres = rng.standard_normal((n_curves, 8)) / 3
    X = np.einsum("ij,ijk->ik", waves, frames[owner]) + centres[owner]
    return X + 0.01 * rng.standard_normal(X.shape), owner


def test_without_layers_it_is_unrolled_self_expression():
    X, Y = 3 * tokens(12, 5), tokens(4, 5, seed=1)
    assert_close(deep(0)(X), admm()(F.normalize(X, dim=-1)))
    assert_close(deep(0)(Y, X), admm()(Y, F.normalize(X, dim=-1)))
    assert_close(deep(3, mixing=0.0)(X), deep(0)(X))
    assert deep(0).fit_projections(X) == []


def test_projections_minimise_their_losses():
    X = tokens(40, 5)
    model = deep(2)
    found = model.fit_projections(X)
    assert_close(torch.tensor(found).double(), model.losses(X))
    model.losses(X)[0].backward()
    assert model.projections[0].grad.abs().max() < 1e-10
    assert found[0] < deep(2).losses(X)[0].item() - 0.1
    M = X - model.express[0](X) @ X
    M = (M.mT @ M / 40).detach()
    M += 0.1 * M.diagonal().mean() * torch.eye(5).double()
    W = model.projections[0].detach()
    assert_close(W, W.mT)  # of one head, the symmetric root
    assert_close(W.mT @ M @ W, torch.eye(5).double(), atol=1e-10, rtol=0)
    assert_close(found[0], (5 / 2 - W.logdet().item()) / 5)


def test_keys_of_other_points_pass_the_layers_as_they_did():
    """A query that is far from every key changes nothing of another query's coefficients."""
    X, Y = tokens(20, 5), tokens(4, 5, seed=1)
    model = deep(2)
    model.fit_projections(X)
    assert_close(model(Y, X)[1:2], model(Y[1:2], X))
    assert model(X).shape == (20, 20)
    assert (model(X).diagonal() == 0).all()


def test_heads_are_those_of_multi_head_attention():
    """Against heads as lists of columns, of unequal number for two."""
    X, Y, d, num_heads = tokens(30, 9), tokens(4, 9, seed=1), 9, 2
    model = deep(1, d, num_heads=num_heads)
    model.fit_projections(X)
    columns = [list(range(head, d, num_heads)) for head in range(num_heads)]

    def norms(Z):
        size = torch.zeros_like(Z)
        for own in columns:
            size[:, own] = Z[:, own].norm(dim=1, keepdim=True).expand(-1, len(own))
        return size

    (W,), (first, last) = model.projections, model.express
    k, z = X / norms(X), Y / norms(Y)
    attended, moved = torch.zeros_like(z), torch.zeros_like(k)
    for i in range(d):  # an output column after the other: its scale is that of its own head
        values = k / norms(k @ W)[:, i : i + 1]
        for own in columns:
            attended[:, i] += first(z[:, own], k[:, own]) @ values[:, own] @ W[own, i]
            moved[:, i] += first(k[:, own]) @ values[:, own] @ W[own, i]
    mixed = [0.7 * (t @ W) / norms(t @ W) + 0.3 * a for t, a in ((z, attended), (k, moved))]
    z, k = (t / norms(t) for t in mixed)
    own = torch.stack([last(k[:, c]) for c in columns]).mean(0)
    new = torch.stack([last(z[:, c], k[:, c]) for c in columns]).mean(0)
    assert_close(model(X), own, atol=1e-10, rtol=0)
    assert_close(model(Y, X), new, atol=1e-10, rtol=0)


def test_gradients_of_heads():
    X, Y = tokens(7, 3), tokens(2, 3, seed=1)
    model = deep(1, 3, num_heads=2, n_iter=3)
    model.fit_projections(X)

    def outputs(x, y, w):
        values = {"projections.0": w}
        return (
            torch.func.functional_call(model, values, (x,)),
            torch.func.functional_call(model, values, (y, x)),
        )

    inputs = [a.detach().clone().requires_grad_() for a in (X, Y, model.projections[0])]
    assert torch.autograd.gradcheck(outputs, inputs)
    model.losses(X).sum().backward()
    assert all(p.grad is not None for p in model.express[0].parameters())


def test_the_condition_of_projections_is_bounded_through_many_layers():
    """Also in float32, of fewer tokens than features, one of them zero and two equal."""
    X = tokens(6, 8).float()
    X[1], X[3] = 0, X[2]
    model = DeepSelfExpression(8, 40, num_heads=3)
    assert np.isfinite(model.fit_projections(X)).all()
    bound = np.sqrt(1 + 8 / 0.1)
    # The prior's eigenvalue is rounded in float64, the projection in float32.
    assert all(torch.linalg.cond(W.double()) < bound + 1e-3 for W in model.projections)
    C = model(X)
    assert C.isfinite().all()
    assert not C[1].any()
    assert not C[:, 1].any()


def test_half_precision_is_computed_in_single():
    dtype = torch.bfloat16
    X = tokens(20, 6).to(dtype)
    X[0] = 0
    model = DeepSelfExpression(6, 2, num_heads=2, dtype=dtype)
    assert np.isfinite(model.fit_projections(X)).all()
    C = model(X)
    assert C.dtype == dtype
    wide = copy.deepcopy(model).float()(X.float())
    # Coefficients below one are rounded, and so are the logarithms of lam and threshold.
    assert_close(C.float(), wide, atol=torch.finfo(dtype).eps, rtol=0)
    assert not C[0].any()


def test_zero_and_equal_tokens_are_finite():
    for X in (torch.zeros(5, 3), torch.ones(5, 3), torch.eye(3).repeat(2, 1), torch.ones(1, 3)):
        for num_heads in (1, 2):
            model = DeepSelfExpression(3, 2, num_heads=num_heads)
            assert np.isfinite(model.fit_projections(X)).all()
            assert model(X).isfinite().all()


def test_no_keys_and_no_queries():
    X, nothing = tokens(3, 5), torch.zeros(0, 5).double()
    for layer in (admm(2), deep(1, num_heads=2)):
        assert layer(X, nothing).shape == (3, 0)
        assert layer(nothing, X).shape == (0, 3)
        assert layer(nothing).shape == (0, 0)


def make(n_layers=2, n_clusters=3, **settings):
    return DeepSubspaceClustering(
        n_clusters, n_layers=n_layers, **{"random_state": 0, "gamma": 20.0} | settings
    )


def test_clusterer_without_layers_is_the_elastic_net():
    X, _ = make_union_of_subspaces(
        n_samples=20, n_subspaces=3, n_features=15, dimension=3, noise=0.02, random_state=0
    )
    found = make(0, n_iter=500, l1_ratio=0.5).fit(X)
    solved = ElasticNetSubspaceClustering(3, gamma=20, l1_ratio=0.5, tol=1e-10).fit(normalize(X))
    # Both single precision and the last iterations' steps are far below.
    assert_allclose(found.coef_.toarray(), solved.coef_.toarray(), atol=1e-4)
    assert found.loss_curve_ == []


def test_heads_of_the_clusterer():
    X, y = make_union_of_subspaces(
        n_samples=30, n_subspaces=3, n_features=20, dimension=2, noise=0.02, random_state=0
    )
    model, again = make(num_heads=2).fit(X), make(num_heads=2).fit(X)
    assert model.network_.num_heads == 2
    assert (abs(model.coef_ - again.coef_)).max() == 0
    assert (abs(model.coef_ - make().fit(X).coef_)).max() > 0.01
    assert adjusted_rand_score(y, model.labels_) > 0.9
    assert (model.predict(X) == model.labels_).mean() > 0.9


def test_new_points_on_manifolds_join_their_cluster():
    X, y = curves()
    train = np.arange(len(X)) % 4 > 0
    model = make(affinity=lambda C: symmetric_affinity(unit_rows(C))).fit(X[train])
    found = np.r_[model.labels_, model.predict(X[~train])]
    assert adjusted_rand_score(y[train], model.labels_) > 0.9
    assert adjusted_rand_score(np.r_[y[train], y[~train]], found) > 0.9
    assert model.coefficients(X[~train]).shape == (30, 90)
