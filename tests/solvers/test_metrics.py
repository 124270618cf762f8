import numpy as np
import pytest
from scipy.sparse import csr_array

from twinsolve.solvers import clustering_accuracy, coefficient_distance, relative_residual


def test_accuracy_is_invariant_to_names_and_counts_unmatched_clusters():
    y = np.repeat([0, 1, 2], 4)
    assert clustering_accuracy(y, (y + 1) % 3) == 1
    assert clustering_accuracy(y, np.zeros(12)) == pytest.approx(1 / 3)
    assert clustering_accuracy([0, 0, 1, 1], [0, 1, 2, 3]) == 0.5
    with pytest.raises(ValueError, match="two equally long lists"):
        clustering_accuracy([0, 1], [0])


def test_coefficient_distance_by_hand():
    C, R = np.array([[3.0, 0.0], [1e-10, 1.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    numbers = coefficient_distance(csr_array(C), R)
    assert numbers["distance"] == pytest.approx(np.sqrt(17) / 5)
    assert numbers["cosine"] == pytest.approx(9 / (np.sqrt(10) * 5))
    assert numbers["support_precision"] == 0.5
    assert numbers["support_recall"] == 0.5
    assert numbers["support_f1"] == 0.5


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
