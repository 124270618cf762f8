"""The problem that a layer effectively solves."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

import twinsolve
from twinsolve.solvers import least_squares_self_expression, smoother_matrix, sparse_self_expression
from twinsolve.twins import fit_origin
from twinsolve.unrolled import (
    ALiBi,
    Attention,
    Bilateral,
    Gaussian,
    Linear,
    LowRank,
    Ridge,
    Softmax,
    Solved,
    SparseCoding,
    UnrolledADMM,
    UnrolledSelfExpression,
)


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((24, 6))


def trained(layer, factor):
    """The layer with learnable parameters moved away from their initial values."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "step" not in name:
                parameter.add_(float(np.log(factor)))
    return layer


@pytest.mark.parametrize("factor", [0.3, 1.0, 5.0])
def test_a_layer_at_known_parameters_is_recovered(X, factor):
    layer = Ridge(0.8, zero_diagonal=True, learnable=True).double()
    origin = fit_origin(trained(layer, factor), X)
    assert origin.parameters["lam"] == pytest.approx([0.8 * factor], rel=1e-4)
    assert origin.distance < 1e-4
    assert (origin.initial_distance > 0.01) == (factor != 1.0)


def test_few_iterations_leave_a_distance_that_no_penalty_explains(X):
    layer = SparseCoding(0.5, n_iter=3, zero_diagonal=True, learnable=True).double()
    origin = fit_origin(trained(layer, 4.0), X)
    assert 0.01 < origin.distance < origin.initial_distance
    solved = sparse_self_expression(X, lam=origin.parameters["lam"][0]).coef.toarray()
    C = layer.matrix(*2 * [torch.from_numpy(X)]).detach().numpy()
    found = np.linalg.norm(C - solved) / np.linalg.norm(C)
    assert found == pytest.approx(origin.distance, abs=1e-5)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = sparse_self_expression(X, lam=factor * origin.parameters["lam"][0]).coef.toarray()
        assert np.linalg.norm(C - other) / np.linalg.norm(C) > origin.distance


def test_heads_are_fitted_apart_and_shells_through_their_projections(X):
    layer = Attention(6, 2, operator=Gaussian(1.0, num_heads=2, learnable=True)).double()
    with torch.no_grad():
        layer.operator.bandwidth.log.copy_(torch.tensor([0.7, 2.0]).log().view(2, 1, 1))
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    origin = twinsolve.fit_origin(layer, X)
    assert origin.parameters["bandwidth"] == pytest.approx((0.7, 2.0), rel=1e-4)
    assert all((x == before[name]).all() for name, x in layer.state_dict().items())


def test_attention_of_pytorch_is_softmax_of_its_projections(X):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 2, dropout=0.1)
    origin = fit_origin(layer, X)
    assert origin.twin == "softmax-attention"
    assert origin.parameters["scale"] == pytest.approx(2 * (3**-0.5,), rel=1e-4)
    assert origin.distance < 1e-5
    assert layer.training


def test_what_has_no_coefficients_says_where_to_get_some(X):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1)
    with pytest.raises(TypeError, match="pass one of its attention modules"):
        fit_origin(encoder, X)
    assert fit_origin(encoder.layers[0].self_attn, X).fits
    with pytest.raises(ValueError, match="pass one sequence of a batch"):
        fit_origin(Gaussian(1.0), X[None])


def test_any_coefficients_are_held_against_a_family(X):
    C = smoother_matrix(X, X, bandwidth=1.6)
    origin = fit_origin(C, X, problem=Gaussian(2.0))
    assert origin.parameters["bandwidth"] == pytest.approx([1.6], rel=1e-4)
    other = fit_origin(C, X, problem=Ridge(2.0))
    assert other.distance > origin.distance
    layer = Softmax(scale=1.6**-2).double()
    assert fit_origin(layer, X, problem=Gaussian(2.0)).distance > 0.01


def test_coefficients_alone_are_ranked_by_family(X):
    C = sparse_self_expression(X, lam=2.0, tol=1e-11).coef
    origin = fit_origin(C, X)
    assert origin.twin == "self-expression-iterates"
    assert origin.parameters["lam"] == pytest.approx([2.0], rel=1e-4)
    distances = [origin.distance, *(other.distance for other in origin.others)]
    assert distances == sorted(distances)
    families = {(other.family, *other.parameters) for other in origin.others}
    assert {("kernel_smoothing", "bandwidth"), ("self_expression", "lam")} <= families
    assert len(str(origin).splitlines()) == 8


def test_given_problems_are_ranked(X):
    C = least_squares_self_expression(X, lam=0.8)
    origin = fit_origin(C, X, problem=[Gaussian(1.0), Ridge(1.0)])
    assert origin.twin == "ridge-self-expression"
    assert [other.twin for other in origin.others] == ["gaussian-attention"]
    assert replace(origin, others=()) == fit_origin(C, X, problem=Ridge(1.0))


