import numpy as np
import pytest

from twinsolve.solvers import low_rank_sparse_self_expression, sparse_self_expression
from twinsolve.solvers.inputs import check_row_stochastic
from twinsolve.solvers.scales import frobenius_norm, unit_size, unit_under


def test_a_solution_prints_in_a_line_what_one_asks_first():
    X = np.random.default_rng(0).standard_normal((40, 5))
    solution = sparse_self_expression(X, lam=0.5)
    nonzero = np.count_nonzero(solution.coef.toarray())
    assert repr(solution) == str(solution)
    assert repr(solution) == (
        f"Solution(coef 40 x 40 with {nonzero} nonzeros, "
        f"objective {solution.objective.sum():.6g} in all, largest gap {solution.gap.max():.1e} "
        f"({solution.objective_gap.max():.1e} of the objective), "
        f"at most {solution.n_iter.max()} iterations, converged to 1e-06: 40 of 40)"
    )
    together = low_rank_sparse_self_expression(X, beta=1.0, lam=0.5, tol=1e-3)
    one = repr(together)
    assert one.startswith("Solution(coef 40 x 40 with ")
    assert f"objective {float(together.objective):.6g}, " in one
    assert one.endswith("converged to 0.001: True)")


def test_check_row_stochastic_takes_out_rounding_and_refuses_more():
    for dtype, small, large in [(np.float32, 1e-4, 2e-4), (float, 9e-7, 2e-6)]:
        A = np.array([[0.25, 0.75], [1.5, -0.5]])
        checked, own = check_row_stochastic(((1 + small) * A).astype(dtype), "A")
        assert checked.dtype == np.float64
        assert own == dtype
        np.testing.assert_allclose(checked.sum(axis=1), 1, rtol=4e-16)
        with pytest.raises(
            ValueError, match=r"^A: every row must sum to 1, but row [01] is off by"
        ):
            check_row_stochastic(((1 - large) * A).astype(dtype), "A")


def test_norms_and_unit_sizes_of_any_scale():
    for exponent in [-1060, -600, 0, 600, 1020]:
        X = np.array([[3.0, 0.0], [0.0, -4.0]])
        scaled = np.ldexp(X, exponent)
        assert frobenius_norm(scaled) == np.ldexp(5.0, exponent)
        # Over 8, the power of two above 4.
        np.testing.assert_array_equal(unit_size(scaled), X / 4)
        assert frobenius_norm(0 * X) == 0
        assert not unit_size(0 * X).any()


def test_units_of_all_arrays_or_of_each_column():
    X, Y = np.array([[3.0, -0.75], [0.0, 0.5]]), np.array([[8.0, 1e-3]])
    assert unit_under(X) == 2
    assert unit_under(X, Y) == unit_under(-Y, X) == 8
    np.testing.assert_array_equal(unit_under(X, Y, axis=0), [8, 0.5])
