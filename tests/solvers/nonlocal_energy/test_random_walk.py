import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array, diags_array, eye_array, random_array
from scipy.special import logsumexp, softmax

from twinsolve.solvers.nonlocal_energy import (
    random_walk_limit,
    random_walk_rate,
    random_walk_values,
    state_reduction,
    stationary_distribution,
)


def attention(n=7, std=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return softmax(std * rng.standard_normal((n, n)), axis=1), rng.standard_normal((n, 2))


def causal(n=7, seed=0):
    logits = np.random.default_rng(seed).standard_normal((n, n))
    return softmax(np.where(np.tri(n) > 0, logits, -np.inf), axis=1)


def eliminated(A):
    """Stationary distribution by state reduction, which never subtracts (Grassmann et al.)."""
    P = A.copy()
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    pi = np.ones(n)
    for k in range(1, n):
        pi[k] = pi[:k] @ P[:k, k]
    return pi / pi.sum()


@pytest.mark.parametrize("n_steps", [0, 1, 40])
def test_expectation_is_the_matrix_power_nt_l1(n_steps):
    A, v = attention()
    expected = np.linalg.matrix_power(A, n_steps) @ v
    for form in (A, csr_array(A), lambda u: A @ u):
        assert_allclose(random_walk_values(v, form, n_steps=n_steps), expected, atol=1e-12)


@given(seed=st.integers(0, 10**6), std=st.floats(0.0, 6.0))
def test_softmax_has_one_positive_stationary_distribution_nt_l2(seed, std):
    A, _ = attention(6, std, seed)
    pi = stationary_distribution(A)
    assert (pi > 0).all()
    assert_allclose(pi.sum(), 1, rtol=1e-14)
    assert_allclose(pi @ A, pi, atol=1e-12)
    assert_allclose(pi, eliminated(A), rtol=1e-13)
    # Unique: I - A has rank n - 1. An eigenvalue may be closer to 1 than float64 resolves.
    A = (A + 1) / (A + 1).sum(axis=1, keepdims=True)
    assert (np.abs(np.linalg.eigvals(A) - 1) < 1e-12).sum() == 1


def test_reversible_kernels_have_degrees_nt_l2(K):
    d = K.sum(axis=1)
    A = K / d[:, None]
    for form in (A, csr_array(A)):
        assert_allclose(stationary_distribution(form), d / d.sum(), rtol=1e-13)


@given(seed=st.integers(0, 10**6), std=st.floats(0.0, 20.0), n=st.integers(2, 80))
def test_peaked_softmax_with_shared_keys_has_degrees_nt_l2(seed, std, n):
    """However close to 1 the probabilities of staying are: they are what cancels in I - A."""
    X = np.random.default_rng(seed).standard_normal((n, 3))
    logits = std * X @ X.T / np.sqrt(3)
    logits = (logits + logits.T) / 2
    A, expected = softmax(logits, axis=1), softmax(logsumexp(logits, axis=1))
    assume((A > 1e-290).all())  # what underflows is lost
    # Logits of 1e3 carry rounding errors of 1e3 eps into each entry.
    rtol = 1e-15 * (10 + n + np.abs(logits).max())
    for form in (A, csr_array(A)):
        assert_allclose(stationary_distribution(form), expected, rtol=rtol)
    assert_allclose(random_walk_limit(X, A), expected @ X, atol=1e-12)


def test_tokens_that_are_almost_never_left():
    """Probabilities of leaving far below the rounding error of 1."""
    for A in ([[1.0, 1e-17], [3e-17, 1.0]], [[1.0, 1e-300], [3e-300, 1.0]]):
        for form in (np.array(A), csr_array(A)):
            assert_allclose(stationary_distribution(form), [0.75, 0.25], rtol=1e-15)
    X = np.array([[3.0, 0.0], [0.0, 3.1], [-3.0, -3.0]])
    for scale in (1, 2, 3, 4):
        logits = scale * X @ X.T
        found = stationary_distribution(softmax(logits, axis=1))
        assert_allclose(found, softmax(logsumexp(logits, axis=1)), rtol=1e-12)


def test_blocks_of_states_are_reduced_as_one_by_one():
    for n in [64, 65, 150]:
        A, _ = attention(n, 9.0)
        assert_allclose(stationary_distribution(A), eliminated(A), rtol=1e-13)
        A[:, ::2] *= 1e-12
        A[::2, 1::2] *= 1e-12
        A /= A.sum(axis=1, keepdims=True)
        assert_allclose(stationary_distribution(A), eliminated(A), rtol=1e-13)


def test_distributions_that_float64_cannot_hold_are_refused_or_right():
    chain = np.array([[1.0, 1e-200, 0], [1e-17, 1.0, 1e-200], [0, 1e-17, 1.0]])
    assert_allclose(stationary_distribution(chain[::-1, ::-1]), [0, 1e-183, 1], rtol=1e-14)
    assert_allclose(stationary_distribution(chain), [1, 1e-183, 0], rtol=1e-14)
    lost = np.array([[1.0, 1e-200, 0], [0, 1.0, 1e-200], [1e-200, 1, 0.0]])
    with pytest.raises(ValueError, match=r"^A: probabilities differ by more than float64"):
        stationary_distribution(lost)


def test_limit_and_rate_nt_20():
    A, v = attention()
    limit = random_walk_limit(v, A)
    assert_allclose(limit, stationary_distribution(A) @ v, atol=1e-14)
    assert_allclose(random_walk_values(v, A, n_steps=200), np.tile(limit, (7, 1)), atol=1e-8)
    rate = random_walk_rate(A)
    assert_allclose(rate, np.sort(np.abs(np.linalg.eigvals(A)))[-2], rtol=1e-12)


def test_causal_mask_ends_at_the_first_token_nt_20():
    for form in [np.asarray, csr_array]:
        A = causal()
        v = np.random.default_rng(0).standard_normal((7, 2))
        assert_allclose(stationary_distribution(form(A)), np.eye(7)[0], atol=0)
        assert_allclose(random_walk_limit(v, form(A)), v[0], rtol=1e-15)
        assert_allclose(random_walk_rate(form(A)), np.sort(A.diagonal())[-2], rtol=1e-9)
        found = random_walk_values(v, form(A), n_steps=3000)
        assert_allclose(found, np.tile(v[0], (7, 1)), atol=1e-8)


def test_chains_with_two_ends_are_refused():
    two_ends = [[1.0, 0.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]]
    for form in (np.array(two_ends), csr_array(two_ends), np.eye(3)):
        with pytest.raises(ValueError, match=r"^A: must have one closed class of tokens, got \d"):
            stationary_distribution(form)
        with pytest.raises(ValueError, match=r"^A: must have one closed class of tokens, got \d"):
            random_walk_limit(np.ones((3, 1)), form)
        assert random_walk_rate(form) == pytest.approx(1)


def test_stored_zeros_are_no_moves():
    stored = csr_array(
        (np.array([1.0, 0.0, 0.5, 0.5]), np.array([0, 1, 0, 1]), np.array([0, 2, 4])), shape=(2, 2)
    )
    assert_allclose(stationary_distribution(stored), [1, 0])
    assert_allclose(random_walk_limit([[2.0], [3.0]], stored), [2])
    apart = stored.copy()
    apart.data[:] = [1, 0, 0, 1]
    with pytest.raises(ValueError, match=r"^A: must have one closed class of tokens, got 2"):
        stationary_distribution(apart)


def test_stationary_law_is_that_of_no_finite_step_erratum_nt_eq_20():
    """As printed, pi is the law after k steps; it is its limit. k steps are A^k, not A^(k-1)."""
    A, v = attention()
    pi = stationary_distribution(A)
    for k in (1, 2, 3):
        law = np.linalg.matrix_power(A, k)
        assert np.abs(law - pi).max() > 1e-4
        assert_allclose(random_walk_values(v, A, n_steps=k), law @ v, atol=1e-14)
        assert np.abs(random_walk_values(v, A, n_steps=k - 1) - law @ v).max() > 1e-4
    assert_allclose(np.linalg.matrix_power(A, 200), np.tile(pi, (7, 1)), atol=1e-13)


def test_periodic_walks_have_a_distribution_but_no_limit():
    for period in [2, 3]:
        A = np.roll(np.eye(period), 1, axis=1)
        assert_allclose(stationary_distribution(A), 1 / period)
        with pytest.raises(ValueError, match=f"A: the walk has period {period}, so A"):
            random_walk_limit(np.ones((period, 1)), A)
        assert random_walk_rate(A) == pytest.approx(1)
        lazy = 0.9 * A + 0.1 * np.eye(period)
        assert_allclose(random_walk_limit(np.eye(period), lazy), 1 / period)


def test_two_cycles_of_coprime_lengths_have_a_limit():
    A = np.zeros((4, 4))
    A[0, 1] = A[2, 3] = A[3, 0] = 1  # cycles 0-1-0... of length 3 and 4
    A[1, 2], A[1, 0] = 0.5, 0.0
    A[1, 3] = 0.5
    assert_allclose(random_walk_limit(np.eye(4), A), stationary_distribution(A))
    assert_allclose(
        random_walk_values(np.eye(4), A, n_steps=2000)[0], random_walk_limit(np.eye(4), A)
    )


def test_large_sparse_walk():
    for n in [1100, 2100]:
        K = random_array((n, n), density=4 / n, rng=np.random.default_rng(0)) + eye_array(n, k=1)
        K = csr_array(K + K.T)
        d = K.sum(axis=1)
        A = csr_array(K / d[:, None])
        assert_allclose(stationary_distribution(A), d / d.sum(), rtol=1e-8)
        if n < 2000:
            exact = np.sort(np.abs(np.linalg.eigvals(A.toarray())))[-2]
            assert_allclose(random_walk_rate(A), exact, rtol=1e-8)


def test_large_sparse_walks_are_right_or_refused(monkeypatch):
    """Beyond the dense reduction a factor that breaks down is noticed."""
    n = 2100
    moves = diags_array([np.full(n - 1, 1e-17), np.full(n - 1, 3e-17)], offsets=[1, -1])
    found = stationary_distribution(csr_array(moves + eye_array(n)))
    assert_allclose(found[:20], 2 / 3 * 3.0 ** -np.arange(20), rtol=1e-9)
    for broken in (np.full(n - 1, np.nan), np.ones(n - 1), -np.ones(n - 1)):
        monkeypatch.setattr(state_reduction, "spsolve", lambda *_, broken=broken: broken)
        with pytest.raises(ValueError, match=r"^A: probabilities differ"):
            stationary_distribution(csr_array(moves + eye_array(n)))
