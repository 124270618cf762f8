import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import linprog
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from twinsolve.datasets import make_union_of_subspaces
from twinsolve.solvers import (
    basis_pursuit_self_expression,
    sparse_self_expression,
)
from twinsolve.solvers.oracles import self_expression as oracle
from twinsolve.solvers.self_expression.constrained import certify_affine
from twinsolve.solvers.sparse_coding import lasso_objective
from twinsolve.solvers.sparse_coding.penalty import Penalty


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
    # On some processors the worst gap, of affine data, stands at 1.03e-9: rounding of the duals.
    found = basis_pursuit_self_expression(X, affine=affine, tol=1e-8)
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


@pytest.mark.parametrize("dimension", [2, 3])
def test_a_point_takes_at_most_d_others_of_its_own_subspace_se11(dimension):
    X, y = make_union_of_subspaces(
        30, n_subspaces=3, n_features=20, dimension=dimension, random_state=0
    )
    C = basis_pursuit_self_expression(X).coef.toarray()
    assert_allclose(C @ X, X, atol=1e-12)
    taken = np.abs(C) > 1e-8
    assert taken.sum(axis=1).max() == dimension
    assert not taken[y[:, None] != y].any()


def test_a_row_outside_the_span_of_the_others_is_reported():
    X = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    with pytest.warns(ConvergenceWarning, match="may not be in the span of the others"):
        found = basis_pursuit_self_expression(X)
    assert_allclose(found.gap, [0, 0, np.inf, 0], atol=1e-14)
    assert_allclose(found.coef.toarray()[:2, :2], [[0, 0.5], [2, 0]])
    assert not found.coef.toarray()[2:].any()


@pytest.mark.parametrize(("l1_ratio", "nonnegative"), [(1.0, False), (1.0, True), (0.6, False)])
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
    penalty = Penalty.checked(lam, 9, l1_ratio, nonnegative, zero_diagonal=True)
    objective, gap, _ = certify_affine(X, X, csr_array(C), penalty)
    norm = ((X - X.mean(axis=0)) ** 2).sum(axis=1) + lam * l1_ratio
    excess = (objective - lasso_objective(X, X, best, lam=lam, l1_ratio=l1_ratio)) / norm
    assert (gap >= excess - 1e-12 * (1 + objective / norm)).all()


def test_affine_with_huge_and_per_row_penalties():
    X = np.random.default_rng(0).standard_normal((7, 4))
    lam = np.array([1e-2, 0.1, 1, 10, 100, 1e3, 1e4])
    found = sparse_self_expression(X, lam=lam, affine=True, max_iter=2000)
    assert found.converged.all()
    # With lam huge the l1 norm is its least, one: a convex combination.
    assert found.coef.toarray()[-1].min() >= -1e-9


def test_affine_basis_pursuit_of_equal_points_sums_to_one():
    for value, dtype in [(0.0, np.float64), (1 / 3, np.float32), (7.3, np.float64)]:
        for n in (3, 100):
            found = basis_pursuit_self_expression(np.full((n, 4), value, dtype), affine=True)
            assert found.converged.all()
            assert_allclose(found.coef.sum(axis=1), 1, rtol=np.finfo(dtype).eps * n)


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 1), (1, 1e8)])
def test_affine_basis_pursuit_converges_far_from_the_origin(scale, shift):
    rng = np.random.default_rng(0)
    planes = [rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6)) for _ in range(3)]
    X = scale * np.vstack([plane + rng.standard_normal(6) for plane in planes]) + shift
    assert basis_pursuit_self_expression(X, affine=True).converged.all()
