import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.linalg import matrix_power
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, csr_matrix
from scipy.special import softmax

from twinsolve.solvers import (
    boost,
    l2_boosting,
    nadaraya_watson,
    nonlocal_means,
    smoother_matrix,
    twicing,
)
from twinsolve.solvers.boosting import method_noise, residual_noise_share
from twinsolve.solvers.image_filters import nonlocal_means_matrix

SHRINKAGE = st.floats(0.01, 1.0)


def smoother_and_values(seed=0):
    rng = np.random.default_rng(seed)
    return softmax(rng.standard_normal((5, 5)), axis=1), rng.standard_normal((5, 2))


def symmetric(mu, seed=0):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(mu), len(mu))))
    return (basis * mu) @ basis.T, basis


@given(seed=st.integers(0, 200))
def test_twicing_is_two_a_minus_a_squared(seed):
    A, V = smoother_and_values(seed)
    assert_allclose(twicing(A, V), (2 * A - A @ A) @ V, atol=1e-13)


@given(seed=st.integers(0, 200))
def test_rows_of_two_a_minus_a_squared_sum_to_one(seed):
    A, _ = smoother_and_values(seed)
    kernel = twicing(A, np.eye(5))
    assert_allclose(kernel.sum(axis=1), 1, rtol=1e-13)
    assert twicing([[0.0, 1.0], [1.0, 0.0]], np.eye(2)).min() == -1


def test_a_positive_semidefinite_smoother_may_be_too_large():
    """Eigenvalue 3: the factor is -2 a step, and nothing tends to a projection."""
    u = l2_boosting(np.diag([1.0, 3.0]), np.ones((2, 1)), n_iter=10)
    assert_allclose(u, [[1.0], [1 - 2.0**10]])


def test_printed_sign_smooths_twice_instead_e0n():
    A, V = smoother_and_values()
    Y = A @ V
    printed = Y + A @ (Y - V)  # erratum E0-n
    assert_allclose(printed, A @ A @ V, atol=1e-14)
    assert np.abs(twicing(A, V) - printed).max() > 1e-2


def test_takes_a_function_and_a_sparse_matrix():
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((6, 2)), rng.standard_normal((6, 3))
    A = smoother_matrix(X, X, bandwidth=0.5)
    expected = twicing(A, V)
    found = twicing(lambda values: nadaraya_watson(X, X, values, bandwidth=0.5), V)
    assert_allclose(found, expected, atol=1e-14)
    for sparse in (csr_array, csr_matrix):
        assert_allclose(twicing(sparse(A), V), expected, atol=1e-14)
    assert_allclose(twicing(A.tolist(), V.tolist()), expected, atol=1e-14)


@pytest.mark.parametrize(("n_iter", "shrinkage"), [(1, 1.0), (2, 1.0), (5, 1.0), (7, 0.3)])
def test_response_of_a_symmetric_smoother_and_constants(n_iter, shrinkage):
    """Filter responses (NT-FR): attention mu, twicing 1 - (1 - mu)^2, and so on."""
    X = np.random.default_rng(0).standard_normal((6, 2))
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    d = np.sqrt(K.sum(1))
    mu, vectors = np.linalg.eigh(K / np.outer(d, d))
    V = vectors / d[:, None]
    A = K / K.sum(1, keepdims=True)
    found = l2_boosting(A, V, n_iter=n_iter, shrinkage=shrinkage)
    assert_allclose(found, V * (1 - (1 - shrinkage * mu) ** n_iter), atol=1e-13)
    constant = l2_boosting(A, np.ones((6, 1)), n_iter=n_iter, shrinkage=shrinkage)
    assert_allclose(constant, 1 - (1 - shrinkage) ** n_iter, rtol=1e-13)
    assert_allclose(twicing(A, V), V * (1 - (1 - mu) ** 2), atol=1e-13)


@given(seed=st.integers(0, 200), n_iter=st.integers(0, 12), nu=SHRINKAGE)
def test_steps_are_one_minus_the_power_of_what_is_left(seed, n_iter, nu):
    A, y = smoother_and_values(seed)
    operator = np.eye(5) - matrix_power(np.eye(5) - nu * A, n_iter)
    # |I - nu A| is at most 1 + nu in the maximum norm, and so are rounding errors a step.
    found = l2_boosting(A, y, n_iter=n_iter, shrinkage=nu)
    assert_allclose(found, operator @ y, atol=1e-14 * (1 + nu) ** n_iter * 10)


