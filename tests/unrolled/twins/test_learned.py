"""Faults in the learned solvers that the check has to find."""

import copy

import numpy as np
import pytest
import torch

import twinsolve
from twinsolve.unrolled import (
    LISTA,
    SelfExpressiveNetwork,
    SparseMixtureOfExperts,
    UnrolledSelfExpression,
)
from twinsolve.unrolled.self_expression.unrolled_admm import _invert_regularized
from twinsolve.unrolled.sparse_coding import at_iteration, safe_step, soft_threshold
from twinsolve.unrolled.twins import exact_twin, twins_of
from twinsolve.unrolled.twins.relations import layer_output, solver_output

from .conftest import TWINS, built, small_inputs

DTYPES = [torch.float64, torch.float32]
LISTA_TWINS = [name for name in TWINS if name.startswith("learned-ista")]
UNROLLED = [
    f"unrolled-self-expression-{kind}" for kind in ("iterates", "limit", "recursion", "new-points")
]
ADMM_ITERATES = ["unrolled-admm", "unrolled-admm-new-points"]
ADMM = [*ADMM_ITERATES, "unrolled-admm-limit", "unrolled-admm-new-points-limit"]
ADMM_FILE, ITERATIONS = "self_expression.unrolled_admm", "sparse_coding.iterations"
NONE = torch.zeros((), dtype=torch.bool)
LISTA_FILE, UNROLLED_FILE = "sparse_coding.learned_ista", "self_expression.unrolled_ista"


def measured(name, dtype=torch.float64):
    twin = TWINS[name]
    inputs = small_inputs(twin, dtype)
    return twin.relation.measure(twin, built(twin, inputs), inputs)


@pytest.fixture
def patch(monkeypatch):
    def replace(target, value):
        monkeypatch.setattr(f"twinsolve.unrolled.{target}", value)

    return replace


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*LISTA_TWINS, "analytic-lista-limit", *UNROLLED])
def test_finds_a_threshold_scaled_by_two(patch, name, dtype):
    patch(f"{ITERATIONS}.soft_threshold", lambda z, t: soft_threshold(z, 2 * t))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*LISTA_TWINS, "unrolled-self-expression-iterates"])
def test_finds_parameters_of_another_iteration(patch, name, dtype):
    file = UNROLLED_FILE if name in UNROLLED else LISTA_FILE
    patch(f"{file}.at_iteration", lambda values, t: at_iteration(values, t + 1))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*LISTA_TWINS, "analytic-lista-limit"])
def test_finds_a_gradient_that_is_too_long(patch, name, dtype):
    right = LISTA._compute_pull
    patch(f"{LISTA_FILE}.LISTA._compute_pull", lambda self, *a: 1.01 * right(self, *a))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("name", ["learned-ista-lista", "learned-ista-coupled"])
def test_finds_weights_of_another_iteration(patch, name):
    right = LISTA._compute_pull
    patch(f"{LISTA_FILE}.LISTA._compute_pull", lambda self, t, *a: right(self, max(t - 1, 0), *a))
    assert not measured(name).passed


def test_finds_a_dictionary_in_place_of_the_analytic_weights(patch):
    patch(f"{LISTA_FILE}.analytic_weights", lambda D: D)
    assert not measured("analytic-lista-limit").passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.001, 4.0])
@pytest.mark.parametrize("name", ["unrolled-self-expression-iterates", UNROLLED[2], UNROLLED[3]])
def test_finds_a_step_that_is_too_long(patch, name, factor, dtype):
    patch(f"{UNROLLED_FILE}.safe_step", lambda k: factor * safe_step(k))
    assert not measured(name, dtype).passed


def test_a_diverging_step_breaks_the_proved_rate(patch):
    patch(f"{UNROLLED_FILE}.safe_step", lambda k: 8 * safe_step(k))
    assert not measured("unrolled-self-expression-rate").passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNROLLED[:3])
