"""What a `Solution` says of itself, for every solver that returns one."""

import ast
import warnings
from inspect import isfunction, signature
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from twinsolve.solvers import (
    Solution,
    basis_pursuit_self_expression,
    robust_low_rank_self_expression,
    solution,
    sparse_self_expression,
)
from twinsolve.solvers.sparse_coding import lam_max

from ..public import public
from . import solution_cases
from .conftest import make_points
from .solution_cases import CASES, dense

PROBLEMS = [case for case in CASES if case.warns and "ADMM" not in case.name]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
quietly = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def watched(call, *arguments, **options):
    """The solution, and the messages of the warnings that it came with."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call(*arguments, **options)
    return found, [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


def assert_certified(case, X, unit, found):
    expected = case.gap(X.astype(np.float64), unit, found)
    # Rounding of objectives whose terms are up to about 10 in the unit of the gap.
    slack = 1e-12 + 1e-9 * np.where(np.isfinite(expected), expected, 0)
    assert (found.gap >= np.maximum(expected, 0) - slack).all()
    if not case.above:
        assert (found.gap <= np.maximum(expected, 0) + slack).all()


@quietly
@every_case
@pytest.mark.parametrize(
    ("dtype", "unit", "rough"),
    [(np.float64, 1e-6, True), (np.float32, 1.0, False)],
)
def test_the_gap_is_that_of_the_coefficients_returned(case, dtype, unit, rough):
    X = (unit * np.random.default_rng(0).standard_normal((9, 5))).astype(dtype)
    found = case.solve(X, unit, **{case.steps: 3} if rough else {})
    assert found.coef.dtype == dtype
    assert found.gap.dtype == np.asarray(found.objective).dtype == np.float64
    assert_certified(case, X, unit, found)


# Gaps relative to the objective already, and residuals of optimality conditions.
WITHOUT = ("noiseless", "robust", "ADMM low rank", "proximal", "energy", "flow", "NeuTRENO")


@quietly
@every_case
def test_the_gap_relative_to_the_objective_bounds_its_excess(case):
    X = np.random.default_rng(0).standard_normal((9, 5))
    rough, best = case.solve(X, **{case.steps: 2}), case.solve(X)
    assert (rough.objective_gap is None) == case.name.startswith(WITHOUT)
    if rough.objective_gap is None:
        return
    assert np.shape(rough.objective_gap) == np.shape(rough.gap)
    assert (rough.objective_gap >= rough.gap * 1e-3).all()
    feasible = rough.gap < np.inf
    excess = (rough.objective - best.objective - 1e-5)[feasible] / rough.objective[feasible]
    assert (excess <= rough.objective_gap[feasible]).all()
    assert "of the objective)" in repr(rough)


MOVED = [case for case in CASES if case.affine and case.translates and not case.tokens]


@quietly
@pytest.mark.parametrize("case", MOVED, ids=lambda case: case.name)
def test_no_gap_depends_on_the_origin_of_affine_problems(case):
    X = np.random.default_rng(0).standard_normal((9, 5))
    here, there = (case.solve(X + shift, **{case.steps: 2}) for shift in (0, 4))
    np.testing.assert_allclose(there.gap, here.gap, rtol=1e-6, atol=1e-9)
    if here.objective_gap is not None:
        np.testing.assert_allclose(there.objective_gap, here.objective_gap, rtol=1e-6, atol=1e-9)


@quietly
def test_a_tiny_penalty_shows_in_the_gap_relative_to_the_objective():
    X = np.random.default_rng(0).standard_normal((40, 8))
    largest = lam_max(X, X, zero_diagonal=True)
    for share in (1e-2, 1e-10):
        found = sparse_self_expression(X, lam=share * largest)
        exact = sparse_self_expression(X, lam=share * largest, tol=1e-15)
        ratio = found.objective / exact.objective
        assert (1 - 1 / ratio <= found.objective_gap + 1e-9).all()
        expected = found.gap * (X**2).sum(axis=1) / found.objective
        np.testing.assert_allclose(found.objective_gap, expected)
        assert found.converged.all()
        assert (found.objective_gap.max() > 0.1) == (share < 1e-8)


@every_case
@pytest.mark.parametrize(
    ("kind", "dtype", "steps"),
    [("wide", np.float64, 1), ("coherent", np.float32, None)],
)
def test_converged_means_a_gap_of_at_most_tol_and_anything_else_warns(case, kind, dtype, steps):
    X = make_points(kind).astype(dtype)
    found, messages = watched(case.solve, X, **{case.steps: steps} if steps else {})
    assert isinstance(found, Solution)
    assert_array_equal(found.converged, found.gap <= found.tol)
    assert np.shape(found.n_iter) == np.shape(found.gap) == np.shape(found.converged)
    assert not np.isnan(found.gap).any()
    missed = not found.converged.all()
    assert f"tol={found.tol:.3g}" in found.message
    assert missed == ("; " in found.message.split("tol=")[-1])
    if case.warns:
        assert messages[-1:] == [found.message] * missed
    if missed:
        worst = np.max(found.gap[~found.converged] if found.gap.ndim else found.gap)
        assert f"{worst:.3g}" in found.message
        assert any(word in found.message for word in ("increase", "decrease", "pass float64"))


@pytest.mark.parametrize("case", [c for c in CASES if c.warns], ids=lambda case: case.name)
def test_tol_is_the_one_asked_for(case):
    X = np.random.default_rng(0).standard_normal((9, 5))
    assert watched(case.solve, X, tol=1e-2)[0].tol == 1e-2


@pytest.mark.parametrize("case", PROBLEMS, ids=lambda case: case.name)
def test_float32_reaches_the_default_tolerance_on_unit_rows_and_none_beyond_its_rounding(case):
    X = np.random.default_rng(0).standard_normal((12, 6))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    found, messages = watched(case.solve, X)
    assert found.converged.all()
    assert not messages
    X = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    found, _ = watched(case.solve, X, tol=1e-10)
    assert_certified(case, X, 1.0, found)
    # Equal pixels stay equal in float32, so that rounding moves this gap in its square alone.
    assert found.converged.all() == (case.name == "total variation")


def test_float32_that_rounding_keeps_from_the_tolerance_says_so():
    X = np.random.default_rng(0).standard_normal((30, 20))
    exact, messages = watched(robust_low_rank_self_expression, X, lam=100.0)
    assert exact.converged
    assert not messages
    rounded, messages = watched(robust_low_rank_self_expression, X.astype(np.float32), lam=100.0)
    assert not rounded.converged
    assert rounded.gap > 1e-5
    assert messages == [rounded.message]
    assert "rounding to float32 is the cause: pass float64 data, or increase tol" in messages[0]


DEGENERATE = {
    "zero rows": [[0.0, 0.0], [1.0, 0.0], [2.0, 1.0], [0.0, 0.0], [1.0, 3.0]],
    "zeros": np.zeros((4, 3)),
    "duplicates": [[1.0, 2.0], [1.0, 2.0], [0.5, -1.0], [0.5, -1.0], [1.0, 2.0]],
    "constant": np.full((5, 3), 0.7),
    "rank one": np.outer([1.0, -2.0, 0.5, 3.0], [1.0, 2.0, -1.0]),
    "one feature": [[1.0], [2.0], [-1.0], [0.5]],
    "two samples": [[1.0, 0.5], [0.3, -0.2]],
    "two equal samples": [[1.0, 0.5], [1.0, 0.5]],
}


@every_case
def test_degenerate_data_are_solved_and_certified(case):
    for kind, points in DEGENERATE.items():
        X = np.array(points, dtype=np.float64)
        found, _ = watched(case.solve, X)
        C = dense(found.coef)
        assert np.isfinite(C).all(), kind
        assert_certified(case, X, 1.0, found)
        zero = ~X.any(axis=1)
        if not case.affine and not case.tokens and zero.any():
            assert not C[zero].any(), kind
            if found.gap.ndim:
                assert (found.gap[zero] == 0).all(), kind
                assert found.converged[zero].all(), kind
        if case in PROBLEMS and "noiseless" not in case.name:
            assert found.converged.all(), kind
        if case in PROBLEMS and case.affine and kind == "constant":
            assert found.gap.max() < 1e-12


def test_rows_that_have_no_exact_representation_are_those_outside_the_span():
    """Of two samples neither has an affine combination of the other, unless they are equal."""
    for kind, solvable in [("two samples", False), ("two equal samples", True), ("zeros", True)]:
        found, messages = watched(basis_pursuit_self_expression, DEGENERATE[kind], affine=True)
        assert (np.isfinite(found.gap) == solvable).all()
        assert (found.converged == solvable).all()
        assert bool(messages) != solvable


def test_every_solver_that_returns_a_solution_is_a_case():
    returning = {
        name
        for name, tried in public("solvers").items()
        if isfunction(tried) and "Solution" in str(signature(tried).return_annotation)
    }
    tree = ast.parse(Path(solution_cases.__file__).read_text())
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert len(returning) == 22
    # Gaps in grey levels, and of a direct solver: see test_learned_filters.py and test_segments.py.
    assert returning - called == {"minimize_convex_ridge", "signal_variation"}


def test_only_the_one_place_makes_a_solution():
    """`certified`: so none can hold the certificate of other coefficients than its own."""
    made = []
    for path in Path(solution.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Solution":
                made.append(path.name)
    assert made == ["solution.py"]
