import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.linalg import expm
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers import minimize_energy, regularized_energy
from twinsolve.solvers.nonlocal_energy import (
    energy_gradient,
    exact_gradient_flow,
    flow,
    gradient_flow,
)

FIDELITIES = ("constant", "degree")


def curvature(K, lam, fidelity):
    d = K.sum(axis=1)
    return (2 * (d - np.diag(K)) + lam * (d if fidelity == "degree" else 1)).max()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_steps_follow_the_negative_gradient_nt_21(K, fidelity, tokens_of):
    f, lam, step = tokens_of(), 0.4, 1e-3 / K.max()
    u = f
    run = gradient_flow(f, K, lam=lam, fidelity=fidelity, n_iter=4, step=step, history=True)
    for k in range(5):
        assert_allclose(run.history["coef"][k], u, rtol=1e-12)
        value = regularized_energy(u, f, K, lam, fidelity=fidelity)
        assert run.history["objective"][k].sum() == pytest.approx(value, rel=1e-9)
        u = u - step * energy_gradient(u, f, K, lam, fidelity=fidelity)
    assert_allclose(run.history["gap"][-1], run.gap)


@given(seed=st.integers(0, 10**6), share=st.floats(0.01, 1.0), fidelity=st.sampled_from(FIDELITIES))
def test_energy_never_increases_up_to_the_step_bound_nt_21(
    kinds, weights_of, tokens_of, seed, share, fidelity
):
    K, f = weights_of(kinds[seed % len(kinds)], 7, seed), tokens_of(7, 3, seed)
    step = share * 2 / curvature(K, 0.3, fidelity)
    run = gradient_flow(f, K, lam=0.3, fidelity=fidelity, n_iter=30, step=step, history=True)
    energies = run.history["objective"]
    # Rounding errors of a sum of terms d_i u_i^2, d without loops.
    rounding = 1e-14 * (K - np.diag(np.diag(K))).sum() * (f**2).max(axis=0)
    assert (np.diff(energies, axis=0) <= rounding).all()


def test_a_longer_step_than_the_bound_can_diverge_and_the_gap_says_so():
    """On a pair of tokens the bound is the largest eigenvalue, so no larger one would do."""
    K, f = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0], [-1.0]])
    bound = 2 / curvature(K, 0.5, "constant")
    with pytest.warns(ConvergenceWarning, match="energy increases with step=0.816.* at most 0.8$"):
        run = gradient_flow(f, K, lam=0.5, n_iter=20, step=1.02 * bound, history=True)
    assert (np.diff(run.history["objective"][1:], axis=0) > 0).all()
    with pytest.warns(ConvergenceWarning, match="energy increases"):
        lost = gradient_flow(f, K, lam=0.5, n_iter=10**4, step=2 * bound)
    assert not np.isfinite(lost.coef).any()
    assert not lost.converged.any()
    assert gradient_flow(f, K, lam=0.5, n_iter=2000, step=0.98 * bound).converged.all()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_the_default_step_is_half_the_bound(K, fidelity, tokens_of):
    f, step = tokens_of(), 1 / curvature(K, 0.3, fidelity)
    runs = [gradient_flow(f, K, lam=0.3, fidelity=fidelity, n_iter=1, step=s) for s in (None, step)]
    assert_allclose(runs[0].coef, runs[1].coef, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_exact_flow_is_the_matrix_exponential_nt_21(fidelity, tokens_of):
    """Of the augmented linear system ``du/dt = -H u + W f``, which knows no minimiser."""
    rng = np.random.default_rng(0)
    K, f, lam, time = rng.random((6, 6)), tokens_of(6), 0.3, 0.7
    K = K + K.T
    d = K.sum(axis=1)
    w = lam * (d if fidelity == "degree" else np.ones(6))
    for c in range(3):
        system = np.zeros((7, 7))
        system[:6, :6] = -(np.diag(d + w) - K)
        system[:6, 6] = w * f[:, c]
        expected = (expm(time * system) @ np.append(f[:, c], 1))[:6]
        for form in (K, csr_array(K)):
            found = exact_gradient_flow(f, form, lam=lam, time=time, fidelity=fidelity)
            assert_allclose(found[:, c], expected, atol=1e-10)


def test_flow_starts_at_the_tokens_and_ends_at_the_minimiser(K, tokens_of):
    f, K = tokens_of(), K / K.sum(axis=1).max()
    assert_allclose(exact_gradient_flow(f, K, lam=0.5, time=0), f, atol=1e-10)
    end = exact_gradient_flow(f, K, lam=0.5, time=100.0)
    assert_allclose(end, minimize_energy(f, K, lam=0.5, tol=1e-12).coef, atol=1e-10)
    nothing = gradient_flow(f, np.zeros((9, 9)), lam=0.5, fidelity="degree", n_iter=3)
    assert_allclose(nothing.coef, f)


def test_stiff_flows_reach_the_minimiser_at_once():
    """Work that grows with time times the degrees would take minutes."""
    for K in (1e9 * np.ones((3, 3)), csr_array(1e9 * np.ones((3, 3)))):
        found = exact_gradient_flow([[1.0], [0.0], [0.0]], K, lam=0.5, time=1e3)
        assert_allclose(found, 1 / 3, atol=1e-6)
    nothing = exact_gradient_flow([[1.0], [3.0]], np.zeros((2, 2)), lam=0.5, time=2.0)
    assert_allclose(nothing, [[1.0], [3.0]], rtol=1e-15)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_eigenvectors_and_products_move_alike(fidelity, tokens_of, weights_of, monkeypatch):
    for kind in ("sparse", "path", "gram"):
        K, f = weights_of(kind), tokens_of()
        direct = exact_gradient_flow(f, K, lam=0.3, time=0.7, fidelity=fidelity)
        with monkeypatch.context() as patch:
            patch.setattr(flow, "_SMALL", 0)
            moved = exact_gradient_flow(f, K, lam=0.3, time=0.7, fidelity=fidelity)
        assert_allclose(direct, moved, atol=1e-11)
