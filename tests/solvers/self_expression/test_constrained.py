import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import linprog
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    basis_pursuit_self_expression,
    lam_from_alpha,
    lam_from_gamma,
    lam_max,
    lasso_objective,
    outlier_lams_from_alpha,
    outlier_self_expression,
    proximal_self_expression,
    sparse_code,
    sparse_self_expression,
)
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression.constrained import certify_affine


def least_l1(points):
    """Least l1 norm of a representation of each row by the others, infinite where there is none."""
    values = []
    for i, x in enumerate(points):
        others = np.delete(points, i, axis=0)
        program = linprog(
            np.ones(2 * len(others)), A_eq=np.hstack([others.T, -others.T]), b_eq=x,
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )  # fmt: skip
        values.append(program.fun if program.status == 0 else np.inf)
    return np.array(values)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("affine", [False, True])
def test_basis_pursuit_agrees_with_the_linear_program(X, affine):
    lifted = np.hstack([X, np.ones((len(X), 1))]) if affine else X
    expected = least_l1(lifted)
    solvable = np.isfinite(expected)
    found = basis_pursuit_self_expression(X, affine=affine, tol=1e-9)
    assert (found.converged == solvable).all()
    assert np.isinf(found.gap[~solvable]).all()
    C = found.coef.toarray()
    assert (C.diagonal() == 0).all()
    assert not C[~solvable].any()
    assert_allclose((C @ lifted)[solvable], lifted[solvable], atol=1e-8)
    assert_allclose(found.objective, np.abs(C).sum(axis=1))
    assert_allclose(found.objective[solvable], expected[solvable], atol=1e-7)
    bound = np.abs(found.dual @ lifted.T)
    np.fill_diagonal(bound, 0)
    assert bound.max() <= 1 + 1e-12


@pytest.mark.parametrize("affine", [False, True])
def test_basis_pursuit_agrees_with_the_oracle(affine):
    X = np.random.default_rng(0).standard_normal((9, 5))
    found = basis_pursuit_self_expression(X, affine=affine, tol=1e-9).coef.toarray()
    assert_allclose(found, oracle.basis_pursuit_self_expression(X, affine=affine), atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@settings(max_examples=40, deadline=None)
@given(data=st.data(), affine=st.booleans(), max_iter=st.sampled_from([1, 2, 4]))
def test_basis_pursuit_gap_is_never_smaller_than_the_suboptimality(points, data, affine, max_iter):
    X = data.draw(points)
    found = basis_pursuit_self_expression(X, affine=affine, tol=1e-14, max_iter=max_iter)
    lifted = np.hstack([X, np.ones((len(X), 1))]) if affine else X
    expected = least_l1(lifted)
    open_rows = np.isfinite(found.gap) & (found.objective > 0)
    excess = (found.objective - expected)[open_rows] / found.objective[open_rows]
    # The linear program is solved, and the rows are met, to 1e-9.
    assert (found.gap[open_rows] >= excess - 1e-7).all()


def test_basis_pursuit_is_the_limit_of_the_noisy_problem():
    X, y = make_union_of_subspaces(10, n_subspaces=3, dimension=3, random_state=0)
    C = basis_pursuit_self_expression(X).coef.toarray()
    noisy = sparse_self_expression(X, lam=1e-6, tol=1e-11).coef.toarray()
    assert_allclose(noisy, C, atol=1e-5)
    assert np.abs(C[y[:, None] != y]).sum() < 1e-4 * np.abs(C).sum()


def test_affine_constraint_is_a_sum_and_not_a_norm_erratum_e3m():
    X, y = make_union_of_subspaces(
        10, n_subspaces=3, n_features=20, dimension=2, affine=True, random_state=0
    )
    C = basis_pursuit_self_expression(X, affine=True).coef.toarray()
    assert_allclose(C.sum(axis=1), 1, atol=1e-9)
    assert np.abs(C).sum(axis=1).max() > 1.2
    assert np.abs(C[y[:, None] != y]).sum() < 1e-4 * np.abs(C).sum()
    # Scaling each row to an l1 norm of one, as the words say, no longer reconstructs the data.
    printed = C / np.abs(C).sum(axis=1, keepdims=True)
    assert np.linalg.norm(X - printed @ X, axis=1).max() > 0.1


def test_a_row_outside_the_span_of_the_others_is_reported():
    X = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    with pytest.warns(ConvergenceWarning, match="may not be in the span of the others"):
        found = basis_pursuit_self_expression(X)
    assert_allclose(found.gap, [0, 0, np.inf, 0], atol=1e-14)
    assert_allclose(found.coef.toarray()[:2, :2], [[0, 0.5], [2, 0]])
    assert not found.coef.toarray()[2:].any()


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.6])
def test_affine_noisy_agrees_with_the_oracle(X, l1_ratio, nonnegative):
    settings = {"lam": 0.5, "l1_ratio": l1_ratio, "nonnegative": nonnegative}
    found = sparse_self_expression(X, affine=True, tol=1e-9, max_iter=1000, **settings)
    C = found.coef.toarray()
    assert_allclose(C.sum(axis=1), 1, atol=1e-12)
    assert (C.diagonal() == 0).all()
    assert C.min() >= 0 or not nonnegative
    expected = oracle.affine_sparse_self_expression(X, **settings)
    best = lasso_objective(X, X, expected, lam=0.5, l1_ratio=l1_ratio)
    assert_allclose(found.objective, best, atol=2e-7)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    lam=st.floats(1e-2, 20),
    l1_ratio=st.sampled_from([1.0, 0.5]),
    nonnegative=st.booleans(),
    near=st.booleans(),
)
def test_affine_gap_bounds_any_rows_that_sum_to_one(
    points, answer, data, lam, l1_ratio, nonnegative, near
):
    X = data.draw(points)
    options = {"l1_ratio": l1_ratio, "nonnegative": nonnegative}
    best = answer(oracle.affine_sparse_self_expression, X, lam=lam, **options)
    C = np.random.default_rng(0).random((9, 9)) - (0 if nonnegative else 0.3)
    C = best + 1e-3 * C if near else C
    for codes in (C, best):
        np.fill_diagonal(codes, 0)
        np.maximum(codes, 0 if nonnegative else -np.inf, out=codes)
        codes /= codes.sum(axis=1, keepdims=True)
    objective, gap, _ = certify_affine(X, csr_array(C), np.full(9, lam), nonnegative, l1_ratio)
    norm = np.where(X.any(axis=1), (X**2).sum(axis=1), 1)
    excess = (objective - lasso_objective(X, X, best, lam=lam, l1_ratio=l1_ratio)) / norm
    assert (gap >= excess - 1e-12 * (1 + objective / norm)).all()


