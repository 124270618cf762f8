import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers import sinkhorn
from twinsolve.solvers.kernel_smoothing import marginal_violation
from twinsolve.solvers.oracles import kernel_smoothing as oracle

# Pinsker: entries are off by sqrt(2 gap), and the oracle's gap is 1e-10 of objectives up to 10.
ORACLE = {"rtol": 0, "atol": 5e-5}
seeds = st.integers(0, 10**6)


def draw(seed, n=6, scale=2.0):
    return scale * np.random.default_rng(seed).standard_normal((n, n))


def balance_literally(K, n_iter):
    P = K.copy()
    for _ in range(n_iter):
        P /= P.sum(axis=1, keepdims=True)
        P /= P.sum(axis=0, keepdims=True)
    return P


@pytest.mark.parametrize("symmetric", [False, True])
def test_equals_the_literal_loop(symmetric):
    """Nearly symmetric logits are not taken for symmetric."""
    L = draw(8)
    if symmetric:
        L = L + L.T
        L[0, 1] += 1e-5
    assert_allclose(sinkhorn(L, tol=1e-13), balance_literally(np.exp(L), 5000), rtol=1e-11)


def test_is_the_nearest_doubly_stochastic_matrix_of_the_oracle():
    for symmetric in [False, True]:
        L = draw(1)
        L = L + L.T if symmetric else L
        P = sinkhorn(L, tol=1e-13)
        assert_allclose(P, oracle.sinkhorn(L), **ORACLE)
        assert marginal_violation(P) < 1e-12


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n=st.integers(1, 7))
def test_symmetric_logits_give_a_symmetric_result(seed, n):
    L = draw(seed, n, 0.5)
    P = sinkhorn(L + L.T)
    assert_array_equal(P, P.T)
    assert marginal_violation(P) <= 1.1e-9


def test_kernel_matrices_take_few_symmetric_updates():
    """The error shrinks by (1 - mu) / 2 an update for every eigenvalue mu of the result."""
    X = np.random.default_rng(0).standard_normal((40, 3))
    L = -((X[:, None] - X) ** 2).sum(axis=-1)
    P = sinkhorn(L, tol=1e-12, max_iter=45)  # 2 ** -45 < 1e-13
    assert np.linalg.eigvalsh(P).min() > -1e-12
    assert marginal_violation(P) <= 1.1e-12


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("offset", [-1e12, 1e300])
def test_common_offsets_cost_no_digits(offset, symmetric):
    L = np.random.default_rng(0).standard_normal((6, 6))
    L = L + L.T if symmetric else L
    moved = L + offset
    P = sinkhorn(moved)
    assert marginal_violation(P) <= 1.1e-9
    # The sum is rounded, its difference from the offset is not.
    assert_allclose(P, sinkhorn(moved - offset), atol=1e-8)


def test_offsets_of_rows_and_columns_cost_no_digits():
    """Powers of two: rank-one kernels without rounding, whose result is the mean."""
    for size in [1e16, 1e200]:
        a, b = np.ldexp(1.0, [[3, 8, 1, 5], [7, 2, 9, 4]]) * np.exp2(np.floor(np.log2(size)))
        for L in (a[:, None] + b, a[:, None] - b, b - a[:, None], a[:, None] + a, -a[:, None] - a):
            assert_allclose(sinkhorn(L, tol=1e-13), np.full((4, 4), 0.25), rtol=1e-12)


def test_what_float64_cannot_balance_warns():
    L = 1e20 * np.random.default_rng(0).standard_normal((6, 6))
    with pytest.warns(ConvergenceWarning, match="row or column sums are off by"):
        P = sinkhorn(L, max_iter=100)
    assert marginal_violation(P) > 1e-9


def test_the_sums_after_the_last_update_are_judged():
    for symmetric in [False, True]:
        L = draw(9)
        L = L + L.T if symmetric else L
        with pytest.warns(ConvergenceWarning):
            reached = marginal_violation(sinkhorn(L, max_iter=2, tol=1e-12))
        sinkhorn(L, max_iter=2, tol=1.001 * reached)
        with pytest.warns(ConvergenceWarning, match=f"{reached:.3g}"):
            sinkhorn(L, max_iter=2, tol=0.999 * reached)


def test_zeros_are_kept():
    L = draw(4)
    zeros = [0, 1, 2], [3, 3, 5]
    L[zeros] = -np.inf
    P = sinkhorn(L, tol=1e-13)
    assert not P[zeros].any()
    assert_allclose(P, oracle.sinkhorn(L), **ORACLE)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # a problem without interior
def test_entries_on_no_permutation_vanish():
    """Support without total support: no scaling exists, but the nearest matrix does."""
    L = np.where(np.tri(3, dtype=bool), draw(5, 3), -np.inf)
    assert_allclose(sinkhorn(L, max_iter=2), np.eye(3), atol=1e-15)
    L = np.array([[0.0, 1.0, -np.inf], [2.0, 0.5, -np.inf], [1.0, 1.0, 3.0]])
    P = sinkhorn(L, tol=1e-13)
    assert not P[2, :2].any()
    assert_allclose(P, oracle.sinkhorn(L), **ORACLE)


def test_marginal_violation_is_the_largest_deviation():
    assert marginal_violation(np.eye(3)) == 0
    assert_allclose(marginal_violation([[0.5, 0.5], [0.9, 0.1]]), 0.4)
    assert_allclose(marginal_violation([[0.5, 0.9], [0.5, 0.1]]), 0.4)
