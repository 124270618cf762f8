import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.sparse.linalg import ArpackNoConvergence
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import kneighbors_graph

from twinsolve.solvers import minimize_energy, nadaraya_watson, regularized_energy
from twinsolve.solvers.nonlocal_energy import (
    neutreno_fixed_point,
    neutreno_iteration,
    neutreno_lam_limit,
    neutreno_spectral_radius,
    spectrum,
)

from ...equations.nonlocal_energy.formulas import attention, eigenbasis, kernel, transition


def quietly(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return neutreno_iteration(*args, **kwargs)


def test_iteration_is_the_layer_nt_22_to_nt_26():
    A, f = attention(std=0.5)
    u = f
    run = neutreno_iteration(f, A, lam=0.6, n_iter=6, history=True)
    for k in range(7):
        assert_allclose(run.history["coef"][k], u, atol=1e-13)
        u = A @ u + 0.6 * (f - u)
    assert_allclose(run.history["coef"][1], A @ f, atol=1e-14)  # the term is 0 in layer 1
    assert_allclose(run.coef, run.history["coef"][-1])
    assert_allclose(run.history["gap"][-1], run.gap)


@pytest.mark.parametrize("form", ["dense", "sparse", "function"])
@pytest.mark.parametrize("lam", [0.05, 3.0])
def test_fixed_point_is_the_linear_solve_nt_fp(lam, form):
    A, f = attention(std=8.0)
    expected = lam * np.linalg.inv((1 + lam) * np.eye(8) - A) @ f
    forms = {"dense": A, "sparse": csr_array(A), "function": lambda u: A @ u}
    found = neutreno_fixed_point(f, forms[form], lam=lam, tol=1e-12)
    assert_allclose(found.coef, expected, atol=1e-10)
    assert found.converged.all()
    assert_allclose(A @ found.coef + lam * (f - found.coef), found.coef, atol=1e-10)


def test_fixed_point_minimises_the_degree_weighted_energy_nt_fp(K, tokens_of):
    f = tokens_of()
    found = neutreno_fixed_point(f, transition(K), lam=0.6, tol=1e-12).coef
    best = minimize_energy(f, K, lam=0.6, fidelity="degree", tol=1e-12).coef
    assert_allclose(found, best, atol=1e-10)


def test_constant_weight_is_not_the_energy_with_a_constant_weight_erratum_e2c():
    K = kernel(scale=1.2)
    d = K.sum(axis=1)
    f = np.random.default_rng(1).standard_normal((8, 2))
    best = minimize_energy(f, K, lam=0.6, fidelity="constant", tol=1e-12)
    A = transition(K)
    for lam in (0.6, 0.6 / d.mean(), 0.6 / d.min(), 0.6 / d.max()):
        other = neutreno_fixed_point(f, A, lam=lam).coef
        assert np.abs(other - best.coef).max() > 0.1
        assert regularized_energy(other, f, K, 0.6) > 1.01 * best.objective.sum()
    found = neutreno_fixed_point(f, A, lam=0.6 / d, tol=1e-12).coef
    assert_allclose(found, best.coef, atol=1e-10)


def test_range_of_lam_for_symmetric_weights_nt_conv(weights_of, kinds):
    for kind in kinds:
        K = weights_of(kind, 9)
        A, limit = transition(K), neutreno_lam_limit(K)
        mu = eigenbasis(K)[0]
        assert limit == pytest.approx(1 + mu[0], abs=1e-12)
        assert neutreno_lam_limit(csr_array(K)) == pytest.approx(limit, abs=1e-12)
        if kind in ("bipartite", "star", "path"):
            assert limit == pytest.approx(0, abs=1e-12)
            continue
        assert neutreno_spectral_radius(A, 0.98 * limit) < 1 - 1e-10
        assert neutreno_spectral_radius(A, 1.02 * limit) > 1 + 1e-10


def test_iterates_converge_below_the_limit_and_grow_above_nt_conv():
    K = np.ones((6, 6)) + 3 * np.eye(6)[::-1]
    A, limit = transition(K), neutreno_lam_limit(K)
    f = np.random.default_rng(0).standard_normal((6, 1))
    below = neutreno_iteration(f, A, lam=0.98 * limit, n_iter=4000)
    assert below.converged.all()
    with pytest.warns(ConvergenceWarning, match=r"diverges.* spectral radius 1\.0"):
        above = neutreno_iteration(f, A, lam=1.02 * limit, n_iter=4000)
    assert above.gap > 1e3


@given(seed=st.integers(0, 10**6), share=st.floats(0.01, 0.99), std=st.floats(0.1, 6.0))
def test_twice_the_least_self_weight_is_safe_for_any_a_nt_conv(seed, share, std):
    A, f = attention(6, std, seed)
    A = (A + 0.2 * np.eye(6)) / 1.2
    lam = share * 2 * A.diagonal().min()
    assert neutreno_spectral_radius(A, lam) < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        neutreno_iteration(f, A, lam=lam, n_iter=3)


def test_other_queries_diverge_the_more_the_larger_their_logits_erratum_e2d():
    """At lam = 0.6; the safe form never does."""
    shares = []
    for std in (0.25, 1.0, 2.0, 4.0):
        matrices = [attention(12, std, seed)[0] for seed in range(40)]
        shares.append(np.mean([neutreno_spectral_radius(A, 0.6) >= 1 for A in matrices]))
    assert shares[0] == 0
    assert (np.diff(shares) >= 0).all()
    assert shares[-1] > shares[1]
    for seed in range(40):
        A, f = attention(12, 4.0, seed)
        run = neutreno_iteration(f, A, lam=0.6, n_iter=60, relaxed=True)
        assert run.converged.all()


@pytest.mark.parametrize("n_iter", [1, 2, 500])
def test_divergence_is_never_silent_erratum_e2d(n_iter):
    A = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    f = np.array([[1.0], [0.0], [0.0]])
    for form in (A, csr_array(A), lambda u: A @ u):
        with pytest.warns(ConvergenceWarning, match=r"decrease lam or set relaxed=True"):
            found = neutreno_iteration(f, form, lam=0.6, n_iter=n_iter)
        assert not found.converged.any()
        safe = neutreno_iteration(f, form, lam=0.6, n_iter=60, relaxed=True)
        assert safe.converged.all()


def test_two_or_more_always_fails_erratum_e2e(K):
    """The constant tokens have the factor 1 - lam."""
    A, f = transition(K), np.full((9, 1), 2.0)
    f[0] = 1
    for lam in (2.0, 2.5):
        assert neutreno_spectral_radius(A, lam) >= lam - 1 - 1e-9
        with pytest.warns(ConvergenceWarning, match="diverges"):
            neutreno_iteration(f, A, lam=lam, n_iter=1)
    run = quietly(np.ones((9, 1)), A, lam=2.5, n_iter=1)
    assert_allclose(run.coef, 1)  # already its own fixed point
    error = quietly(f, A, lam=2.5, n_iter=80).coef - neutreno_fixed_point(f, A, lam=2.5).coef
    assert np.abs(error).max() > 1e3


@given(seed=st.integers(0, 10**6), lam=st.floats(0.05, 5.0), std=st.floats(0.0, 8.0))
def test_safe_form_contracts_for_any_a_nt_rel(seed, lam, std):
    A, f = attention(6, std, seed)
    best = neutreno_fixed_point(f, A, lam=lam, tol=1e-12).coef
    run = neutreno_iteration(f, A, lam=lam, n_iter=8, relaxed=True, history=True)
    errors = np.abs(run.history["coef"] - best).max(axis=(1, 2))
    assert (errors[1:] <= errors[:-1] / (1 + lam) + 1e-11).all()
    step = (A @ f + lam * f) / (1 + lam)
    assert_allclose(run.history["coef"][1], step, atol=1e-14)


def test_fused_fixed_point_needs_no_matrix_ff_3b():
    """Iterates of scaled dot-product attention, and of kernel regression, as functions."""
    rng = np.random.default_rng(0)
    q, k, f = (torch.tensor(rng.standard_normal((10, 4))) for _ in range(3))

    def attend(u):
        values = torch.as_tensor(u)[None, None]
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[None, None], k[None, None], values
        )
        return attended[0, 0].numpy()

    A = softmax(q.numpy() @ k.numpy().T / 2, axis=1)
    exact = neutreno_fixed_point(f.numpy(), A, lam=0.6, tol=1e-12).coef
    found = neutreno_fixed_point(f.numpy(), attend, lam=0.6, tol=1e-12)
    assert_allclose(found.coef, exact, atol=1e-10)
    X = rng.standard_normal((10, 2))
    smoothed = neutreno_fixed_point(
        f.numpy(), lambda u: nadaraya_watson(X, X, u, bandwidth=0.7), lam=0.6
    )
    assert smoothed.converged.all()


