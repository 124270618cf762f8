import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import nadaraya_watson, smoother_matrix
from twinsolve.solvers.kernel_smoothing import (
    nadaraya_watson_residual,
    weighted_least_squares_residual,
)
from twinsolve.solvers.oracles.kernel_smoothing import weighted_least_squares


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((6, 3)),
        rng.standard_normal((9, 3)),
        rng.standard_normal((9, 2)),
    )


def literal(q, k, v, s, profile=lambda r: np.exp(-(r**2) / 2)):
    weights = profile(np.linalg.norm(q[:, None] - k, axis=-1) / s)
    return weights @ v / weights.sum(axis=1, keepdims=True)


def test_is_the_weighted_least_squares_estimate_of_the_oracle(points):
    q, k, v = points
    A = smoother_matrix(q, k, bandwidth=0.8)
    # Interior points solve this quadratic problem to about 1e-8 of its data.
    assert_allclose(
        nadaraya_watson(q, k, v, bandwidth=0.8), weighted_least_squares(A, v), atol=1e-6
    )


def test_residual_sees_wrong_estimates_through_tiny_and_huge_weights():
    k, y = np.linspace(0, 1, 5)[:, None], np.arange(5.0)[:, None]
    K = np.exp(-((28.5 - k.T) ** 2) / 2)
    assert K.max() < 1e-160  # squares of these are zero
    mean = K @ y / K.sum()
    for weights in (K, 1e300 * K, K / K.sum(), K / K.sum() * 1e300):
        wrong = weighted_least_squares_residual(weights, y, [[100.0]])
        assert_allclose(wrong, (100 - mean[0]) / 4, rtol=1e-14)
    assert weighted_least_squares_residual(K, y, mean)[0] < 1e-15


@pytest.mark.parametrize("scale", [1e-300, 1e306])
def test_residuals_have_no_unit(points, scale):
    q, k, v = points
    A = smoother_matrix(q, k, bandwidth=0.8)
    for u in (A @ v, A @ v + 1, 1e170 * A @ v if scale < 1 else 1e-170 * A @ v):
        expected = weighted_least_squares_residual(A, v, u)
        found = weighted_least_squares_residual(A, scale * v, scale * u)
        assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
        found = nadaraya_watson_residual(q, k, scale * v, scale * u, bandwidth=0.8)
        assert_allclose(found, expected, rtol=1e-11, atol=1e-15)


def test_streamed_residual_is_more_exact_than_products():
    """Two clusters far apart: products of matrices lose digits that differences keep."""
    rng = np.random.default_rng(0)
    k, v = np.array([[14.3], [15.1], [-14.2], [-14.9]]), np.array([[0.0], [1.0], [0.0], [1.0]])
    q = 14.6 * rng.choice([-1, 1], (200, 1)) + rng.uniform(-0.5, 0.5, (200, 1))
    weights = np.exp(-((q.astype(np.longdouble) - k.T) ** 2) / 2)
    best = (weights @ v / weights.sum(axis=1, keepdims=True)).astype(float)
    found = nadaraya_watson(q, k, v, bandwidth=1.0)
    assert np.abs(found - best).max() > 4e-15
    assert nadaraya_watson_residual(q, k, v, best, bandwidth=1.0).max() < 1e-15
    assert nadaraya_watson_residual(q, k, v, found, bandwidth=1.0).max() > 4e-15


def cauchy(r):
    return 1 / (1 + r**2)


KERNELS = [
    ("gaussian", lambda r: np.exp(-(r**2) / 2)),
    ("laplace", lambda r: np.exp(-r)),
    ("epanechnikov", lambda r: np.maximum(1 - r**2, 0)),
    (cauchy, cauchy),
    (lambda r: 1e306 * cauchy(r), cauchy),
]


@pytest.mark.parametrize(("kernel", "profile"), KERNELS)
def test_every_kernel_equals_its_formula_if9_to_if12(points, kernel, profile):
    found = nadaraya_watson(*points, bandwidth=2.5, kernel=kernel)
    assert_allclose(found, literal(*points, 2.5, profile), rtol=1e-12)
    q, k, v = points
    A = smoother_matrix(q, k, bandwidth=2.5, kernel=kernel)
    assert_allclose(A @ v, found, rtol=1e-12)
    assert_allclose(A.sum(axis=1), 1, rtol=1e-14)
    u, options = v[:6] + q[:, :2], {"kernel": kernel, "precision": [1.0, 0.5, 0.2]}
    K = profile(np.linalg.norm((q[:, None] - k) * np.sqrt([1.0, 0.5, 0.2]), axis=-1) / 2.5)
    residual = nadaraya_watson_residual(q, k, v, u, bandwidth=2.5, **options)
    assert_allclose(residual, weighted_least_squares_residual(K, v, u), rtol=1e-11)
    best = nadaraya_watson(q, k, v, bandwidth=2.5, **options)
    assert nadaraya_watson_residual(q, k, v, best, bandwidth=2.5, **options).max() < 1e-14