def test_iterates_are_recorded_and_twicing_is_the_second():
    A, y = smoother_and_values()
    path = {}
    last = l2_boosting(A, y, n_iter=3, callback=path.__setitem__)
    assert list(path) == [0, 1, 2, 3]
    assert_array_equal(path[0], 0)
    assert_array_equal(path[1], A @ y)
    assert_array_equal(path[2], twicing(A, y))
    assert_array_equal(path[3], last)


@given(
    mu=st.lists(st.floats(-0.5, 3.0), min_size=1, max_size=5),
    nu=SHRINKAGE,
    seed=st.integers(0, 200),
)
def test_diverges_if_and_only_if_a_factor_exceeds_one(mu, nu, seed):
    """For diagonalisable smoothers: largest component after m steps against |1 - nu mu|^m."""
    left = np.abs(1 - nu * np.array(mu))
    assume((np.abs(left - 1) > 0.02).all() or (left <= 1).all())
    A, basis = symmetric(np.array(mu), seed)
    u = l2_boosting(A, basis.sum(axis=1, keepdims=True), n_iter=400, shrinkage=nu)
    size = np.abs(basis.T @ u).max()
    # Growth by 1.02 a step is 2700 in 400 steps; a converging component never exceeds 2.
    assert size > 1000 if (left > 1).any() else size <= 2 + 1e-9


def test_a_defective_smoother_diverges_at_factors_of_one():
    """Why the condition says diagonalisable: here mu = 0 and the iterates grow linearly."""
    u = l2_boosting([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], n_iter=50)
    assert_allclose(u, [[50.0], [0.0]])


@pytest.mark.parametrize("filter", [[[-1.0]], csr_array([[-1.0]]), lambda y: -y])
def test_what_overflows_is_refused(filter):
    # |1 - mu| = 2 leaves the range of float64 after 1024 steps.
    with pytest.raises(ValueError, match=r"smoother: iterate 102\d holds NaN or infinity"):
        l2_boosting(filter, [[1.0]], n_iter=2000)
    assert np.isfinite(l2_boosting(filter, [[1.0]], n_iter=1000)).all()


def test_limit_is_the_projection_on_the_range():
    """A positive semidefinite smoother: the noise in its range comes back."""
    A, basis = symmetric(np.array([1.0, 0.8, 0.4, 0.0, 0.0]))
    y = np.random.default_rng(1).standard_normal((5, 2))
    kept = basis[:, :3] @ basis[:, :3].T @ y
    # 0.6^100 is below 1e-22.
    assert_allclose(l2_boosting(A, y, n_iter=100), kept, atol=1e-12)


def test_smaller_steps_reach_the_same_limit_later():
    A, basis = symmetric(np.array([1.0, 0.5]))
    y = basis.sum(axis=1, keepdims=True)
    for n_iter in (1, 4, 16):
        errors = [
            np.linalg.norm(y - l2_boosting(A, y, n_iter=n_iter, shrinkage=nu))
            for nu in (1.0, 0.5, 0.1)
        ]
        assert errors[0] < errors[1] < errors[2]
    assert_allclose(l2_boosting(A, y, n_iter=1000, shrinkage=0.1), y, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 3)])
def test_images_and_filters_that_are_not_linear(shape):
    image = np.random.default_rng(0).random(shape)

    def smooth(y):
        axis = -1 if y.ndim == 3 else None
        return nonlocal_means(y, patch_size=3, patch_distance=2, h=0.3, channel_axis=axis)

    once = smooth(image)
    assert_array_equal(twicing(smooth, image), once + smooth(image - once))
    path = {}
    l2_boosting(smooth, image, n_iter=3, shrinkage=0.5, callback=path.__setitem__)
    for m in range(3):
        assert_allclose(path[m + 1], path[m] + 0.5 * smooth(image - path[m]), rtol=1e-15)


def test_a_matrix_takes_an_image_as_one_row_a_pixel():
    image = np.random.default_rng(0).random((6, 5))
    A = nonlocal_means_matrix(image, patch_size=3, patch_distance=2, h=0.3)
    flat = twicing(A, image.reshape(-1, 1))
    found = twicing(lambda y: (A @ y.ravel()).reshape(y.shape), image)
    assert_allclose(found, flat.reshape(image.shape), rtol=1e-14)


