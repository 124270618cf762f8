import numpy as np
import pytest
from scipy.sparse import csr_array

from twinsolve.solvers import clustering_accuracy
from twinsolve.solvers.metrics import (
    coefficient_distance,
    connectivity,
    relative_residual,
    subspace_preserving_error,
)


def test_accuracy_is_invariant_to_names_and_counts_unmatched_clusters():
    y = np.repeat([0, 1, 2], 4)
    assert clustering_accuracy(y, (y + 1) % 3) == 1
    assert clustering_accuracy(y, np.zeros(12)) == pytest.approx(1 / 3)
    assert clustering_accuracy([0, 0, 1, 1], [0, 1, 2, 3]) == 0.5


def test_coefficient_distance_by_hand():
    C, R = np.array([[3.0, 0.0], [1e-10, 1.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    numbers = coefficient_distance(csr_array(C), R)
    assert numbers["distance"] == pytest.approx(np.sqrt(17) / 5)
    assert numbers["cosine"] == pytest.approx(9 / (np.sqrt(10) * 5))
    assert numbers["support_precision"] == 0.5
    assert numbers["support_recall"] == 0.5
    assert numbers["support_f1"] == 0.5


def test_the_support_of_a_row_is_relative_to_its_own_maximum():
    C, R = np.array([[1.0, 0.0], [1e-9, 1e-9]]), np.array([[1.0, 1e-9], [0.0, 1.0]])
    numbers = coefficient_distance(C, R)
    assert numbers["support_precision"] == pytest.approx(2 / 3)
    assert numbers["support_recall"] == 1


def test_equal_and_zero_coefficients():
    C = np.eye(2)
    assert coefficient_distance(C, C)["distance"] == 0
    assert coefficient_distance(C, C)["support_f1"] == 1
    assert coefficient_distance(C, np.zeros((2, 2)))["distance"] == np.inf


def test_rounding_takes_no_measure_out_of_its_range():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        size = rng.random(1)
        C = rng.standard_normal((6, 6))
        assert 0.99 < coefficient_distance(C, C * size)["cosine"] <= 1
        assert -1 <= coefficient_distance(C, -C * size)["cosine"] < -0.99
        assert 1.99 < connectivity(size * [[0, 1], [1, 0]], [0, 0]) <= 2
        A = np.abs(C) + np.abs(C.T)
        A[0, 1:] = A[1:, 0] = 1e-30 * size  # all but disconnected
        assert 0 <= connectivity(A, np.zeros(6)) < 1e-14


def test_relative_residual():
    X = np.array([[3.0], [4.0]])
    assert relative_residual(np.zeros((2, 2)), X) == 1
    assert relative_residual(np.eye(2), X) == 0
    assert relative_residual([[0.5, 0.0]], X, targets=[[2.0]]) == 0.25


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
def test_subspace_preserving_error_is_the_mean_share_of_other_classes(wrap):
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 4)
    C = rng.standard_normal((12, 12)) * (rng.random((12, 12)) < 0.5)
    C[5] = 0
    size = np.abs(C)
    shares = (size * (y[:, None] != y)).sum(axis=1) / np.where(C.any(axis=1), size.sum(axis=1), 1)
    assert subspace_preserving_error(wrap(C), y) == pytest.approx(np.mean(shares), rel=1e-12)
    assert subspace_preserving_error(wrap(C * (y[:, None] == y)), y) == 0
    assert subspace_preserving_error(wrap(-3 * C), y) == pytest.approx(np.mean(shares), rel=1e-12)


def test_connectivity_as_a_loop():
    for wrap in [np.asarray, csr_array]:
        rng = np.random.default_rng(0)
        y = np.arange(15) % 3
        A = rng.random((15, 15)) * (rng.random((15, 15)) < 0.9)
        A = A + A.T
        smallest = []
        for label in range(3):
            block = A[y == label][:, y == label]
            degree = block.sum(axis=1)
            laplacian = np.eye(5) - block / np.sqrt(np.outer(degree, degree))
            smallest.append(np.sort(np.linalg.eigvalsh(laplacian))[1])
        assert connectivity(wrap(A), y) == pytest.approx(min(smallest), rel=1e-10)
        assert connectivity(wrap(10 * A), y) == pytest.approx(min(smallest), rel=1e-10)
        A[0, y == 0] = A[y == 0, 0] = 0
        assert connectivity(wrap(A), y) == 0


def test_connectivity_leaves_out_classes_of_one():
    A = np.ones((4, 4)) - np.eye(4)
    assert connectivity(A, [0, 0, 0, 1]) == pytest.approx(1.5)
