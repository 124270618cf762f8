"""Accuracy of the products behind Gaussian weights, the way out where they fail, and memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import nadaraya_watson, smoother_matrix
from twinsolve.solvers.kernel_smoothing import nadaraya_watson_residual
from twinsolve.solvers.kernel_smoothing.weights import Distances, Products, prepare_weights


def exact(q, k, v, bandwidth):
    """In extended precision, from differences; also the logits of the nearest keys."""
    q, k, v = (np.asarray(x, np.longdouble) for x in (q, k, v))
    logits = -((q[:, None] - k) ** 2).sum(axis=-1) / (2 * np.longdouble(bandwidth) ** 2)
    top = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - top)
    return (weights @ v) / weights.sum(axis=1, keepdims=True), top


def prepared(q, k, bandwidth):
    return prepare_weights(q, k, bandwidth, "gaussian", None, np.result_type(q, k))


def squares(q, k, bandwidth):
    centre = k.mean(axis=0)
    return sum((((x - centre) / bandwidth) ** 2).sum(axis=1).max() for x in (q, k))


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bandwidth=st.floats(-7, 3).map(lambda x: 10.0**x),
    offset=st.sampled_from([0.0, 100.0, 1e6]),
    gap=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_float64_is_right_at_any_offset_spread_and_bandwidth(seed, bandwidth, offset, gap):
    """Clusters of nearly coincident points, as wide as the bandwidth, with gaps between them."""
    rng = np.random.default_rng(seed)
    where = offset + gap * bandwidth * rng.integers(0, 3, (12, 3))
    points = where + bandwidth * rng.standard_normal((12, 3))
    q, k, v = points[:5], points[5:], rng.random((7, 2))
    expected, top = exact(q, k, v, bandwidth)
    eps = np.finfo(np.float64).eps
    # Values are in [0, 1]. Logits from products are wrong by a few times eps * 512; those from
    # differences by a few times eps of themselves, of which those near the greatest matter.
    tolerance = 8 * eps * (512 + np.abs(top).max())
    assert_allclose(nadaraya_watson(q, k, v, bandwidth=bandwidth), expected, atol=float(tolerance))
    residual = nadaraya_watson_residual(q, k, v, expected.astype(float), bandwidth=bandwidth)
    assert residual.max() < tolerance


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bandwidth=st.sampled_from([0.01, 0.3, 1.0, 3.0, 100.0]),
    offset=st.sampled_from([0.0, 100.0]),
)
def test_float32_is_right_to_its_accuracy(seed, bandwidth, offset):
    rng = np.random.default_rng(seed)
    q, k = ((offset + rng.standard_normal((n, 4))).astype(np.float32) for n in (9, 20))
    v = rng.random((20, 2)).astype(np.float32)
    expected, _ = exact(q, k, v, bandwidth)
    found = nadaraya_watson(q, k, v, bandwidth=bandwidth)
    assert found.dtype == np.float32
    # A few times eps * c for the logits where products are in float32, and a few eps for the rest.
    c = min(squares(q.astype(float), k.astype(float), bandwidth), 64)
    assert_allclose(found, expected, atol=np.finfo(np.float32).eps * (4 + 2 * c))


def test_the_route_follows_the_bound_on_the_error():
    q = np.random.default_rng(2).standard_normal((50, 4))
    q32 = q.astype(np.float32)
    largest = squares(q, q, 1.0)
    for points, limit, beyond in ((q32, 64, np.float64), (q, 512, None)):
        inside = prepared(points, points, 1.01 * np.sqrt(largest / limit))
        assert isinstance(inside, Products)
        assert inside.keys.dtype == points.dtype
        outside = prepared(points, points, 0.99 * np.sqrt(largest / limit))
        assert isinstance(outside, Distances if beyond is None else Products)
        assert outside.keys.dtype == np.float64
    assert isinstance(prepared(1e300 * q, 1e300 * q, 1.0), Distances)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_weight_underflows_on_the_way_by_products(dtype):
    """Two points as far apart as the limit allows."""
    limit = 64 if dtype == np.float32 else 512
    half = 0.999 * np.sqrt(limit / 2)
    keys = np.array([[half], [-half]], dtype)
    weights = prepared(-keys[:1], keys, 1.0)
    assert weights.keys.dtype == dtype
    (tile,) = weights.tiles(slice(0, 1))
    assert_allclose(np.log(tile.weights[0, 0]), -2 * half**2, rtol=1e-5)


def test_memory_is_that_of_the_points_and_a_tile():
    rng = np.random.default_rng(4)
    X, v = rng.random((4000, 8)), rng.random((4000, 3))
    for kernel in ("gaussian", "laplace"):
        nadaraya_watson(X[:9], X[:9], v[:9], bandwidth=1.0, kernel=kernel)  # compiles
        tracemalloc.start()
        u = nadaraya_watson(X, X, v, bandwidth=1.0, kernel=kernel)
        nadaraya_watson_residual(X, X, v, u, bandwidth=1.0, kernel=kernel)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # A handful of copies of X (0.25 MB) and one tile of 0.8 MB; all weights take 128 MB.
        assert peak < 6e6


def test_the_matrix_is_allocated_once():
    X = np.random.default_rng(5).random((2000, 3))
    smoother_matrix(X[:9], X[:9], bandwidth=1.0)
    tracemalloc.start()
    smoother_matrix(X, X, bandwidth=1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.8 * X.shape[0] ** 2 * 8
