"""Nyström quadrature of the softmax matrix, and the iterated pseudo-inverse."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from twinsolve.solvers.kernel_smoothing import (
    iterated_pseudo_inverse,
    nystrom_factors,
    nystrom_matrix,
    nystrom_smoother,
    pseudo_inverse_residual,
    segment_means,
)


def draw(n, width=3, seed=0):
    return np.random.default_rng(seed).standard_normal((n, width))


@pytest.mark.parametrize(("n", "m"), [(6, 3), (7, 3), (8, 3), (5, 5), (4, 9), (10, 1)])
def test_segments_are_consecutive_and_differ_by_a_row_at_most(n, m):
    means = segment_means(np.eye(n), m)
    members = means > 0
    assert means.shape == (min(n, m), n)
    assert (members.sum(axis=0) == 1).all()
    assert (np.diff(members.argmax(axis=0)) >= 0).all()
    sizes = members.sum(axis=1)
    assert np.ptp(sizes) <= 1
    assert_allclose(means, members / sizes[:, None])


def test_is_its_definition_by_loops():
    q, k, m, scale = draw(7), draw(9, seed=1), 3, 0.8
    cuts_q, cuts_k = ([0, 3, 5, 7], [0, 3, 6, 9])
    of_q = np.stack([q[a:b].mean(axis=0) for a, b in pairwise(cuts_q)])
    of_k = np.stack([k[a:b].mean(axis=0) for a, b in pairwise(cuts_k)])

    def weights(a, b):
        K = np.exp(scale * a @ b.T)
        return K / K.sum(axis=1, keepdims=True)

    F, A, B = weights(q, of_k), weights(of_q, of_k), weights(of_q, k)
    found = nystrom_factors(q, k, n_landmarks=m, scale=scale)
    for own, expected in zip(found, (F, A, B), strict=True):
        assert_allclose(own, expected, atol=1e-14)
    M = nystrom_matrix(q, k, n_landmarks=m, scale=scale)
    assert_allclose(M, F @ np.linalg.inv(A) @ B, atol=1e-12)
    assert np.linalg.matrix_rank(M) == m
    assert_allclose(M.sum(axis=1), 1)
    assert M.min() < 0  # no weights of a smoother
    values = draw(9, 2, seed=2)
    assert_allclose(nystrom_smoother(q, k, values, n_landmarks=m, scale=scale), M @ values)


@pytest.mark.parametrize("n_iter", [None, 0, 6])
def test_is_softmax_where_every_token_is_a_landmark(n_iter):
    q, k = draw(6), draw(6, seed=1)
    for m in (6, 40):
        found = nystrom_matrix(q, k, n_landmarks=m, scale=0.5, n_iter=n_iter)
        assert_allclose(found, softmax(0.5 * q @ k.T, axis=1), atol=1e-15)


def test_all_landmarks_through_the_pseudo_inverse_are_softmax_too():
    """``A A^+ A = A``: nothing is put in by hand."""
    F, A, B = nystrom_factors(draw(6), draw(6, seed=1), n_landmarks=6, scale=0.5)
    assert_allclose(F @ np.linalg.pinv(A) @ B, F, atol=1e-8)


def literal(A, n_iter):
    unit = np.eye(len(A))
    Z = A.T / (A.sum(axis=0).max() * A.sum(axis=1).max())
    for _ in range(n_iter):
        AZ = A @ Z
        Z = Z @ (13 * unit - AZ @ (15 * unit - AZ @ (7 * unit - AZ))) / 4
    return Z


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_iterates_are_those_of_matrices(shape):
    A = np.random.default_rng(0).random(shape)
    for n_iter in (0, 1, 3, 8):
        assert_allclose(iterated_pseudo_inverse(A, n_iter), literal(A, n_iter), atol=1e-10)


def test_a_step_is_of_third_order_and_the_limit_is_the_pseudo_inverse():
    A = np.random.default_rng(0).random((4, 4))
    before, after = (np.eye(4) - A @ iterated_pseudo_inverse(A, n) for n in (3, 4))
    cube = before @ before @ before
    assert_allclose(after, (3 * cube + cube @ before) / 4, atol=1e-12)
    for deficient in (A, A[:, :2] @ A[:2], np.ones((3, 3)) / 3):
        Z = iterated_pseudo_inverse(deficient, 14)
        assert pseudo_inverse_residual(deficient, Z) < 1e-8
        assert_allclose(Z, np.linalg.pinv(deficient, 1e-9), atol=1e-8)
    assert pseudo_inverse_residual(A, iterated_pseudo_inverse(A, 2)) > 0.1


def test_few_steps_regularise():
    """A singular value of 1e-8 is left near zero; its inverse would be 1e8."""
    Z = iterated_pseudo_inverse(np.diag([1.0, 1e-8]), 6)
    assert_allclose(Z[0, 0], 1)
    assert_allclose(Z[1, 1], 1e-8 * (13 / 4) ** 6)


def test_each_of_penroses_conditions_counts():
    A = np.diag([1.0, 2.0])
    assert pseudo_inverse_residual(A, np.linalg.inv(A)) == 0
    assert pseudo_inverse_residual(A, np.diag([1.0, 0.0])) == 1  # A Z A = A
    B = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert pseudo_inverse_residual(B, np.array([[1.0, 0.0], [0.0, 0.5]])) == 0.5  # Z A Z = Z
    assert pseudo_inverse_residual(B, np.array([[1.0, 0.25], [0.0, 0.0]])) == 0.25  # A Z
    assert pseudo_inverse_residual(B, np.array([[1.0, 0.0], [0.25, 0.0]])) == 0.25  # Z A


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: segment_means(x, 0), "n_segments: must be"),
        (lambda x: segment_means([[np.nan]], 1), "X: "),
        (lambda x: nystrom_matrix(x, x, n_landmarks=0, scale=1.0), "n_landmarks: must be"),
        (lambda x: nystrom_matrix(x, x, n_landmarks=2, scale=0.0), "scale: must be"),
        (lambda x: nystrom_matrix(x, x[:, :1], n_landmarks=2, scale=1.0), "queries: "),
        (lambda x: nystrom_smoother(x, x, x[:2], n_landmarks=2, scale=1.0), "values: has 2 rows"),
        (lambda x: nystrom_matrix(x, x, n_landmarks=2, scale=1.0, n_iter=-1), "n_iter: must be"),
        (lambda x: iterated_pseudo_inverse(-np.eye(2), 1), "A: must be >= 0"),
        (lambda x: iterated_pseudo_inverse(np.zeros((2, 2)), 1), "A: must be >= 0"),
        (lambda x: pseudo_inverse_residual(x, x), "Z: "),
    ],
)
def test_what_is_out_of_range_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(draw(5))
