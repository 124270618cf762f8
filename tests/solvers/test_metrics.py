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
    with pytest.raises(
        ValueError, match="labels_pred: must be as many as labels_true, got 1 for 2"
    ):
        clustering_accuracy([0, 1], [0])


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
    with pytest.raises(ValueError, match="reference has"):
        coefficient_distance(C, np.eye(3))


def test_relative_residual():
    X = np.array([[3.0], [4.0]])
    assert relative_residual(np.zeros((2, 2)), X) == 1
    assert relative_residual(np.eye(2), X) == 0
    assert relative_residual([[0.5, 0.0]], X, targets=[[2.0]]) == 0.25
    with pytest.raises(ValueError, match="coef: must have shape"):
        relative_residual(np.eye(3), X)


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
def test_subspace_preserving_error_as_a_loop(wrap):
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 4)
    C = rng.standard_normal((12, 12)) * (rng.random((12, 12)) < 0.5)
    C[5] = 0
    shares = []
    for i, row in enumerate(C):
        wrong = sum(abs(c) for c, label in zip(row, y, strict=True) if label != y[i])
        shares.append(wrong / sum(abs(row)) if row.any() else 0.0)
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
    with pytest.raises(ValueError, match="labels_true: must have a class with at least two"):
        connectivity(A, [0, 1, 2, 3])


def test_bad_arguments_of_graph_metrics_are_named():
    for metric in [subspace_preserving_error, connectivity]:
        with pytest.raises(ValueError, match="labels_true: must hold one label for each sample"):
            metric(np.eye(3), [0, 1])
        with pytest.raises(ValueError, match=r"(affinity|coef): .*NaN"):
            metric(np.full((2, 2), np.nan), [0, 0])
        with pytest.raises(ValueError, match=r"(affinity|coef): .*NaN"):
            metric(csr_array(np.full((2, 2), np.nan)), [0, 0])
