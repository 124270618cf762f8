import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import gray_tokens
from twinsolve.solvers.conditioning import condition_number

SEEDS = st.integers(0, 10**6)


@given(seed=SEEDS, n=st.integers(1, 7), d=st.integers(1, 7))
def test_sk_4_is_the_norm_times_that_of_the_pseudoinverse(seed, n, d):
    X = np.random.default_rng(seed).standard_normal((n, d))
    kappa = np.linalg.norm(X, 2) * np.linalg.norm(np.linalg.pinv(X), 2)
    # Both sides lose about kappa times rounding.
    assert_allclose(condition_number(X), kappa, rtol=1e-10 + 1e-14 * kappa)
    assert_allclose(condition_number(-3 * X.T), kappa, rtol=1e-10 + 1e-14 * kappa)


def test_sk_4_batches_and_scalars():
    X = np.random.default_rng(0).standard_normal((2, 3, 5, 4))
    found = condition_number(X)
    assert found.shape == (2, 3)
    for index in np.ndindex(2, 3):
        assert_allclose(found[index], condition_number(X[index]), rtol=1e-12)
    assert np.isscalar(condition_number(X[0, 0]))
    assert condition_number(np.ones((1, 1))) == 1


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((3, 2)),
        np.ones((3, 2)),
        np.arange(12.0).reshape(4, 3),
        np.diag([1.0, 4e-16]),
        np.diag([1.0, 0.0]).astype(np.float32),
    ],
    ids=["zero", "constant", "rank 2", "under the tolerance", "float32"],
)
def test_sk_4_rank_deficient_tokens_have_infinite_condition(X):
    assert condition_number(X) == np.inf
    assert list(np.isinf(condition_number(np.stack([X, np.eye(*X.shape, dtype=X.dtype)])))) == [
        True,
        False,
    ]


def test_sk_4_the_tolerance_is_relative_and_entries_are_exact():
    for scale in (1e-200, 1.0, 1e200):
        assert_allclose(condition_number(scale * np.diag([1.0, 1e-14])), 1e14, rtol=1e-12)
    assert_allclose(condition_number(np.diag([1.0, 2.0**-40]).astype(np.float32)), 2.0**40)


def test_sk_4_the_tolerance_grows_with_the_larger_side():
    for shape in [(40, 2), (2, 40), (2, 2)]:
        X, eps = np.zeros(shape), np.finfo(np.float64).eps
        for factor, finite in [(0.9, False), (1.1, True), (4, True)]:
            X[0, 0], X[1, 1] = 1, factor * max(shape) * eps
            assert np.isfinite(condition_number(X)) == finite
            found = gray_tokens(X, eps=0.1)[1, 1]
            assert_allclose(found, X[1, 1] ** 0.1 if finite else 0, rtol=1e-12)
