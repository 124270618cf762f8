"""The score by which settings are chosen without labels."""

import contextlib

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import eigh
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score

from twinsolve.solvers.clustering import selection_score


def blocks(inside, across, sizes=(4, 4, 4)):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    A = np.where(owner[:, None] == owner, inside, across).astype(float)
    np.fill_diagonal(A, 0)
    return A, owner


def test_is_silhouette_times_entropy():
    rng = np.random.default_rng(0)
    A = rng.random((9, 9))
    A += A.T
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    scale = 1 / np.sqrt(A.sum(axis=1))
    V = eigh(scale[:, None] * A * scale)[1][:, -3:]
    V /= np.linalg.norm(V, axis=1, keepdims=True)
    share = np.array([3, 2, 4]) / 9
    balance = -(share * np.log(share)).sum() / np.log(3)
    expected = balance * (1 + silhouette_score(V, labels)) / 2
    assert_allclose(selection_score(A, labels, 3), expected, rtol=1e-10)
    assert_allclose(selection_score(7 * csr_array(A), labels + 5, 3), expected, rtol=1e-10)


def test_separate_balanced_clusters_score_highest():
    A, owner = blocks(1, 0)
    assert selection_score(A, owner, 3) == pytest.approx(1, abs=1e-14)
    assert selection_score(A, None, 3) == pytest.approx(1, abs=1e-14)
    noise = np.random.default_rng(0).random(A.shape)
    scores = [selection_score(A + across * (noise + noise.T), owner, 3) for across in (0.1, 0.4, 2)]
    assert 1 > scores[0] > scores[1] > scores[2] > 0
    lopsided, labels = blocks(1, 0, (20, 2, 2))
    assert selection_score(lopsided, labels, 3) < 0.6


def test_more_pieces_than_clusters_score_nothing_and_isolated_points_cost():
    pieces, _ = blocks(1, 0, (3, 3, 3, 3))
    assert selection_score(pieces, None, 3) == 0
    A = np.zeros((24, 24))
    A[:12, :12], _ = blocks(1, 0)
    assert 0 < selection_score(A, None, 3) < 0.85


@pytest.mark.parametrize("across", [1e-15, 1e-14, 0.0])
def test_groups_that_nothing_tells_apart_score_nothing(across):
    """Five groups, hardly tied or not at all, are no three clusters, however well they separate."""
    A, _ = blocks(1, across, (6,) * 5)
    said = contextlib.nullcontext()
    if across:
        said = pytest.warns(ConvergenceWarning, match="eigenvalues 3 and 4 differ by")
    with said:
        assert selection_score(A, None, 3) == 0
    assert selection_score(A, None, 5) == pytest.approx(1)


def test_nothing_to_score():
    assert selection_score(np.zeros((3, 3)), None, 2) == 0
    assert selection_score(np.eye(3), [0, 1, 2], 3) == 0
    with pytest.warns(ConvergenceWarning, match="eigenvalues 2 and 3 differ by"):
        assert selection_score(np.ones((4, 4)), [0, 0, 0, 0], 2) == 0
    assert selection_score(np.ones((4, 4)), [0, 0, 0, 0], 1) == 0


def test_a_sample_of_many_points_gives_the_silhouette(monkeypatch):
    rng = np.random.default_rng(0)
    A = blocks(1, 0.2, (40, 40))[0] + 0.2 * np.eye(80)
    noise = rng.random(A.shape)
    A += noise + noise.T
    whole = selection_score(A, np.arange(80) // 40, 2)
    monkeypatch.setattr("twinsolve.solvers.clustering.score._SAMPLE", 40)
    assert selection_score(A, np.arange(80) // 40, 2) == pytest.approx(whole, abs=0.1)
    assert selection_score(A, np.arange(80) // 79, 2) < 0.1
