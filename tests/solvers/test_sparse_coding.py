import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.linear_model import Lasso

from twinsolve.solvers import fista, ista, sparse_code
from twinsolve.solvers.oracles import sparse_coding as oracle
from twinsolve.solvers.sparse_coding import duality_gap, lam_max, lasso_objective


def problem(seed=0):
    rng = np.random.default_rng(seed)
    D, Y = rng.standard_normal((12, 6)), rng.standard_normal((5, 6))
    Y[0] = 0
    return Y, D


@pytest.mark.parametrize(("l1_ratio", "nonnegative"), [(1.0, False), (1.0, True), (0.3, True)])
def test_reaches_the_objective_of_the_oracle(X, l1_ratio, nonnegative):
    Y = np.random.default_rng(1).standard_normal((5, X.shape[1]))
    Y[0] = 0
    settings = {"lam": 0.7, "l1_ratio": l1_ratio, "nonnegative": nonnegative}
    solution = sparse_code(Y, X, tol=1e-10, **settings)
    best = lasso_objective(Y, X, oracle.sparse_code(Y, X, **settings), lam=0.7, l1_ratio=l1_ratio)
    assert_allclose(solution.objective, best, atol=1e-7)
    assert_allclose(solution.gap, duality_gap(Y, X, solution.coef, **settings), atol=1e-14)
    assert solution.converged.all()
    assert solution.coef.min() >= 0 or not nonnegative


def test_minimiser_is_that_of_the_oracle_and_of_scikit_learn():
    Y, D = problem()
    lam = np.array([0.3, 0.5, 0.7, 1.0, 2.0])
    found = sparse_code(Y, D, lam=lam, tol=1e-12).coef.toarray()
    assert_allclose(found, oracle.sparse_code(Y, D, lam=lam), atol=1e-4)
    for y, code, penalty in zip(Y, found, lam, strict=True):
        lasso = Lasso(alpha=penalty / (2 * 6), fit_intercept=False, tol=1e-12, max_iter=10**6)
        assert_allclose(code, lasso.fit(D.T, y).coef_, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    lam=st.floats(1e-3, 30),
    l1_ratio=st.sampled_from([1.0, 0.7, 0.05]),
    zero_diagonal=st.booleans(),
    nonnegative=st.booleans(),
    near=st.booleans(),
)
def test_gap_bounds_any_codes(
    points, answer, data, lam, l1_ratio, zero_diagonal, nonnegative, near
):
    """Against the oracle, whose objective is never under the optimum: only rounding is allowed."""
    X = data.draw(points)
    constraints = {"zero_diagonal": zero_diagonal, "nonnegative": nonnegative}
    best = answer(oracle.sparse_code, X, X, lam=lam, l1_ratio=l1_ratio, **constraints)
    C = np.random.default_rng(0).standard_normal((9, 9))
    C = best + 1e-3 * C if near else C
    C = np.abs(C) if nonnegative else C
    best = np.maximum(best, 0) if nonnegative else best
    for codes in (C, best):
        np.fill_diagonal(codes, 0 if zero_diagonal else codes.diagonal())
    at, least = (lasso_objective(X, X, Z, lam=lam, l1_ratio=l1_ratio) for Z in (C, best))
    gap = duality_gap(X, X, C, lam=lam, l1_ratio=l1_ratio, **constraints)
    zero = ~X.any(axis=1)
    norm = np.where(zero, 1, (X**2).sum(axis=1))
    assert (gap >= (at - least) / norm - 1e-12 * (1 + at / norm)).all()
    assert np.isinf(gap[zero]).all()


@pytest.mark.parametrize(("zero_diagonal", "nonnegative"), [(False, True), (True, False)])
def test_ista_descends_within_its_rate(X, zero_diagonal, nonnegative):
    flags = {"zero_diagonal": zero_diagonal, "nonnegative": nonnegative}
    best = sparse_code(X, X, lam=0.5, tol=1e-12, max_iter=10**6, **flags)
    step = 1 / np.linalg.norm(X, 2) ** 2
    values = [ista(X, X, lam=0.5, n_iter=K, step=step, **flags).objective.sum() for K in range(40)]
    assert (np.diff(values) <= 1e-11).all()
    distance = abs(best.coef).power(2).sum()
    for K in range(1, 40):
        assert values[K] - best.objective.sum() <= distance / (step * K) + 1e-10


