"""Retrieval to a fixed point, each state by itself."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers.associative_memory import (
    hopfield_energy,
    retrieval_lipschitz_bound,
    retrieval_step,
    retrieve,
)

from ..differences import EPS

N, D = 7, 4


def draw(seed=0, n_states=5):
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal((n_states, D)), rng.standard_normal((N, D))


@pytest.mark.parametrize("beta", [0.2, 1.0, 8.0])
def test_retrieves_a_fixed_point_and_says_how_exactly(beta):
    xi, X = draw()
    found = retrieve(xi, X, beta=beta, tol=1e-10, max_iter=20_000)
    assert found.converged.all()
    largest = np.linalg.norm(X, axis=1).max()
    left = np.linalg.norm(retrieval_step(found.states, X, beta=beta).states - found.states, axis=1)
    assert_allclose(found.residual, left / largest, rtol=3 * D * EPS)
    assert found.residual.max() <= 1e-10
    assert (found.n_iter > 0).all()
    assert len(found.energy) == found.n_iter.max() + 1


@pytest.mark.parametrize("beta", [0.2, 1.0, 8.0])
def test_each_state_goes_its_own_way_and_stops_by_itself(beta):
    xi, X = draw()
    together = retrieve(xi, X, beta=beta, max_iter=20_000)
    for i, state in enumerate(xi):
        alone = retrieve(state[None], X, beta=beta, max_iter=20_000)
        assert together.n_iter[i] == alone.n_iter[0]
        expected = state[None]
        for k in range(alone.n_iter[0]):
            energy = hopfield_energy(expected, X, beta=beta)
            assert_allclose(alone.energy[k], energy, rtol=0, atol=1e3 * EPS)
            expected = retrieval_step(expected, X, beta=beta).states
        # Sums of one state and of several may be in another order, in each step.
        assert_allclose(alone.states, expected, rtol=0, atol=3 * N * EPS * alone.n_iter[0])
        assert_allclose(together.states[i], expected[0], rtol=0, atol=3e3 * N * EPS)
        stopped = together.energy[together.n_iter[i] :, i]
        assert_array_equal(stopped, stopped[0])


def test_the_smallest_of_k_steps_is_as_small_as_is_proved_hm_1():
    for seed in range(10):
        xi, X = draw(seed)
        start, smallest, beta = hopfield_energy(xi, X, beta=1.5), np.inf, 1.5
        for K in range(1, 30):
            xi, decrease = retrieval_step(xi, X, beta=beta)
            smallest = np.minimum(smallest, 2 * decrease)
            assert (smallest <= 2 * start / K).all()


def test_in_one_step_a_single_pattern_reaches_the_bound_on_steps_hm_1():
    xi, X = draw()
    start = hopfield_energy(xi, X[:1], beta=1.5)
    first = 2 * retrieval_step(xi, X[:1], beta=1.5).decrease
    assert_allclose(first, 2 * start, rtol=3 * D * D * EPS)


def test_below_a_lipschitz_constant_of_one_all_states_have_one_limit_hm_1():
    xi, X = draw()
    beta = 0.5 / retrieval_lipschitz_bound(X, beta=1.0)
    found = retrieve(xi, X, beta=beta, tol=1e-12)
    # A residual of tol leaves tol / (1 - 1/2) M to the limit, of either of two states.
    limit = 4e-12 * np.linalg.norm(X, axis=1).max()
    assert_allclose(found.states, found.states[:1].repeat(5, axis=0), rtol=0, atol=3 * limit)
    # The error halves in each step at least.
    assert (
        found.n_iter.max() <= np.log2(np.linalg.norm(xi - found.states, axis=1).max() / 1e-12) + 2
    )


def test_separated_patterns_are_retrieved_from_near_them():
    X = np.eye(4)
    found = retrieve(X + 0.1, X, beta=30.0)
    # exp(-30) of each other pattern is left.
    assert_allclose(found.states, X, rtol=0, atol=3 * 3 * np.exp(-30 * 0.9))
    assert found.energy[-1].max() < 0.1


def test_a_state_that_does_not_converge_is_told():
    xi, X = draw()
    with pytest.warns(ConvergenceWarning, match=r"retrieve: 5 of 5 states did not reach tol=1e-08"):
        found = retrieve(xi, X, beta=1.0, max_iter=1)
    assert not found.converged.any()
    assert_array_equal(found.n_iter, np.ones(5))
    assert_allclose(found.states, retrieval_step(xi, X, beta=1.0).states, rtol=0, atol=0)


def test_patterns_of_zero_are_retrieved_at_once_and_the_arguments_stay():
    xi, _ = draw()
    kept = xi.copy()
    found = retrieve(xi, np.zeros((3, D)), beta=1.0)
    assert not found.states.any()
    assert found.converged.all()
    assert_array_equal(found.n_iter, np.ones(5))
    assert_array_equal(xi, kept)