def test_affine_noisy_is_the_limit_of_its_proximal_steps_se12a():
    """Row prox ``S_t(z + nu)`` off the diagonal, nu by bisection so that the row sums to 1."""
    X = np.random.default_rng(0).standard_normal((9, 5))

    def prox(Z, t):
        high = np.full((len(Z), 1), np.abs(Z).max() + t + 1)
        low = -high
        for _ in range(60):
            nu = (low + high) / 2
            C = np.sign(Z + nu) * np.maximum(np.abs(Z + nu) - t, 0)
            np.fill_diagonal(C, 0)
            above = C.sum(axis=1, keepdims=True) > 1
            low, high = np.where(above, low, nu), np.where(above, nu, high)
        return C

    found = proximal_self_expression(X, prox, lam=0.5, tol=1e-9)
    assert_allclose(found.coef.sum(axis=1), 1, atol=1e-12)
    solved = sparse_self_expression(X, lam=0.5, affine=True, tol=1e-11, max_iter=1000)
    assert_allclose(found.coef, solved.coef.toarray(), atol=1e-6)


def test_affine_self_expression_is_translation_invariant():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10, 4))
    still = sparse_self_expression(X, lam=0.5, affine=True, tol=1e-11, max_iter=1000)
    moved = sparse_self_expression(X + 2, lam=0.5, affine=True, tol=1e-11, max_iter=1000)
    # A row inside the convex hull of others has many minimisers: its fit and penalty are unique.
    assert_allclose(moved.objective, still.objective, atol=1e-9)
    assert_allclose(moved.coef @ X, still.coef @ X, atol=1e-4)
    unique = np.arange(10) != 8
    assert_allclose(moved.coef.toarray()[unique], still.coef.toarray()[unique], atol=1e-4)


def test_affine_with_huge_and_per_row_penalties():
    X = np.random.default_rng(0).standard_normal((7, 4))
    lam = np.array([1e-2, 0.1, 1, 10, 100, 1e3, 1e4])
    found = sparse_self_expression(X, lam=lam, affine=True, max_iter=2000)
    assert found.converged.all()
    # With lam huge the l1 norm is its least, one: a convex combination.
    assert found.coef.toarray()[-1].min() >= -1e-9


def test_affine_zero_rows_and_duplicates():
    X = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    found = sparse_self_expression(X, lam=0.1, affine=True)
    assert_allclose(found.coef.toarray()[1], [0, 0, 1, 0], atol=1e-6)
    assert found.converged.all()