def test_ista_is_the_printed_matrix_iteration_se18_and_lista_se15l():
    """With a step length for each iteration."""
    (Y, D), lam, steps = problem(), 0.5, [0.01, 0.02, 0.03]
    C = np.zeros((len(Y), len(D)))
    for eps in steps:
        We, S = eps * D.T, np.eye(len(D)) - eps * D @ D.T
        Z = Y @ We + C @ S
        C = np.sign(Z) * np.maximum(np.abs(Z) - eps * lam / 2, 0)
    assert_allclose(ista(Y, D, lam=lam, n_iter=3, step=steps).coef, C, atol=1e-13)


def test_default_step_is_safe():
    X = 1 + 0.05 * problem()[1]
    frobenius = 1 / np.linalg.norm(X.T @ X)
    assert frobenius <= 1 / np.linalg.norm(X, 2) ** 2
    for solve in (ista, fista):
        default = solve(X, X, lam=0.5, n_iter=1).coef
        assert_allclose(default, solve(X, X, lam=0.5, n_iter=1, step=frobenius).coef, rtol=1e-12)


def test_a_step_too_long_shows_in_the_gap():
    _, X = problem()
    step = 3 / np.linalg.norm(X, 2) ** 2
    assert ista(X, X, lam=0.5, n_iter=30, step=step).gap.max() > 1


def printed_ista(X, lam, eps, n_iter, *, threshold, one_sided, zero_diagonal):
    C = np.zeros((len(X), len(X)))
    for _ in range(n_iter):
        Z = C + eps * (X - C @ X) @ X.T
        C = np.maximum(Z - threshold, 0)
        if not one_sided:
            C = np.sign(Z) * np.maximum(np.abs(Z) - threshold, 0)
        if zero_diagonal:
            np.fill_diagonal(C, 0)
    return C


def test_erratum_e3d_printed_threshold_solves_another_problem():
    X = np.random.default_rng(0).standard_normal((8, 5))
    lam, eps = 0.05, 1 / np.linalg.norm(X, 2) ** 2
    printed = printed_ista(X, lam, eps, 50_000, threshold=lam, one_sided=True, zero_diagonal=False)
    # The fixed point minimises |X - CX|^2 + (2 lam / eps) |C|_1 over C >= 0, free diagonal.
    other = 2 * lam / eps
    best = oracle.sparse_code(X, X, lam=other, nonnegative=True)
    values = [lasso_objective(X, X, C, lam=other).sum() for C in (printed, best)]
    assert abs(values[0] - values[1]) < 1e-6
    best = oracle.sparse_code(X, X, lam=lam, zero_diagonal=True)
    gap = lasso_objective(X, X, printed, lam=lam) - lasso_objective(X, X, best, lam=lam)
    assert gap.sum() > 0.1


def test_erratum_e3f_one_sided_threshold_is_the_nonnegative_problem():
    X = np.random.default_rng(0).standard_normal((8, 5))
    best = oracle.sparse_code(X, X, lam=0.5, zero_diagonal=True)
    positive = ista(X, X, lam=0.5, n_iter=20_000, zero_diagonal=True, nonnegative=True).coef
    expected = oracle.sparse_code(X, X, lam=0.5, zero_diagonal=True, nonnegative=True)
    assert_allclose(positive, expected, atol=1e-4)
    corrected = ista(X, X, lam=0.5, n_iter=20_000, zero_diagonal=True).coef
    codes = (positive, best, corrected)
    printed, least, found = (lasso_objective(X, X, C, lam=0.5).sum() for C in codes)
    assert printed > least + 0.1
    assert abs(found - least) < 1e-7


def test_erratum_e3g_without_the_zero_diagonal_it_collapses_to_the_identity():
    X = np.random.default_rng(0).standard_normal((8, 12))
    C = np.abs(ista(X, X, lam=0.05, n_iter=5000).coef)
    assert (np.diag(C) / C.sum(axis=1)).min() > 0.9
    corrected = ista(X, X, lam=0.05, n_iter=20_000, zero_diagonal=True)
    assert not np.diag(corrected.coef).any()
    assert corrected.gap.max() < 1e-6


