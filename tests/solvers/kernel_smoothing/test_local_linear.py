import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import local_linear_regression, nadaraya_watson, smoother_matrix
from twinsolve.solvers.kernel_smoothing import local_linear_residual
from twinsolve.solvers.oracles import kernel_smoothing as oracle

seeds = st.integers(0, 10**6)


def draw(seed, n_queries=5, n_keys=20, n_features=3, n_values=2):
    rng = np.random.default_rng(seed)
    shapes = (n_queries, n_features), (n_keys, n_features), (n_keys, n_values)
    return tuple(rng.standard_normal(shape) for shape in shapes)


def literal(q, k, v, A, reg=0.0):
    """Least squares of [1, k - q] by singular values, which finds the least [a, B] of all."""
    found = []
    for query, w in zip(q, A, strict=True):
        ridge = np.sqrt(reg * (w @ ((k - w @ k) ** 2).sum(axis=1)))
        design = np.sqrt(w)[:, None] * np.c_[np.ones(len(k)), k - query]
        penalty = ridge * np.eye(k.shape[1] + 1)[1:]
        right = np.r_[np.sqrt(w)[:, None] * v, np.zeros((k.shape[1], v.shape[1]))]
        found.append(np.linalg.lstsq(np.r_[design, penalty], right)[0][0])
    return np.array(found)


@pytest.mark.parametrize(
    ("kernel", "reg"), [("gaussian", 0.0), ("laplace", 0.1), (lambda r: 1 / (1 + r**2), 0.1)]
)
def test_equals_literal_least_squares_and_the_oracle(kernel, reg):
    q, k, v = draw(0)
    options = {"bandwidth": 1.2, "kernel": kernel}
    A = smoother_matrix(q, k, **options)
    expected = literal(q, k, v, A, reg)
    found = local_linear_regression(q, k, v, **options, reg=reg)
    # Condition numbers of the designs are below 1e2, of their squares below 1e4.
    assert_allclose(found, expected, atol=1e-11)
    assert local_linear_residual(q, k, v, found, **options, reg=reg).max() < 1e-13
    assert_allclose(found, oracle.local_linear_regression(A, q, k, v, reg=reg), atol=1e-6)


def test_offsets_that_leave_the_keys_unrounded_cost_no_digits():
    """Multiples of 1/8 plus 2^40: only the mean key is rounded, by 1e-4."""
    rng = np.random.default_rng(0)
    q, k = (rng.integers(-16, 17, (n, 3)) / 8 for n in (5, 20))
    B, a = rng.standard_normal((2, 3, 2))
    expected = a[0] + q @ B
    found = local_linear_regression(q + 2.0**40, k + 2.0**40, a[0] + k @ B, bandwidth=2.0)
    assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_keys_may_have_any_scale(scale):
    q, k, v = draw(8)
    for reg in (0.0, 0.1):
        expected = local_linear_regression(q, k, v, bandwidth=1.5, reg=reg)
        found = local_linear_regression(scale * q, scale * k, v, bandwidth=1.5 * scale, reg=reg)
        assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize(("variance", "determined"), [(0.25, False), (4.0, True)])
def test_variances_below_n_keys_eps_of_the_largest_determine_nothing(variance, determined):
    n_keys = 4000
    side = np.sqrt(variance * n_keys * np.finfo(float).eps)
    keys = np.tile([[1, side], [1, -side], [-1, side], [-1, -side]], (n_keys // 4, 1))
    values = np.sign(keys[:, 1:])
    found = local_linear_regression([[0, side], [1, 0]], keys, values, bandwidth=1e9)
    # Where it is determined, rounding of relative 1e-15 counts against a variance of 4e-12.
    assert_allclose(found, [[float(determined)], [0]], atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, n_keys=st.integers(1, 9), offset=st.sampled_from([0.0, 1e5]))
def test_repeated_keys_determine_no_slope(seed, n_keys, offset):
    """Rounding errors of their mean must not pass for a spread."""
    rng = np.random.default_rng(seed)
    keys = np.tile(offset + rng.standard_normal(2), (n_keys, 1))
    query, values = keys[:1] + rng.standard_normal((1, 2)), rng.standard_normal((n_keys, 2))
    found = local_linear_regression(query, keys, values, bandwidth=1.0)
    assert_allclose(found[0], values.mean(axis=0), atol=1e-13)


def test_collinear_keys_take_the_smallest_slope():
    rng = np.random.default_rng(2)
    t = rng.standard_normal(12)
    keys, values = np.outer(t, [3.0, 4.0]), t[:, None]
    queries = np.array([[3.0, 4.0], [-4.0, 3.0]])  # one along the line, one across
    found = local_linear_regression(queries, keys, values, bandwidth=5.0)
    assert_allclose(found, [[1.0], [0.0]], atol=1e-13)
    assert local_linear_residual(queries, keys, values, found, bandwidth=5.0).max() < 1e-14


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_residual_vanishes_at_the_estimate_alone(seed):
    q, k, v = draw(seed)
    options = {"bandwidth": 1.5, "precision": [1.0, 0.5, 2.0]}
    found = local_linear_regression(q, k, v, **options)
    assert local_linear_residual(q, k, v, found, **options).max() < 1e-12
    assert local_linear_residual(q, k, v, found + 0.5, **options).min() > 1e-3
    assert local_linear_residual(q, k, v, nadaraya_watson(q, k, v, **options), **options).max() > 0


def test_residual_has_no_unit():
    for scale in [1e-300, 1e306]:
        q, k, v = draw(7)
        options = {"bandwidth": 1.5, "reg": 0.1}
        wrong = local_linear_regression(q, k, v, **options) + 1
        expected = local_linear_residual(q, k, v, wrong, **options)
        assert expected.min() > 1e-3
        found = local_linear_residual(q, k, scale * v, scale * wrong, **options)
        assert_allclose(found, expected, rtol=1e-10)
        options["bandwidth"] *= scale
        found = local_linear_residual(scale * q, scale * k, v, wrong, **options)
        assert_allclose(found, expected, rtol=1e-10)
