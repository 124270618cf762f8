from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.special import softmax

from twinsolve.solvers import regularized_energy, smoothness
from twinsolve.solvers.nonlocal_energy import energy_gradient, smoothness_gradient
from twinsolve.solvers.nonlocal_energy.differences import weighted_differences

from ...equations.nonlocal_energy.formulas import fitted_asymmetry

FIDELITIES = ("constant", "degree")


def directed(n=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, n)), rng.standard_normal((n, 3)), rng.standard_normal((n, 3))


def test_functionals_are_sums_over_directed_weights_nt_5():
    k, u, f = directed()
    J = (k * ((u[:, None] - u) ** 2).sum(axis=-1)).sum() / 2
    assert_allclose(smoothness(u, k + k.T), J, rtol=1e-13)
    for fidelity, weights in [("constant", 1), ("degree", k.sum(axis=1) + k.sum(axis=0))]:
        found = regularized_energy(u, f, k + k.T, 0.7, fidelity=fidelity)
        expected = J + 0.35 * (weights * ((u - f) ** 2).sum(axis=1)).sum()
        assert_allclose(found, expected, rtol=1e-13)


def test_smoothness_keeps_its_relative_accuracy_on_flat_tokens():
    """Two far-off groups of equal tokens: only one tiny edge counts, and no rounding error."""
    K = np.ones((6, 6))
    K[:3, 3:] = K[3:, :3] = 0
    K[0, 5] = K[5, 0] = 1e-12
    u = np.repeat([[1e6], [1e6 + 0.5]], 3, axis=0)
    for matrix in (K, csr_array(K)):
        assert_allclose(smoothness(u, matrix), 0.5 * 1e-12 * 0.25, rtol=1e-14)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_gradient_is_autograd_s_nt_8_nt_21(fidelity):
    k, u, f = directed()
    K = k + k.T
    v = torch.tensor(u, requires_grad=True)
    differences = ((v[:, None] - v[None]) ** 2).sum(-1)
    J = (torch.tensor(k) * differences).sum() / 2
    w = torch.tensor(np.ones(6) if fidelity == "constant" else K.sum(axis=1))
    E = J + 0.35 * (w[:, None] * (v - torch.tensor(f)) ** 2).sum()
    (expected,) = torch.autograd.grad(J, v, retain_graph=True)
    assert_allclose(smoothness_gradient(u, K), expected, atol=1e-12)
    (expected,) = torch.autograd.grad(E, v)
    assert_allclose(energy_gradient(u, f, K, 0.7, fidelity=fidelity), expected, atol=1e-12)


@given(seed=st.integers(0, 10**6))
def test_attention_is_a_gradient_step_iff_logits_are_symmetric_plus_offsets_nt_14(seed):
    rng = np.random.default_rng(seed)
    S, rows, columns = rng.standard_normal((6, 6)), rng.standard_normal((6, 1)), rng.random(6)
    S = S + S.T
    logits = S + rows + columns
    assert fitted_asymmetry(logits) < 1e-12
    K = np.exp(S + columns[:, None] + columns)
    v = rng.standard_normal((6, 2))
    found = v - smoothness_gradient(v, K) / K.sum(axis=1, keepdims=True)
    assert_allclose(found, softmax(logits, axis=1) @ v, atol=1e-12)
    q, k = rng.standard_normal((2, 6, 6))
    assert fitted_asymmetry(q @ k.T) > 1e-3


def test_asymmetric_gradient_is_no_gradient_erratum_e2b():
    """With k_ij = exp(q_i.k_j) the gradient of J sums k_ij + k_ji; the one-sided sum is a field
    whose Jacobian is not symmetric, so it is the gradient of nothing."""
    rng = np.random.default_rng(0)
    q, keys = rng.standard_normal((2, 6, 3))
    k, v = np.exp(q @ keys.T), rng.standard_normal((6, 1))

    def one_sided(u):
        return np.stack([sum(k[i, j] * (u[i] - u[j]) for j in range(6)) for i in range(6)])

    jacobian = np.hstack([one_sided(column[:, None]) for column in np.eye(6)])
    assert np.abs(jacobian - jacobian.T).max() > 0.1
    hessian = np.hstack([smoothness_gradient(e[:, None], k + k.T) for e in np.eye(6)])
    assert_allclose(hessian, hessian.T, atol=1e-13)
    assert np.abs(one_sided(v) - smoothness_gradient(v, k + k.T)).max() > 0.1
    # What attention does is the one-sided step (NT-14).
    attention = softmax(q @ keys.T, axis=1) @ v
    assert_allclose(attention - v, -one_sided(v) / k.sum(axis=1, keepdims=True), atol=1e-13)


def test_attention_with_other_queries_can_increase_j_erratum_e2a():
    """Token 2 attends strongly to token 3, which alone attends, weakly, to the odd token 1."""
    logits = np.array([[0.0, -20.0, -20.0], [-20.0, -20.0, 0.0], [-10.0, -20.0, -20.0]])
    k, v = np.exp(logits), np.array([[1.0], [0.0], [0.0]])  # queries: logits, keys: identity
    attended = softmax(logits, axis=1) @ v
    assert smoothness(attended, k + k.T) > 1e4 * smoothness(v, k + k.T)
    K = np.exp((logits + logits.T) / 2)
    symmetric = softmax((logits + logits.T) / 2, axis=1) @ v
    assert smoothness(symmetric, K) < smoothness(v, K)