def test_erratum_e3h_printed_iteration_is_not_sparse_coding():
    Y, D = problem()
    lam, eps = 0.5, 1 / np.linalg.norm(D, 2) ** 2
    C = np.zeros((len(Y), len(D)))
    for _ in range(20_000):
        C = np.maximum(C @ (np.eye(len(D)) - eps * D @ D.T) + eps * Y @ D.T - lam, 0)
    best = oracle.sparse_code(Y, D, lam=lam)
    excess = lasso_objective(Y, D, C, lam=lam).sum() - lasso_objective(Y, D, best, lam=lam).sum()
    assert excess > 1
    corrected = ista(Y, D, lam=lam, n_iter=20_000, step=eps).objective.sum()
    assert abs(corrected - lasso_objective(Y, D, best, lam=lam).sum()) < 1e-7


def test_erratum_e3i_spectral_norm_has_another_optimum():
    Y, D = np.array([[2.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 0.3]])
    solved = sparse_code(Y, D, lam=0.1, tol=1e-12).coef.toarray()

    def value(codes, order):
        codes = codes.reshape(2, 1)
        return np.linalg.norm(Y - codes @ D, order) ** 2 + 0.1 * np.abs(codes).sum()

    frobenius, spectral = (
        minimize(value, solved.ravel(), args=(order,), method="Nelder-Mead",
                 options={"xatol": 1e-9, "fatol": 1e-12}).x
        for order in ("fro", 2)
    )  # fmt: skip
    assert_allclose(solved.ravel(), frobenius, atol=1e-5)
    assert np.abs(solved.ravel() - spectral).max() > 0.01


def test_erratum_e3e_threshold_without_the_factor_one_half():
    X = np.random.default_rng(0).standard_normal((8, 5))
    lam, eps = 0.5, 1 / np.linalg.norm(X, 2) ** 2
    settings = {"one_sided": False, "zero_diagonal": True}
    printed = printed_ista(X, lam, eps, 20_000, threshold=eps * lam, **settings)
    corrected = printed_ista(X, lam, eps, 20_000, threshold=eps * lam / 2, **settings)
    # Without the 1/2 it is the problem at twice the penalty.
    assert duality_gap(X, X, printed, lam=2 * lam, zero_diagonal=True).max() < 1e-8
    assert duality_gap(X, X, printed, lam=lam, zero_diagonal=True).max() > 1e-3
    assert duality_gap(X, X, corrected, lam=lam, zero_diagonal=True).max() < 1e-8


def test_gap_of_a_zero_signal_is_zero_or_infinite():
    assert duality_gap([[0.0]], [[1.0]], [[0.0]], lam=0.5).tolist() == [0.0]
    assert duality_gap([[0.0]], [[1.0]], [[3.0]], lam=0.5).tolist() == [np.inf]


def test_gap_is_infinite_outside_the_constraints():
    X = np.eye(3)
    assert np.isinf(duality_gap(X, X, np.eye(3), lam=0.1, zero_diagonal=True)).all()
    assert np.isinf(duality_gap(X, X, -np.eye(3), lam=0.1, nonnegative=True)).all()
    assert np.isfinite(duality_gap(X, X, csr_array(np.eye(3)), lam=0.1)).all()


@pytest.mark.parametrize(("stored", "largest"), [(True, 1e5), (False, 1e5)])
def test_one_huge_atom_among_ordinary_ones(monkeypatch, stored, largest):
    """The rounding of the pool's product is that of the largest atom."""
    if not stored:
        monkeypatch.setattr("twinsolve.solvers.sparse_coding.row_blocks.MOST_STORED", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 40))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[7] *= largest
    others = np.delete(X, 7, axis=0)
    lam = lam_max(others, others, zero_diagonal=True).mean() / 10
    solution = sparse_code(X, X, lam=lam, zero_diagonal=True)
    assert solution.converged.all()
    assert duality_gap(X, X, solution.coef, lam=lam, zero_diagonal=True).max() <= 1.001e-6


def test_many_duplicates_at_a_small_penalty():
    for l1_ratio, share in [(1.0, 1e4), (0.5, 1e3)]:
        rng = np.random.default_rng(0)
        D = rng.standard_normal((200, 60))[rng.integers(0, 200, 600)]
        D /= np.linalg.norm(D, axis=1, keepdims=True)
        Y = rng.standard_normal((30, 60))
        lam = lam_max(Y, D) / share
        assert sparse_code(Y, D, lam=lam, l1_ratio=l1_ratio).converged.all()