def test_finds_a_diagonal_left_in(patch, name, dtype):
    patch(f"{UNROLLED_FILE}.own_keys", lambda own, start, rows, k: NONE)
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", ["threshold", "ridge"])
@pytest.mark.parametrize("name", ADMM)
def test_finds_a_penalty_of_admm_that_is_off_by_a_percent(patch, name, fault, dtype):
    if fault == "threshold":
        patch(f"{ITERATIONS}.soft_threshold", lambda z, t: soft_threshold(z, 1.01 * t))
    else:
        right = _invert_regularized
        patch(f"{ADMM_FILE}._invert_regularized", lambda k, ridge: right(k, 1.01 * ridge))
    assert not measured(name, dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
def test_finds_a_diagonal_of_admm_left_in(patch, dtype):
    patch(f"{ADMM_FILE}.own_keys", lambda own, start, rows, k: NONE)
    assert not measured("unrolled-admm", dtype).passed
    assert not measured("unrolled-admm-limit", dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ADMM_ITERATES)
def test_finds_another_way_of_admm_to_the_same_solution(patch, name, dtype):
    patch(f"{ADMM_FILE}._RELAXATION", 1.59)
    assert not measured(name, dtype).passed
    assert measured(f"{name}-limit", dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", ["diagonal", "width", "threshold", "penalty"])
def test_finds_faults_of_the_self_expressive_network(patch, fault, dtype):
    target = "self_expression.self_expressive_network.SelfExpressiveNetwork"
    right = SelfExpressiveNetwork._coefficients
    if fault == "diagonal":
        patch(f"{target}._coefficients", lambda self, *a: right(self, *a[:3], None, a[4]))
    elif fault == "width":
        patch(f"{target}._coefficients", lambda self, *a: right(self, *a) * self.width)
    elif fault == "threshold":
        patch(f"{target}._coefficients", lambda self, Q, K, *a: right(self, Q, 2 * K, *a))
    else:
        objective = SelfExpressiveNetwork.objective
        patch(f"{target}.objective", lambda self, X: objective(self, X) * 0.99)
    assert not measured("self-expressive-network", dtype).passed


def trained_network(X):
    torch.manual_seed(0)
    network = SelfExpressiveNetwork(
        X.shape[1], hidden_features=(32,), width=64, gamma=20.0, dtype=torch.float64
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(400):
        optimizer.zero_grad()
        network.loss(X).backward()
        optimizer.step()
    return network


def test_the_bound_finds_a_loss_that_lacks_a_term():
    """On a trained network, whose loss is close to the certified optimum."""
    twin = TWINS["self-expressive-network-bound"]
    X = torch.nn.functional.normalize(small_inputs(twin, torch.float64)[0][:, :4], dim=1)
    network = trained_network(X)
    assert twin.relation.measure(twin, network, (X,)).passed
    right = network.objective
    network.objective = lambda X: (
        right(X)
        - network.l1_ratio * torch.from_numpy(np.abs(network.coefficients(X).toarray()).sum(axis=1))
    )
    assert not twin.relation.measure(twin, network, (X,)).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", ["gates", "experts", "code", "dictionary"])
def test_finds_faults_of_the_mixture(patch, fault, dtype):
    target = "sparse_coding.mixture_of_experts.SparseMixtureOfExperts"
    route, codes = SparseMixtureOfExperts.route, SparseMixtureOfExperts.codes
    if fault == "gates":
        patch(f"{target}.route", lambda self, x: (route(self, x)[0] * 1.01, route(self, x)[1]))
    elif fault == "experts":
        patch(f"{target}.route", lambda self, x: (route(self, x)[0], route(self, x)[1].flip(-1)))
    elif fault == "code":
        patch(f"{target}.codes", lambda self, x: codes(self, x).flip(-1))
    else:
        patch(f"{target}.dictionary", lambda self: self.synthesis.reshape(self.dim, -1))
    assert not measured("sparse-mixture-of-experts", dtype).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", ["gates", "experts"])
@pytest.mark.parametrize("dictionary", ["orthonormal", "ksvd"])
def test_finds_a_mixture_that_is_no_pursuit(patch, dictionary, fault, dtype):
    route = SparseMixtureOfExperts.route

    def wrong(self, x):
        gates, chosen = route(self, x)
        if fault == "gates":
            return gates * 1.01, chosen
        return gates, (x @ self.router.mT).topk(self.top_k + 1, dim=-1)[1][..., 1:]

    patch("sparse_coding.mixture_of_experts.SparseMixtureOfExperts.route", wrong)
    assert not measured(f"sparse-mixture-of-experts-{dictionary}", dtype).passed


def test_only_a_mixture_that_is_a_pursuit_is_held_to_one():
    twin = TWINS["sparse-mixture-of-experts-orthonormal"]
    layer = built(twin, small_inputs(twin, torch.float64))
    assert twin.covers(layer)
    for name in ("router", "analysis", "synthesis"):
        other = copy.deepcopy(layer)
        getattr(other, name).data[0] *= 1.01
        assert not twin.covers(other)
    coherent = TWINS["sparse-mixture-of-experts-ksvd"]
    layer = built(coherent, small_inputs(coherent, torch.float64))
    assert twin.covers(layer)
    layer.top_k = 2
    assert not twin.covers(layer)


def moved(layer, scale=0.05):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(scale * noise)
    return layer


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kind", ["lista", "coupled", "step", "alista", "adaptive"])
def test_every_lista_is_checked_against_ista_or_its_printed_recursion(kind, trained):
    X = small_inputs(TWINS["learned-ista-step"], torch.float64)[0].numpy()
    D = np.random.default_rng(0).standard_normal((9, 6))
    layer = LISTA(D, 4, 0.5, kind)
    layer = moved(layer) if trained else layer
    as_ista = not trained and kind != "alista"
    name = f"learned-ista-{kind}" if as_ista else "learned-ista-recursion"
    assert exact_twin(layer).name == name
    report = twinsolve.check(layer, X)
    assert report.correct
    assert report.tolerance == 1e-10
    assert (report.origin["distance"] > 1e-3) == trained
    limits = [twin.name for twin in twins_of(layer) if twin.relation.name == "limit"]
    assert limits == (["analytic-lista-limit"] if kind == "alista" and not trained else [])


@pytest.mark.parametrize("trained", [False, True])
def test_unrolled_self_expression_is_checked_with_any_features(trained):
    torch.manual_seed(0)
    X = torch.randn(20, 6, dtype=torch.float64)
    features = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())
    layer = UnrolledSelfExpression(5, 0.3, features=features).double()
    if trained:
        moved(layer, 0.3)
    name = "recursion" if trained else "iterates"
    assert exact_twin(layer, same_points=True).name == f"unrolled-self-expression-{name}"
    assert twinsolve.check(layer, X).correct


@pytest.mark.parametrize("renormalize", [False, True])
def test_both_readings_of_the_mixture_are_checked(renormalize):
    layer = SparseMixtureOfExperts(6, 4, 3, 3, renormalize=renormalize, dtype=torch.float64)
    assert twinsolve.check(layer, torch.randn(20, 6, dtype=torch.float64)).correct


def test_iterates_are_those_of_ista_with_the_steps_and_penalty_of_the_layer():
    """A layer that scales weights against steps is seen as the ISTA that it is."""
    for kind in ("lista", "coupled", "adaptive"):
        twin = TWINS[f"learned-ista-{kind}"]
        inputs = small_inputs(twin, torch.float64)
        layer = built(twin, inputs)
        assert twin.covers(layer)
        expected = solver_output(twin, layer, inputs)
        plain = copy.deepcopy(layer)
        plain.reset_parameters()
        assert np.abs(layer_output(twin, plain, inputs) - expected).max() > 1e-3
        assert not twin.covers(moved(copy.deepcopy(layer), 1e-6))


@pytest.mark.parametrize("name", [*UNROLLED, "unrolled-self-expression-rate"])
def test_relative_penalties_are_held_against_their_own_problem(name):
    twin = TWINS[name]
    inputs = small_inputs(twin, torch.float64)
    given = built(twin, inputs)
    relative = UnrolledSelfExpression(given.n_iter, 0.1, relative=True, features=given.features)
    assert twin.relation.measure(twin, relative.double(), inputs).passed
