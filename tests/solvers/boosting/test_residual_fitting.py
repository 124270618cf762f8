import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.special import softmax

from twinsolve.solvers import nadaraya_watson, smoother_matrix, twicing


@given(seed=st.integers(0, 200))
def test_is_two_a_minus_a_squared(seed):
    rng = np.random.default_rng(seed)
    A, V = softmax(rng.standard_normal((5, 5)), axis=1), rng.standard_normal((5, 2))
    assert_allclose(twicing(A, V), (2 * A - A @ A) @ V, atol=1e-13)


def test_printed_sign_smooths_twice_instead():
    rng = np.random.default_rng(0)
    A, V = softmax(rng.standard_normal((5, 5)), axis=1), rng.standard_normal((5, 2))
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
    assert_allclose(twicing(csr_array(A), V), expected, atol=1e-14)


def test_response_of_a_symmetric_smoother_and_constants():
    X = np.random.default_rng(0).standard_normal((6, 2))
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    d = np.sqrt(K.sum(1))
    mu, vectors = np.linalg.eigh(K / np.outer(d, d))
    V = vectors / d[:, None]
    A = K / K.sum(1, keepdims=True)
    assert_allclose(twicing(A, V), V * (1 - (1 - mu) ** 2), atol=1e-13)
    assert_allclose(twicing(A, np.ones((6, 1))), 1, rtol=1e-13)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="smoother: must be 3 x 3"):
        twicing(np.eye(2), np.ones((3, 1)))
    with pytest.raises(ValueError, match="values: Input values contains NaN"):
        twicing(np.eye(1), [[np.nan]])
    for smoother in (csr_array([[np.nan]]), lambda values: values * np.inf):
        with (
            pytest.raises(ValueError, match="smoother: its result holds NaN"),
            np.errstate(all="ignore"),
        ):
            twicing(smoother, [[1.0]])
    with pytest.raises(ValueError, match="smoother: returned shape"):
        twicing(lambda values: values[:1], np.ones((3, 1)))