@pytest.mark.parametrize(
    ("C", "problem", "name"),
    [
        (np.eye(24), Gaussian(1.0), "bandwidth"),
        (np.zeros((24, 24)), SparseCoding(1.0, zero_diagonal=True), "lam"),
    ],
    ids=["identity", "zero"],
)
def test_what_no_value_in_the_search_determines_is_said(X, C, problem, name):
    origin = fit_origin(C, X, problem=problem)
    assert origin.at_edge == (name,)
    assert f"{name} is NOT DETERMINED" in str(origin)
    assert 0.99e-3 <= origin.parameters[name][0] <= 1.01e3
    determined = fit_origin(smoother_matrix(X, X, bandwidth=1.6), X, problem=Gaussian(2.0))
    assert determined.at_edge == ()
    assert "DETERMINED" not in str(determined)


def test_the_start_may_be_decades_away(X):
    """There all codes are zero, and nothing says which way is downhill."""
    C = sparse_self_expression(X, lam=2.0, tol=1e-11).coef.toarray()
    origin = fit_origin(C, X, problem=SparseCoding(700.0, zero_diagonal=True))
    assert origin.initial_distance == 1
    assert origin.distance < 1e-4
    assert origin.parameters["lam"] == pytest.approx([2.0], rel=1e-4)


def test_only_the_reported_problems_warn(X, monkeypatch):
    far = X + 1e4  # rounding limits the solutions at the smallest penalties
    C = sparse_self_expression(far, lam=3e4, tol=1e-11).coef
    problem = SparseCoding(100.0, zero_diagonal=True)
    assert fit_origin(C, far, problem=problem).parameters["lam"] == pytest.approx([3e4], rel=1e-3)

    def solve(twin, layer, call):
        warnings.warn(f"lam = {layer.lam().item():.3g}", ConvergenceWarning, stacklevel=1)
        return least_squares_self_expression(call.q, lam=layer.lam().item())

    monkeypatch.setattr("twinsolve.twins.judging.origin._solve_coefficients", solve)
    with pytest.warns(ConvergenceWarning) as said:
        origin = fit_origin(least_squares_self_expression(X, lam=2.0), X, problem=Ridge(1.0))
    assert origin.parameters["lam"] == pytest.approx([2], rel=1e-4)
    assert [str(warning.message) for warning in said] == ["lam = 2", "lam = 1"]


def test_bad_input_is_named(X):
    with pytest.raises(ValueError, match="problem: must be a layer such as"):
        fit_origin(np.eye(24), X, problem=1.0)
    with pytest.raises(ValueError, match="problem: must hold at least one layer"):
        fit_origin(np.eye(24), X, problem=[])
    with pytest.raises(LookupError, match="no twin of Linear has parameters to fit"):
        fit_origin(np.eye(24), X, problem=Linear())
    with pytest.raises(ValueError, match="coefficients: must have shape"):
        fit_origin(np.eye(3), X, problem=Ridge(1.0))
    with pytest.raises(ValueError, match="coefficients: must not hold NaN"):
        fit_origin(np.full((24, 24), np.nan), X, problem=Ridge(1.0))


def iterated(layer, n_iter):
    layer.n_iter = n_iter
    return layer


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Gaussian(3.0, learnable=True), "bandwidth"),
        (lambda: LowRank(0.8, learnable=True), "lam"),
        (lambda: Bilateral(float("inf"), 3.0, distances=True, learnable=True), "token_bandwidth"),
        (lambda: ALiBi(2, learnable=True), "relative_slope"),
        (lambda: UnrolledADMM(2000, 0.1), "lam"),
        (lambda: iterated(UnrolledSelfExpression(1, 1.0), 20_000), "lam"),
        (lambda: Solved(SparseCoding(1.0, learnable=True), tol=1e-10), "base.lam"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_parameters_of_every_kind_are_recovered(X, make, name):
    layer, factor = make().double(), 2.5
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if "step" not in key and "threshold" not in key:
                parameter.add_(float(np.log(factor)))
    owner = layer.base if name.startswith("base") else layer
    held = getattr(owner, name.rpartition(".")[2])
    value = float((held[0] if isinstance(held, nn.ModuleList) else held)().detach().max())
    origin = fit_origin(layer, X)
    np.testing.assert_allclose(origin.parameters[name], value, rtol=1e-3)
    assert origin.distance < 1e-3
    assert origin.fits


def test_where_no_problem_of_the_family_fits_it_is_said(X):
    C = least_squares_self_expression(X, lam=0.8)
    good = fit_origin(C, X, problem=Ridge(1.0))
    assert good.fits
    assert "NO problem" not in str(good)
    rng = np.random.default_rng(1)
    for wrong in (-C, C[rng.permutation(24)], rng.standard_normal((24, 24))):
        for family in (Ridge(1.0), Gaussian(1.0)):
            origin = fit_origin(wrong, X, problem=family)
            assert not origin.fits
            assert "NO problem of this family fits" in str(origin)
    assert origin.distance <= origin.initial_distance
