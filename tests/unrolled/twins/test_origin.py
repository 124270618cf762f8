import numpy as np
import pytest
import torch

import twinsolve
from twinsolve.solvers import smoother_matrix, sparse_self_expression
from twinsolve.unrolled import Attention, Gaussian, LowRank, Ridge, Softmax, SparseCoding
from twinsolve.unrolled.twins import fit_origin


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


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Gaussian(3.0, learnable=True), "bandwidth"),
        (lambda: Ridge(0.8, learnable=True), "lam"),
        (lambda: Ridge(0.8, zero_diagonal=True, learnable=True), "lam"),
        (lambda: LowRank(0.8, learnable=True), "lam"),
    ],
)
@pytest.mark.parametrize("factor", [0.3, 1.0, 5.0])
def test_a_layer_at_known_parameters_is_recovered(X, make, name, factor):
    layer = make().double()
    initial = getattr(layer, name).initial
    origin = fit_origin(trained(layer, factor), X)
    assert origin.parameters[name] == pytest.approx([initial * factor], rel=1e-4)
    assert origin.distance < 1e-4
    assert (origin.initial_distance > 0.01) == (factor != 1.0)


def test_converged_sparse_attention_is_recovered(X):
    layer = SparseCoding(0.5, n_iter=20_000, zero_diagonal=True, learnable=True).double()
    origin = fit_origin(trained(layer, 4.0), X)
    assert origin.parameters["lam"] == pytest.approx([2.0], rel=1e-3)
    assert origin.distance < 1e-3
    assert origin.twin == "self-expression-iterates"


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


def test_any_coefficients_are_held_against_a_family(X):
    C = smoother_matrix(X, X, bandwidth=1.6)
    origin = fit_origin(C, X, problem=Gaussian(2.0))
    assert origin.parameters["bandwidth"] == pytest.approx([1.6], rel=1e-4)
    other = fit_origin(C, X, problem=Ridge(2.0))
    assert other.distance > origin.distance
    layer = Softmax(scale=1.6**-2).double()
    assert fit_origin(layer, X, problem=Gaussian(2.0)).distance > 0.01


def test_the_start_may_be_decades_away(X):
    """There all codes are zero, and nothing says which way is downhill."""
    C = sparse_self_expression(X, lam=2.0, tol=1e-11).coef.toarray()
    origin = fit_origin(C, X, problem=SparseCoding(700.0, zero_diagonal=True))
    assert origin.initial_distance == 1
    assert origin.distance < 1e-4
    assert origin.parameters["lam"] == pytest.approx([2.0], rel=1e-4)


def test_zero_coefficients_are_those_of_a_large_penalty(X):
    origin = fit_origin(np.zeros((24, 24)), X, problem=SparseCoding(1.0, zero_diagonal=True))
    assert origin.distance == 0


def test_bad_input_is_named(X):
    with pytest.raises(ValueError, match="problem: coefficients need a layer"):
        fit_origin(np.eye(24), X)
    with pytest.raises(ValueError, match="bandwidth: must be given to Gaussian"):
        fit_origin(Gaussian(), X)
    with pytest.raises(LookupError, match="no twin of Softmax says"):
        fit_origin(Softmax(), X)
    with pytest.raises(ValueError, match="X: must be"):
        fit_origin(Gaussian(1.0), X[0])
    with pytest.raises(ValueError, match="NaN"):
        fit_origin(Gaussian(1.0), np.full((4, 2), np.nan))
    with pytest.raises(ValueError, match="coefficients: must have shape"):
        fit_origin(np.eye(3), X, problem=Ridge(1.0))
    with pytest.raises(ValueError, match="coefficients: must not hold NaN"):
        fit_origin(np.full((24, 24), np.nan), X, problem=Ridge(1.0))