def test_spectral_radius_from_products_agrees_with_the_dense_one():
    rng = np.random.default_rng(0)
    G = csr_array(kneighbors_graph(rng.standard_normal((1200, 3)), 8, include_self=True))
    A = csr_array(G / G.sum(axis=1)[:, None])
    for lam in (0.1, 1.5):
        exact = np.abs(np.linalg.eigvals(A.toarray() - lam * np.eye(1200))).max()
        assert_allclose(neutreno_spectral_radius(A, lam), exact, rtol=1e-8)
    K = G + G.T
    mu = eigenbasis(K.toarray())[0]
    assert_allclose(neutreno_lam_limit(K), 1 + mu[0], atol=1e-8)
    assert_allclose(neutreno_lam_limit(K.toarray()), 1 + mu[0], atol=1e-10)


def test_divergence_of_large_walks_is_found_from_products_erratum_e2d(monkeypatch):
    n = 1200
    A = csr_array(0.1 * np.eye(n)[::-1] + 0.9 / n)
    f = np.random.default_rng(0).standard_normal((n, 1))
    for form in (A, lambda u: A @ u):
        with pytest.warns(ConvergenceWarning, match="diverges"):
            neutreno_iteration(f, form, lam=1.1, n_iter=1)
    lazy = csr_array(0.7 * np.eye(n) + 0.3 / n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        neutreno_iteration(f, lambda u: lazy @ u, lam=0.6, n_iter=1)

    def fail(*_, **__):
        raise ArpackNoConvergence("no", [], [])

    monkeypatch.setattr(spectrum, "eigs", fail)
    with pytest.warns(ConvergenceWarning, match="may diverge: .* was not found"):
        neutreno_iteration(f, lambda u: lazy @ u, lam=0.6, n_iter=1)


@pytest.mark.parametrize("form", ["dense", "sparse", "function"])
def test_no_false_certificate_at_tiny_weights(form):
    """Row sums that round by eps, and residuals that round to 0, say nothing at lam near eps."""
    A, f = np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([[0.0], [1.0]])
    pi = np.array([1, 2]) / 3
    forms = {"dense": A, "sparse": csr_array(A), "function": lambda u: A @ u}
    for lam in (1e-6, 1e-9, 1e-12, 1e-15, 1e-16, 1e-17, 1e-18, 1e-100, 1e-320):
        limit = 10 * pi[1] / (pi[0] + 10 * pi[1])  # as lam tends to 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = neutreno_fixed_point(f, forms[form], lam=[lam, 10 * lam], max_iter=50)
        error = np.abs(found.coef - limit).max()
        assert error <= found.gap[0] + 10 * lam
        assert not (found.converged[0] and lam < 1e-15)


def test_a_singular_factor_misses_the_tolerance_with_a_warning():
    A = np.array([[0.5, 0.5], [0.25, 0.75]])
    with pytest.warns(ConvergenceWarning, match="rounding errors limit it: increase lam or tol$"):
        found = neutreno_fixed_point([[0.0], [1.0]], A, lam=1e-18)
    assert not found.converged.any()


@pytest.mark.parametrize("share", [1.001, 1.5, 10.0])
def test_certificate_covers_row_sums_of_functions(share):
    slack = 1e-4
    A, f = np.full((2, 2), 0.5) * (1 + slack), np.array([[0.0], [1.0]])
    lam = share * slack
    best = lam * np.linalg.solve((1 + lam) * np.eye(2) - A, f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for n_iter in (1, 30, 1000, 30_000):
            found = neutreno_fixed_point(f, lambda u: A @ u, lam=lam, max_iter=n_iter)
            assert (np.abs(found.coef - best) <= found.gap * (1 + 1e-6)).all()
    for lam in (slack, 0.5 * slack):
        with pytest.raises(ValueError, match=r"^lam: must be larger than the error .* 0\.0001"):
            neutreno_fixed_point(f, lambda u: A @ u, lam=0.99 * lam)


def test_row_sums_of_matrices_are_made_one():
    """A float32 softmax cast to float64 passes, and the answer is that for rows of sum 1."""
    A, f = attention()
    cast = A.astype(np.float32).astype(np.float64)
    exact = cast / cast.sum(axis=1, keepdims=True)
    best = 1e-5 * np.linalg.solve((1 + 1e-5) * np.eye(8) - exact, f)
    for form in (cast, csr_array(cast)):
        found = neutreno_fixed_point(f, form, lam=1e-5, max_iter=10**7, tol=1e-6)
        assert_allclose(found.coef, best, atol=1e-5)
    assert_allclose(neutreno_fixed_point(f, cast, lam=1e-5).coef, best, atol=1e-8)
    for dtype, allowed in ((np.float64, 1e-6), (np.float32, 1.2e-4)):
        neutreno_iteration(f, ((1 + 0.8 * allowed) * A).astype(dtype), lam=0.1, n_iter=1)
        with pytest.raises(ValueError, match=r"^A: every row must sum to 1, but row \d+ is off by"):
            neutreno_iteration(f, ((1 + 1.3 * allowed) * A).astype(dtype), lam=0.1, n_iter=1)


def test_one_safe_token_does_not_make_the_rest_safe():
    A = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    with pytest.warns(ConvergenceWarning, match=r"spectral radius 1\.6;"):
        neutreno_iteration(np.eye(3), A, lam=0.6, n_iter=3)
    with pytest.warns(ConvergenceWarning, match=r"spectral radius 1;"):
        neutreno_iteration(np.eye(2), np.eye(2), lam=2.0, n_iter=3)


def test_causal_attention_has_its_diagonal_for_eigenvalues_nt_conv():
    for n in [12, 1200]:
        rng = np.random.default_rng(0)
        A = softmax(np.where(np.tri(n) > 0, rng.standard_normal((n, n)), -np.inf), axis=1)
        f = rng.standard_normal((n, 1))
        lam = rng.uniform(0.1, 0.9, n)
        for form in (A, A[::-1, ::-1], csr_array(A), np.asfortranarray(A)):
            assert neutreno_spectral_radius(form, 0.6) == pytest.approx(
                np.abs(A.diagonal() - 0.6).max(), rel=1e-14
            )
            neutreno_iteration(f, form, lam=0.6, n_iter=1)  # no warning
            with pytest.warns(ConvergenceWarning, match="diverges"):
                neutreno_iteration(f, form, lam=1.2, n_iter=1)
        if n < 100:
            exact = np.abs(np.linalg.eigvals(A - np.diag(lam))).max()
            assert neutreno_spectral_radius(A, lam) == pytest.approx(exact, rel=1e-6)


def test_the_check_of_larger_walks_agrees_with_the_exact_radius():
    """Around 1, where it decides; 300 tokens are beyond its dense eigenvalues."""
    rng = np.random.default_rng(0)
    A = softmax(rng.standard_normal((300, 300)), axis=1)
    assert neutreno_spectral_radius(A, 0.6) < 1
    low, high = 0.6, 2.0
    for _ in range(30):
        middle = (low + high) / 2
        radius = neutreno_spectral_radius(A, middle)
        low, high = (middle, high) if radius < 1 else (low, middle)
    f = rng.standard_normal((300, 1))
    neutreno_iteration(f, A, lam=low - 1e-6, n_iter=1)
    with pytest.warns(ConvergenceWarning, match=r"diverges: .* spectral radius 1;"):
        neutreno_iteration(f, A, lam=high + 1e-6, n_iter=1)


def test_tokens_that_overflow_are_refused():
    for form in (np.full((2, 2), 0.5), lambda u: u):
        for function in (neutreno_fixed_point, neutreno_iteration):
            more = {"n_iter": 1} if function is neutreno_iteration else {}
            with pytest.raises(ValueError, match=r"^f: entries up to 1e\+308 make"):
                function([[1e308], [-1e308]], form, lam=0.6, **more)