def test_filters_may_write_into_their_argument_and_reuse_their_output():
    y = np.random.default_rng(0).standard_normal((4, 2))
    kept, buffer = y.copy(), np.empty((4, 2))

    def halve(x):
        x *= 0.5
        buffer[:] = x
        return buffer

    assert_allclose(l2_boosting(halve, y, n_iter=3), 0.875 * y, rtol=1e-15)
    assert_allclose(boost(halve, y, t=0, n_iter=3), 1.5**3 * y, rtol=1e-15)
    assert_allclose(method_noise(halve, y), 0.5 * y, rtol=1e-15)
    assert residual_noise_share(halve, y, y) == 0.5
    assert_array_equal(y, kept)


def test_float32_is_kept():
    A, y = smoother_and_values()
    A32, y32 = A.astype(np.float32), y.astype(np.float32)
    exact = twicing(A, y)
    for smoother in (A32, csr_array(A32), lambda v: A @ v):
        found = twicing(smoother, y32)
        assert found.dtype == np.float32
        assert_allclose(found, exact, atol=20 * np.finfo(np.float32).eps)
    assert twicing(A, y32).dtype == twicing(A32, y).dtype == np.float64
    assert twicing(np.eye(2, dtype=int), np.ones((2, 1), dtype=int)).dtype == np.float64


def test_one_sample_zero_values_and_no_steps():
    assert_array_equal(twicing([[1.0]], [[3.0]]), 3.0)
    A, y = smoother_and_values()
    assert_array_equal(l2_boosting(A, 0 * y, n_iter=5), 0)
    assert_array_equal(l2_boosting(A, y, n_iter=0), 0)


@pytest.mark.parametrize(
    ("smoother", "values", "words"),
    [
        (np.eye(2), np.ones((3, 1)), "smoother: must be 3 x 3"),
        (np.ones((2, 3)), np.ones((3, 1)), "smoother: must be 3 x 3"),
        (np.eye(2), np.ones((2, 2, 3)), "smoother: a matrix acts on values of two dimensions"),
        (np.eye(1), [[np.nan]], "values: Input values contains NaN"),
        (np.eye(1), np.full((1, 1, 1), np.inf), "values: Input values contains infinity"),
        (np.eye(1), np.ones(3), "values: must have two or three dimensions"),
        (np.eye(1), np.ones((1, 1, 1, 1)), "values: must have two or three dimensions"),
        (np.eye(1), [[1.0], [1.0, 2.0]], "values: must be an array, got rows of unequal"),
        (np.eye(1), np.ones((2, 0, 3)), "values: Found array with 0 feature"),
        (np.eye(1), np.ones((1, 1, 1), complex), "values: Complex data"),
        (np.eye(1), csr_array([[1.0]]), "values: Sparse data"),
        ([[np.nan]], [[1.0]], "smoother: Input smoother contains NaN"),
        (csr_array([[np.nan]]), [[1.0]], "smoother: Input smoother contains NaN"),
        ("gaussian", [[1.0]], "smoother: "),
        (None, [[1.0]], "smoother: "),
        (lambda v: v * np.inf, [[1.0]], "smoother: iterate 1 holds NaN or infinity"),
        (lambda v: v[:1], np.ones((3, 1)), "smoother: must return a real array of shape"),
        (lambda v: v * 1j, [[1.0]], "smoother: must return a real array"),
        (lambda v: None, [[1.0]], "smoother: must return a real array"),
    ],
)
def test_bad_input_is_named(smoother, values, words):
    with pytest.raises(ValueError, match=words):
        twicing(smoother, values)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_iter": -1}, "n_iter: must be a whole number >= 0"),
        ({"n_iter": 1.5}, "n_iter: must be a whole number"),
        ({"n_iter": 1, "shrinkage": 0.0}, "shrinkage: must be > 0"),
        ({"n_iter": 1, "shrinkage": 1.01}, r"shrinkage: must be in \(0, 1\]"),
        ({"n_iter": 1, "shrinkage": np.nan}, "shrinkage: must be a finite number"),
        ({"n_iter": 1, "shrinkage": "a"}, "shrinkage: must be a finite number"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        l2_boosting([[1.0]], [[1.0]], **settings)
