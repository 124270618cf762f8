import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import softmax

from twinsolve.solvers import nadaraya_watson, smoother_matrix, weighted_least_squares_residual
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
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        weights = [profile(np.linalg.norm(q[i] - k[j]) / s) for j in range(len(k))]
        out[i] = sum(w * y for w, y in zip(weights, v, strict=True)) / sum(weights)
    return out


@pytest.mark.parametrize("bandwidth", [0.3, 1.0, 5.0])
def test_equals_the_double_loop(points, bandwidth):
    expected = literal(*points, bandwidth)
    assert_allclose(nadaraya_watson(*points, bandwidth=bandwidth), expected, rtol=1e-12)


def test_is_the_weighted_least_squares_estimate_of_the_oracle(points):
    q, k, v = points
    A = smoother_matrix(q, k, bandwidth=0.8)
    # Interior points solve this quadratic problem to about 1e-8 of its data.
    assert_allclose(
        nadaraya_watson(q, k, v, bandwidth=0.8), weighted_least_squares(A, v), atol=1e-6
    )


def test_residual_vanishes_at_the_estimate_alone(points):
    q, k, v = points
    A = smoother_matrix(q, k, bandwidth=0.8)
    assert weighted_least_squares_residual(7 * A, v, A @ v).max() < 1e-14
    assert weighted_least_squares_residual(A, v, A @ v + 0.1).min() > 1e-2


def test_laplace_and_user_kernels_equal_the_double_loop(points):
    def cauchy(r):
        return 1 / (1 + r**2)

    for kernel, profile in (("laplace", lambda r: np.exp(-r)), (cauchy, cauchy)):
        found = nadaraya_watson(*points, bandwidth=0.7, kernel=kernel)
        assert_allclose(found, literal(*points, 0.7, profile), rtol=1e-12)


def test_bandwidth_limits_are_nearest_neighbour_and_mean(points):
    q, k, v = points
    nearest = v[np.linalg.norm(q[:, None] - k, axis=-1).argmin(axis=1)]
    assert_allclose(nadaraya_watson(q, k, v, bandwidth=1e-3), nearest, atol=1e-12)
    mean = np.broadcast_to(v.mean(axis=0), (len(q), 2))
    assert_allclose(nadaraya_watson(q, k, v, bandwidth=1e7), mean, atol=1e-12)


def test_equal_key_norms_make_it_dot_product_attention_se7(points):
    q, k, v = points
    k = k / np.linalg.norm(k, axis=1, keepdims=True)
    s = 0.6
    found = nadaraya_watson(q, k, v, bandwidth=s)
    assert_allclose(found, softmax(q @ k.T / s**2, axis=1) @ v, rtol=1e-12)
    printed = softmax(q @ k.T / (2 * s**2), axis=1) @ v  # erratum E3-a
    assert np.abs(found - printed).max() > 1e-2


def test_key_norms_do_not_cancel(points):
    q, k, v = points
    without_key_bias = softmax(q @ k.T, axis=1) @ v
    assert np.abs(nadaraya_watson(q, k, v, bandwidth=1.0) - without_key_bias).max() > 1e-2


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


def test_semidefinite_precision_ignores_directions(points):
    q, k, v = points
    found = nadaraya_watson(q, k, v, bandwidth=1.0, precision=np.diag([1.0, 0.0, 0.0]))
    assert_allclose(found, literal(q[:, :1], k[:, :1], v, 1.0), rtol=1e-12)


def test_blocks_of_queries_change_nothing(points, monkeypatch):
    whole = nadaraya_watson(*points, bandwidth=0.5)
    monkeypatch.setattr("twinsolve.solvers.kernel_smoothing.regression._BLOCK_ENTRIES", 18)
    assert_allclose(nadaraya_watson(*points, bandwidth=0.5), whole, rtol=1e-15)


@given(shift=st.floats(-50, 50), seed=st.integers(0, 100))
def test_invariant_to_translation_and_permutation_of_keys(shift, seed):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, 2)) for n in (3, 5, 5))
    order = rng.permutation(5)
    found = nadaraya_watson(q + shift, k[order] + shift, v[order], bandwidth=1.0)
    assert_allclose(found, nadaraya_watson(q, k, v, bandwidth=1.0), atol=1e-11)


def test_float32_is_kept_and_computed_in_float64(points):
    single = [x.astype(np.float32) for x in points]
    found = nadaraya_watson(*single, bandwidth=0.5)
    assert found.dtype == np.float32
    exact = nadaraya_watson(*(x.astype(np.float64) for x in single), bandwidth=0.5)
    assert_allclose(found, exact, atol=np.finfo(np.float32).eps * np.abs(exact).max())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bandwidth": 0.0}, "bandwidth: must be > 0"),
        ({"bandwidth": np.nan}, "bandwidth: must be"),
        ({"kernel": "cosine"}, "kernel: must be a callable or one of"),
        ({"kernel": ["gaussian"]}, "kernel: must be a callable or one of"),
        ({"kernel": lambda r: -r}, "kernel: must return"),
        ({"kernel": lambda r: 0.0 * r}, "bandwidth: query 0 has no key"),
        ({"precision": np.eye(2)}, "precision: has 2 columns"),
        ({"precision": np.triu(np.ones((3, 3)))}, "precision: must be a symmetric"),
        ({"precision": -np.eye(3)}, "precision: must be positive semidefinite"),
    ],
)
def test_bad_settings_are_named(points, change, words):
    with pytest.raises(ValueError, match=words):
        nadaraya_watson(*points, **({"bandwidth": 1.0} | change))


def test_bad_shapes_are_named(points):
    q, k, v = points
    with pytest.raises(ValueError, match="queries: has 2 columns"):
        nadaraya_watson(q[:, :2], k, v, bandwidth=1.0)
    with pytest.raises(ValueError, match="values: has 8 rows, but there are 9 keys"):
        nadaraya_watson(q, k, v[:8], bandwidth=1.0)
    with pytest.raises(ValueError, match="weights: every row"):
        weighted_least_squares_residual(np.zeros((6, 9)), v, np.zeros((6, 2)))
