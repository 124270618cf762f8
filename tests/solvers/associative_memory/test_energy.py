"""The energy of a memory, its gradient, and bounds on a step of retrieval."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import nadaraya_watson
from twinsolve.solvers.associative_memory import (
    hopfield_energy,
    retrieval_error_bound,
    retrieval_lipschitz_bound,
    retrieval_step,
)

from ..differences import EPS, assert_gradient

N, D = 7, 4
BETAS = [0.1, 1.0, 8.0]


def draw(seed=0, n_states=5):
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal((n_states, D)), rng.standard_normal((N, D))


def rounding(xi, X, beta):
    """Of energies: three times that of their largest term, which sums D products."""
    return 3 * D * EPS * (np.abs(xi).max() + np.abs(X).max()) ** 2 * D + 3 * EPS * np.log(N) / beta


@pytest.mark.parametrize("beta", BETAS)
def test_the_energy_is_what_it_says_and_never_negative_hm_1(beta):
    xi, X = draw()
    found = hopfield_energy(xi, X, beta=beta)
    largest = max(x @ x for x in X)
    for state, energy in zip(xi, found, strict=True):
        lse = np.log(sum(np.exp(beta * x @ state) for x in X)) / beta
        expected = -lse + state @ state / 2 + np.log(N) / beta + largest / 2
        assert energy == pytest.approx(expected, rel=0, abs=rounding(xi, X, beta))
    assert found.min() > 0
    # One pattern: it is the minimum, and has no energy.
    assert abs(hopfield_energy(X[:1], X[:1], beta=beta)[0]) <= rounding(xi, X, beta)


@pytest.mark.parametrize("beta", BETAS)
def test_a_step_is_a_gradient_step_of_length_one_and_attention_hm_1(beta):
    xi, X = draw()
    after, decrease = retrieval_step(xi, X, beta=beta)
    assert_gradient(lambda s: hopfield_energy(s, X, beta=beta).sum(), xi, xi - after)
    assert_allclose(decrease, ((after - xi) ** 2).sum(axis=1) / 2, rtol=3 * D * EPS)
    # Of equal norms, regression with a Gaussian kernel. The logits carry their rounding.
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    expected = nadaraya_watson(xi, X, X, bandwidth=beta**-0.5)
    logits = beta * np.abs(xi).max() * D
    found, _ = retrieval_step(xi, X, beta=beta)
    assert_allclose(found, expected, rtol=0, atol=3 * EPS * (N + 4 * logits))


@pytest.mark.parametrize("beta", [1e-15, 1e-9, 1e-3])
def test_a_small_beta_costs_no_digits(beta):
    """Its energy tends to that of the mean pattern, with the error ``beta diam^2 / 8`` at most."""
    xi, X = draw()
    limit = (xi**2).sum(axis=1) / 2 - xi @ X.mean(axis=0) + (X**2).sum(axis=1).max() / 2
    spread = np.ptp(xi @ X.T, axis=1)
    error = np.abs(hopfield_energy(xi, X, beta=beta) - limit)
    assert (error <= beta * spread**2 / 8 + 3 * rounding(xi, X, 1.0)).all()


@pytest.mark.parametrize("beta", BETAS)
def test_the_energy_falls_by_half_of_the_squared_step_hm_1(beta):
    for seed in range(20):
        xi, X = draw(seed)
        after, decrease = retrieval_step(xi, X, beta=beta)
        fallen = hopfield_energy(xi, X, beta=beta) - hopfield_energy(after, X, beta=beta)
        assert (decrease <= fallen + rounding(xi, X, beta)).all()


def test_for_a_single_pattern_the_decrease_is_all_there_is_hm_1():
    xi, X = draw()
    _, decrease = retrieval_step(xi, X[:1], beta=2.0)
    energy = hopfield_energy(xi, X[:1], beta=2.0)
    assert_allclose(decrease, energy, rtol=0, atol=rounding(xi, X, 2.0))


def test_steps_bring_states_together_by_the_lipschitz_bound_at_most_hm_1():
    for seed in range(20):
        xi, X = draw(seed)
        bound = retrieval_lipschitz_bound(X, beta=0.7)
        others = xi + np.random.default_rng(seed).standard_normal(xi.shape)
        moved = retrieval_step(xi, X, beta=0.7).states - retrieval_step(others, X, beta=0.7).states
        ratio = np.linalg.norm(moved, axis=1) / np.linalg.norm(xi - others, axis=1)
        assert ratio.max() <= bound
    assert bound == pytest.approx(0.7 / 4 * max(((a - b) ** 2).sum() for a in X for b in X))


def test_the_lipschitz_bound_is_reached_between_two_patterns_hm_1():
    _, X = draw()
    middle, direction = X[:2].mean(axis=0), X[0] - X[1]
    middle = middle - (middle @ direction) / (direction @ direction) * direction
    h = 1e-4 / np.linalg.norm(direction)
    states = np.stack([middle + h * direction, middle - h * direction])
    after, _ = retrieval_step(states, X[:2], beta=0.7)
    slope = np.linalg.norm(after[0] - after[1]) / np.linalg.norm(states[0] - states[1])
    # tanh loses a third of its squared argument, and the difference its rounding over 2h.
    argument = 0.7 * h * direction @ direction / 2
    tolerance = argument**2 + 3 * EPS * D / h
    assert slope == pytest.approx(retrieval_lipschitz_bound(X[:2], beta=0.7), rel=tolerance)


@pytest.mark.parametrize("beta", BETAS)
def test_a_step_misses_a_pattern_by_what_is_proved_hm_2(beta):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((N, D))
        X /= np.linalg.norm(X, axis=1, keepdims=True) * rng.uniform(1, 1.1, (N, 1))
        xi = X + 0.05 * rng.standard_normal(X.shape)
        missed = np.linalg.norm(retrieval_step(xi, X, beta=beta).states[:, None] - X, axis=2)
        bound = retrieval_error_bound(xi, X, beta=beta)
        M = np.linalg.norm(X, axis=1).max()
        for i, x in enumerate(X):
            D_i = min(x @ (x - other) for j, other in enumerate(X) if j != i)
            near = np.linalg.norm(xi - x, axis=1)
            expected = 2 * M * (N - 1) * np.exp(-beta * (D_i - 2 * M * near))
            # The exponent is a difference of products of D terms.
            assert_allclose(bound[:, i], expected, rtol=3 * EPS * D * (1 + 4 * beta * M**2))
        assert (missed <= bound + 3 * N * EPS * M).all()


@pytest.mark.parametrize("beta", [0.1, 1.0, 8.0])
def test_opposite_patterns_come_within_a_factor_of_two_of_the_bound_hm_2(beta):
    x = np.array([[0.6, 0.8]])
    X = np.vstack([x, -x])
    missed = np.linalg.norm(retrieval_step(x, X, beta=beta).states - x)
    share = missed / retrieval_error_bound(x, X, beta=beta)[0, 0]
    # What is missed is 1 - tanh(beta), which a difference of numbers near 1 gives to their eps.
    loss = 3 * EPS * D * np.exp(2 * beta)
    assert share == pytest.approx(1 / (1 + np.exp(-2 * beta)), rel=loss)
    assert 0.5 <= share <= 1 + loss


def test_a_pattern_alone_is_always_retrieved_and_a_bound_may_overflow():
    assert retrieval_error_bound([[5.0]], [[1.0]], beta=3.0)[0, 0] == 0
    assert retrieval_error_bound([[-5.0]], [[1.0], [-1.0]], beta=300.0)[0, 0] == np.inf
    with pytest.raises(ValueError, match=r"^states: has 3 columns, but 2 are needed"):
        hopfield_energy([[1.0, 2.0, 3.0]], [[1.0, 2.0]], beta=1.0)