def test_gradient_cosine_is_one_for_shared_keys_nt_t4_erratum_e2f():
    q, k, v = np.random.default_rng(0).standard_normal((3, 7, 4))
    shared = smoothness_gradient(v, np.exp(k @ k.T / 2))

    def cosine(q):
        K = np.exp(q @ k.T / 2)
        own = K.sum(axis=1, keepdims=True) * v - K @ v
        norms = np.linalg.norm(shared, axis=1) * np.linalg.norm(own, axis=1)
        return ((shared * own).sum(axis=1) / norms).mean()

    assert cosine(q) < 0.98
    assert_allclose(cosine(k), 1, atol=1e-14)


def test_weights_that_round_are_averaged_nt_8():
    """The gradient is that of the symmetric part of K, for it alone is the gradient of J."""
    for form in [np.asarray, csr_array]:
        rng = np.random.default_rng(0)
        K, u = rng.random((6, 6)), rng.standard_normal((6, 2))
        K = K + K.T
        uneven = K * (1 + 3e-14 * rng.standard_normal((6, 6)))
        expected = smoothness_gradient(u, (uneven + uneven.T) / 2)
        assert_allclose(smoothness_gradient(u, form(uneven)), expected, rtol=1e-14, atol=5e-15)
        assert np.abs(smoothness_gradient(u, K) - expected).max() > 2e-14


def test_symmetry_is_judged_beside_the_smaller_row_sum():
    for form, scale in [(np.asarray, 1e10), (csr_array, 1e-10)]:
        for dtype, allowed in ((np.float64, 2.2e-13), (np.float32, 1.1e-4)):
            even = scale * np.ones((2, 2))
            for share, fits in ((0.5, True), (2, False)):
                uneven = even + share * allowed * scale * np.eye(2, k=1)
                if fits:
                    smoothness([[0.0], [1.0]], form(uneven.astype(dtype)))
                else:
                    with pytest.raises(ValueError, match=r"^K: must be symmetric, but K - K\.T"):
                        smoothness([[0.0], [1.0]], form(uneven.astype(dtype)))
            for large in (1e6, 1e16, 1e26):
                hidden = scale * np.array([[0, large, 0], [large, 0, 5], [0, 1, 0.0]])
                with pytest.raises(ValueError, match=r"^K: must be symmetric"):
                    smoothness([[0.0], [0.0], [1.0]], form(hidden.astype(dtype)))


def test_the_caller_keeps_its_weights():
    stored = csr_array(
        (np.array([1.0, 2.0, 3.0, 1.0]), np.array([1, 1, 0, 1]), np.array([0, 2, 4])), shape=(2, 2)
    )
    dense = stored.toarray()
    before = stored.data.copy(), stored.indices.copy(), dense.copy()
    for K in (stored, dense):
        smoothness([[0.0], [1.0]], K)
        regularized_energy([[0.0], [1.0]], [[1.0], [1.0]], K, 2.0, fidelity="degree")
    for kept, now in zip(before, (stored.data, stored.indices, dense), strict=True):
        assert_allclose(now, kept, atol=0)


@settings(deadline=None)  # compiles
@given(seed=st.integers(0, 10**6), spread=st.floats(0, 15))
def test_sums_of_differences_are_as_accurate_as_they_say(seed, spread):
    """Against exact fractions: the bound holds, and is a few eps of the sum of absolute terms."""
    rng = np.random.default_rng(seed)
    M = 10.0 ** rng.uniform(-spread, spread, (5, 5)) * (rng.random((5, 5)) < 0.8)
    u = rng.standard_normal((5, 2))
    for form in (M, csr_array(M), np.asfortranarray(M)):
        found, bound = weighted_differences(form, u)
        for i, c in np.ndindex(u.shape):
            terms = [Fraction(M[i, j]) * (Fraction(u[i, c]) - Fraction(u[j, c])) for j in range(5)]
            assert abs(Fraction(found[i, c]) - sum(terms)) <= Fraction(bound[i, c])
            assert bound[i, c] <= 1e-15 * float(sum(map(abs, terms)))


def test_sums_of_many_differences_keep_the_bound():
    """Plain summation would miss it by about the root of the number of terms."""
    n = 20_000
    u = np.random.default_rng(0).random((n, 1))
    u[0] = 2
    M = csr_array((np.full(n, 0.1), np.arange(n), np.append(0, np.full(n, n))), shape=(n, n))
    found, bound = weighted_differences(M, u)
    exact = sum(Fraction(0.1) * (2 - Fraction(x)) for x in u[:, 0])
    assert abs(Fraction(found[0, 0]) - exact) <= Fraction(bound[0, 0])
    assert bound[0, 0] <= 1e-15 * exact
