import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.cluster import SpectralClustering
from sklearn.linear_model import Lasso
from sklearn.metrics import adjusted_rand_score

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import ista, sparse_self_expression
from twinsolve.solvers.clustering import symmetric_affinity
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.sparse_coding import duality_gap, lam_max, lasso_objective


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.9, 0.3])
def test_reaches_the_objective_of_the_oracle(X, l1_ratio, nonnegative):
    settings = {"lam": 0.6, "l1_ratio": l1_ratio, "nonnegative": nonnegative}
    found = sparse_self_expression(X, tol=1e-10, **settings)
    expected = oracle.sparse_self_expression(X, **settings)
    best = lasso_objective(X, X, expected, lam=0.6, l1_ratio=l1_ratio)
    assert_allclose(found.objective, best, atol=1e-7)
    assert_allclose(
        found.gap, duality_gap(X, X, found.coef, zero_diagonal=True, **settings), atol=1e-14
    )
    assert found.converged.all()
    assert (found.coef.diagonal() == 0).all()
    assert found.coef.min() >= 0 or not nonnegative


@pytest.mark.parametrize("nonnegative", [False, True])
def test_minimiser_is_that_of_the_oracle(nonnegative):
    X = np.random.default_rng(0).standard_normal((10, 6))
    found = sparse_self_expression(X, lam=0.6, tol=1e-12, nonnegative=nonnegative)
    expected = oracle.sparse_self_expression(X, lam=0.6, nonnegative=nonnegative)
    assert_allclose(found.coef.toarray(), expected, atol=1e-4)
    assert found.gap.max() <= 1e-12


def test_minimiser_is_that_of_scikit_learn_at_its_scale():
    X = np.random.default_rng(0).standard_normal((10, 6))
    found = sparse_self_expression(X, lam=0.6, tol=1e-12).coef.toarray()
    for i, x in enumerate(X):
        others = np.delete(X, i, axis=0)
        lasso = Lasso(alpha=0.6 / (2 * 6), fit_intercept=False, tol=1e-12, max_iter=10**6)
        assert_allclose(np.delete(found[i], i), lasso.fit(others.T, x).coef_, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    share=st.floats(1e-2, 0.9),
    l1_ratio=st.sampled_from([1.0, 0.5]),
    nonnegative=st.booleans(),
    max_iter=st.sampled_from([1, 2, 100]),
)
def test_gap_is_never_smaller_than_the_suboptimality(
    points, answer, data, share, l1_ratio, nonnegative, max_iter
):
    X = data.draw(points)
    options = {"l1_ratio": l1_ratio, "nonnegative": nonnegative}
    lam = share * lam_max(X, X, zero_diagonal=True).max()
    found = sparse_self_expression(X, lam=lam, max_iter=max_iter, tol=1e-9, **options)
    expected = answer(oracle.sparse_self_expression, X, lam=lam, **options)
    np.fill_diagonal(expected, 0)
    expected = np.maximum(expected, 0) if nonnegative else expected
    # Feasible codes are never under the optimum, so that only rounding is left.
    excess = found.objective - lasso_objective(X, X, expected, lam=lam, l1_ratio=l1_ratio)
    norm = np.where(X.any(axis=1), (X**2).sum(axis=1), 1)
    assert (found.gap >= excess / norm - 1e-12).all()


def test_diagonal_is_exactly_zero_and_output_sparse():
    X, _ = make_union_of_subspaces(10, n_subspaces=3, noise=0.1, random_state=0)
    solution = sparse_self_expression(X, lam=0.1)
    assert (solution.coef.diagonal() == 0).all()
    assert solution.coef.nnz < solution.coef.shape[0] ** 2 / 2
    assert solution.converged.all()
    independent = duality_gap(X, X, solution.coef, lam=0.1, zero_diagonal=True)
    assert_allclose(solution.gap, independent, rtol=1e-7, atol=1e-14)


@pytest.mark.filterwarnings("ignore:Graph is not fully connected")
def test_independent_noiseless_subspaces_are_separated():
    X, y = make_union_of_subspaces(12, n_subspaces=4, dimension=3, random_state=0)
    coef = sparse_self_expression(X, lam=1e-3).coef.toarray()
    off_block = np.abs(coef[y[:, None] != y]).sum() / np.abs(coef).sum()
    assert off_block < 1e-4
    clusterer = SpectralClustering(4, affinity="precomputed", random_state=0)
    assert adjusted_rand_score(y, clusterer.fit_predict(symmetric_affinity(coef))) == 1


def test_permutation_of_samples_permutes_coefficients():
    rng = np.random.default_rng(0)
    X, order = rng.standard_normal((9, 5)), rng.permutation(9)
    C = sparse_self_expression(X, lam=0.5, tol=1e-13).coef.toarray()
    permuted = sparse_self_expression(X[order], lam=0.5, tol=1e-13).coef.toarray()
    assert_allclose(permuted, C[np.ix_(order, order)], atol=1e-5)


def test_per_row_penalty_at_its_maximum_gives_zero_rows():
    X = np.random.default_rng(0).standard_normal((8, 5))
    lam = lam_max(X, X, zero_diagonal=True)
    lam[::2] *= 0.5
    counts = np.diff(sparse_self_expression(X, lam=lam).coef.indptr)
    assert (counts[1::2] == 0).all()
    assert (counts[::2] > 0).all()


def test_zero_rows_and_duplicates():
    X = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    solution = sparse_self_expression(X, lam=0.5)
    assert solution.gap[0] == 0
    assert_allclose(solution.coef.toarray()[:3], [[0, 0, 0, 0], [0, 0, 0.75, 0], [0, 0.75, 0, 0]])


def test_differences_to_softmax_attention():
    """EQUATIONS SE-5.3: signed, rows not of sum one, and every weight depends on all tokens."""
    X = np.random.default_rng(0).standard_normal((8, 5))
    C = sparse_self_expression(X, lam=0.3, tol=1e-12).coef.toarray()
    assert C.min() < -1e-3
    assert np.abs(C.sum(axis=1) - 1).max() > 0.1
    moved = X.copy()
    moved[7] += 0.5
    D = sparse_self_expression(moved, lam=0.3, tol=1e-12).coef.toarray()
    assert np.abs(C - D)[:7, :7].max() > 1e-2


def test_ista_reaches_the_same_coefficients():
    X = np.random.default_rng(0).standard_normal((10, 6))
    solved = sparse_self_expression(X, lam=0.6, tol=1e-12).coef.toarray()
    assert_allclose(ista(X, X, lam=0.6, n_iter=20_000, zero_diagonal=True).coef, solved, atol=1e-5)


def test_one_sample_is_refused():
    with pytest.raises(ValueError, match="X: Found array with 1 sample"):
        sparse_self_expression([[1.0, 2.0]], lam=1.0)


def test_loss_of_the_self_expressive_network_is_the_elastic_net_cl11():
    """gamma/2 |x - cX|^2 + r |c|_1 + (1 - r)/2 |c|^2 is gamma/2 times ours at lam = 2 / gamma."""
    X = np.random.default_rng(0).standard_normal((9, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    C = cp.Variable((9, 9))
    loss = 200 / 2 * cp.sum_squares(X - C @ X) + 0.9 * cp.norm1(C) + 0.1 / 2 * cp.sum_squares(C)
    cp.Problem(cp.Minimize(loss), [cp.diag(C) == 0]).solve(solver=cp.CLARABEL)
    found = sparse_self_expression(X, lam=2 / 200, l1_ratio=0.9, tol=1e-12).coef.toarray()
    assert_allclose(found, C.value, atol=1e-4)