def test_outliers_agree_with_the_oracle(X):
    found = outlier_self_expression(X, lam=0.5, lam_outlier=0.4, tol=1e-10)
    expected = oracle.outlier_self_expression(X, lam=0.5, lam_outlier=0.4)

    def objective(C):
        missed = X - C @ X
        E = np.sign(missed) * np.maximum(np.abs(missed) - 0.2, 0)
        return (
            ((missed - E) ** 2).sum(axis=1)
            + 0.5 * np.abs(C).sum(axis=1)
            + 0.4 * np.abs(E).sum(axis=1)
        )

    assert_allclose(found.objective, objective(found.coef.toarray()), atol=1e-12)
    assert_allclose(found.objective, objective(expected), atol=1e-7)
    assert (found.coef.diagonal() == 0).all()
    assert np.abs(found.dual).max() <= 0.4 + 1e-12
    bound = np.abs(found.dual @ X.T)
    np.fill_diagonal(bound, 0)
    assert bound.max() <= 0.5 + 1e-12


def test_without_outliers_it_is_sparse_self_expression():
    X = np.random.default_rng(0).standard_normal((9, 5))
    found = outlier_self_expression(X, lam=0.5, lam_outlier=1e4, tol=1e-11).coef.toarray()
    plain = sparse_self_expression(X, lam=0.5, tol=1e-11).coef.toarray()
    assert_allclose(found, plain, atol=1e-6)


def test_corrupted_entries_are_found():
    X, _ = make_union_of_subspaces(15, n_subspaces=2, dimension=3, n_features=40, random_state=0)
    rng = np.random.default_rng(0)
    corrupted = rng.random(X.shape) < 0.02
    data = np.where(corrupted, X + 2, X)
    C = outlier_self_expression(data, lam=0.02, lam_outlier=0.02).coef
    missed = np.abs(data - C @ data)
    assert np.median(missed[corrupted]) > 10 * np.median(missed[~corrupted])


@settings(max_examples=25, deadline=None)
@given(data=st.data(), lam=st.floats(0.05, 5), ratio=st.floats(0.1, 10))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_outlier_gap_is_never_smaller_than_the_suboptimality(points, answer, data, lam, ratio):
    X = data.draw(points)
    penalties = {"lam": lam, "lam_outlier": ratio * lam}
    C = answer(oracle.outlier_self_expression, X, **penalties)
    np.fill_diagonal(C, 0)
    missed = X - C @ X
    E = np.sign(missed) * np.maximum(np.abs(missed) - ratio * lam / 2, 0)
    parts = ((missed - E) ** 2, lam * np.abs(C), ratio * lam * np.abs(E))
    best = sum(part.sum(axis=1) for part in parts)
    norm = np.where(X.any(axis=1), (X**2).sum(axis=1), 1)
    for max_iter in (1, 100):
        found = outlier_self_expression(X, tol=1e-9, max_iter=max_iter, **penalties)
        assert (found.gap >= (found.objective - best) / norm - 1e-12).all()


def test_alpha_is_the_scale_of_the_ssc_paper_cl1():
    """``min |C|_1 + mu / 2 |X - CX|_F^2`` with ``mu = alpha / m``, by interior points."""
    X = np.random.default_rng(0).standard_normal((9, 5))
    G = np.abs(X @ X.T)
    np.fill_diagonal(G, 0)
    mu = 7.0 / G.max(axis=1).min()
    C = cp.Variable((9, 9))
    objective = cp.sum(cp.abs(C)) + mu / 2 * cp.sum_squares(X - C @ X)
    cp.Problem(cp.Minimize(objective), [cp.diag(C) == 0]).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    found = sparse_self_expression(X, lam=lam_from_alpha(X, 7.0), tol=1e-12)
    assert_allclose(found.coef.toarray(), C.value, atol=1e-4)


def test_gamma_is_the_scale_of_the_elastic_net_paper_cl1():
    """Rows ``1/2 |x_i - c X|^2 + lam_i |c|_1``, ``lam_i = max_{j != i} |x_i . x_j| / gamma``."""
    X = np.random.default_rng(0).standard_normal((9, 5))
    found = sparse_self_expression(X, lam=lam_from_gamma(X, 5.0), tol=1e-12).coef.toarray()
    for i, x in enumerate(X):
        others = np.delete(X, i, axis=0)
        penalty = np.abs(others @ x).max() / 5.0
        lasso = Lasso(alpha=penalty / 5, fit_intercept=False, tol=1e-12, max_iter=10**6)
        assert_allclose(np.delete(found[i], i), lasso.fit(others.T, x).coef_, atol=1e-5)