def test_printed_denominator_of_eq6_gives_the_plain_mean(points):
    q, k, v = points
    K = np.exp(-(np.linalg.norm(q[:, None] - k, axis=-1) ** 2) / 2)
    # Erratum E3-b: x_j inside the sum over i divides every term by N times itself.
    printed = sum(K[:, [j]] * v[j] / (len(k) * K[:, [j]]) for j in range(len(k)))
    assert_allclose(printed, np.broadcast_to(v.mean(axis=0), printed.shape), rtol=1e-12)
    assert np.abs(nadaraya_watson(q, k, v, bandwidth=1.0) - printed).max() > 1e-2


def test_mahalanobis_is_a_projection_of_queries_and_keys_se7m(points):
    q, k, v = points
    W = np.random.default_rng(1).standard_normal((3, 3))
    found = nadaraya_watson(q, k, v, bandwidth=1.0, precision=W @ W.T)
    assert_allclose(found, literal(q @ W, k @ W, v, 1.0), rtol=1e-10)


@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
@pytest.mark.parametrize("bandwidth", [1e-300, 1e300])
def test_extreme_bandwidths_average_ties_and_all(kernel, bandwidth):
    keys, values = [[0.0], [2.0], [2.0], [4.0]], [[1.0], [2.0], [4.0], [9.0]]
    found = nadaraya_watson(
        [[1.5], [3.0], [-9.0]], keys, values, bandwidth=bandwidth, kernel=kernel
    )
    nearest = [[3.0], [5.0], [1.0]]  # of 3.0: the keys 2, 2 and 4
    assert_allclose(found, nearest if bandwidth < 1 else [[4.0]] * 3, rtol=1e-14)


def test_precision_may_be_semidefinite_up_to_rounding_in_its_dtype():
    for dtype in [np.float32, np.float64]:
        rng = np.random.default_rng(0)
        q, k, v, W = (rng.standard_normal(shape) for shape in ((5, 16), (9, 16), (9, 2), (16, 4)))
        W = W.astype(dtype)
        P = W @ W.T
        P[0, 1] *= 1 + np.finfo(dtype).eps  # no more symmetric than products of rounded matrices
        found = nadaraya_watson(q, k, v, bandwidth=6.0, precision=P)
        # Logits are up to 10 or so.
        assert_allclose(found, literal(q @ W, k @ W, v, 6.0), atol=200 * np.finfo(dtype).eps)
        size = dtype(1e-4) * np.abs(P).max()
        indefinite = P - size * np.eye(16, dtype=dtype)
        with pytest.raises(ValueError, match="precision: must be positive semidefinite"):
            nadaraya_watson(q, k, v, bandwidth=6.0, precision=indefinite)
        P[0, 1] += size
        with pytest.raises(ValueError, match="precision: must be a symmetric"):
            nadaraya_watson(q, k, v, bandwidth=6.0, precision=P)


def test_the_dtype_is_that_of_the_points_and_values_alone(points):
    single = [x.astype(np.float32) for x in points]
    options = {"bandwidth": 2.0, "precision": np.array([1.0, 0.5, 2.0])}
    found = nadaraya_watson(*single, bandwidth=0.45)
    assert found.dtype == np.float32
    exact = nadaraya_watson(*(x.astype(np.float64) for x in single), bandwidth=0.45)
    # c = 69 is over the limit of products in float32: rounded once.
    assert_allclose(found, exact, atol=np.finfo(np.float32).eps / 2 * np.abs(exact).max())
    assert nadaraya_watson(*single, **options).dtype == np.float32
    assert smoother_matrix(*single[:2], **options).dtype == np.float32


@pytest.mark.parametrize("bandwidth", [1.0, 1e-2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_column_of_values_vanishes_beside_another(dtype, bandwidth):
    rng = np.random.default_rng(0)
    X, v = rng.random((8, 2)).astype(dtype), rng.random((8, 4)).astype(dtype)
    v[:, 3] = 0
    info = np.finfo(dtype)
    scales = np.array([info.max / 2, 1 / info.max, 1, 1], dtype)
    expected = nadaraya_watson(X, X, v, bandwidth=bandwidth)
    found = nadaraya_watson(X, X, v * scales, bandwidth=bandwidth)
    # 1 / max is subnormal: two bits of its values are lost.
    assert_allclose(found / scales, expected, rtol=8 * info.eps)


def test_means_of_the_largest_and_least_numbers_are_themselves():
    for dtype in [np.float32, np.float64]:
        X = np.random.default_rng(0).random((50, 2)).astype(dtype)
        # The mean of 50 equal numbers may be rounded up: not quite the largest.
        for value in (dtype(0.999) * np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal):
            found = nadaraya_watson(X, X, np.full((50, 1), value), bandwidth=0.5)
            assert_allclose(found.astype(np.longdouble) / value, 1, rtol=8 * np.finfo(dtype).eps)