def test_outlier_scale_is_that_of_the_circulated_code_cl3():
    """SSC on ``[X; I / g]`` at ``mu = alpha / m`` gives C, and ``E = C_e / g``."""
    X = np.random.default_rng(0).standard_normal((9, 5))
    g = 20 / np.abs(X).sum(axis=1).max()
    dictionary = np.vstack([X, np.eye(5) / g])
    G = np.abs(X @ dictionary.T)
    G[np.arange(9), np.arange(9)] = 0
    lam = 2 * G.max(axis=1).min() / 20
    codes = np.zeros((9, 14))
    for i, x in enumerate(X):
        others = np.delete(dictionary, i, axis=0)
        codes[i] = np.insert(sparse_code([x], others, lam=lam, tol=1e-12).coef.toarray(), i, 0)
    penalties = dict(zip(("lam", "lam_outlier"), outlier_lams_from_alpha(X, 20.0), strict=True))
    found = outlier_self_expression(X, tol=1e-12, **penalties)
    C = found.coef.toarray()
    assert_allclose(C, codes[:, :9], atol=1e-5)
    missed = X - C @ X
    E = np.sign(missed) * np.maximum(np.abs(missed) - penalties["lam_outlier"] / 2, 0)
    assert_allclose(E, codes[:, 9:] / g, atol=1e-5)


def test_scales_of_the_literature():
    X = np.random.default_rng(0).standard_normal((9, 5))
    G = np.abs(X @ X.T)
    np.fill_diagonal(G, 0)
    m = G.max(axis=1).min()
    # SSC paper: |C|_1 + mu/2 |X - CX|^2 with mu = alpha / m.
    assert lam_from_alpha(X, 7.0) == pytest.approx(2 / (7.0 / m))
    counts = np.diff(sparse_self_expression(X, lam=lam_from_alpha(X, 0.999)).coef.indptr)
    assert (counts == 0).any()
    assert (np.diff(sparse_self_expression(X, lam=lam_from_alpha(X, 1.05)).coef.indptr) > 0).all()
    # EnSC: 1/2 |x - cX|^2 + lam_i |c|_1 with lam_i = max |x_i . x_j| / gamma.
    assert_allclose(lam_from_gamma(X, 3.0), 2 * G.max(axis=1) / 3.0)
    assert_allclose(lam_from_gamma(X, 1.0), lam_max(X, X, zero_diagonal=True))
    # Circulated faces: g = alpha / max |x|_1, mu = alpha / m over [X; I / g], E = C_e / g.
    g = 20 / np.abs(X).sum(axis=1).max()
    extended = np.maximum(G.max(axis=1), np.abs(X).max(axis=1) / g).min()
    lam, lam_outlier = outlier_lams_from_alpha(X, 20.0)
    assert lam == pytest.approx(2 * extended / 20)
    assert lam / lam_outlier == pytest.approx(1 / g)


def test_float32_is_kept():
    X = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    for found in (
        basis_pursuit_self_expression(X),
        outlier_self_expression(X, lam=0.5, lam_outlier=0.5, tol=1e-5),
        sparse_self_expression(X, lam=0.5, affine=True, tol=1e-5),
    ):
        assert found.coef.dtype == np.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: basis_pursuit_self_expression([[np.nan], [1.0]]), "X: Input X contains NaN"),
        (lambda: basis_pursuit_self_expression([[1.0]]), "X: Found array with 1 sample"),
        (lambda: basis_pursuit_self_expression(np.eye(2), tol=0.0), "tol: must be > 0"),
        (lambda: basis_pursuit_self_expression(np.eye(2), max_iter=0), "max_iter: must be"),
        (lambda: sparse_self_expression(np.eye(2), lam=0.0, affine=True), "lam: must be finite"),
        (
            lambda: sparse_self_expression(np.eye(2), lam=1.0, affine=True, l1_ratio=0.0),
            "l1_ratio: must be > 0",
        ),
        (
            lambda: outlier_self_expression(np.eye(2), lam=1.0, lam_outlier=0.0),
            "lam_outlier: must be > 0",
        ),
        (lambda: lam_from_alpha(np.eye(2), 1.0), "X: has a row that is orthogonal"),
        (lambda: lam_from_alpha(np.ones((2, 2)), 0.0), "alpha: must be > 0"),
        (lambda: lam_from_gamma(np.eye(2), -1.0), "gamma: must be > 0"),
        (lambda: outlier_lams_from_alpha(np.zeros((2, 2)), 1.0), "X: has a zero row"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
