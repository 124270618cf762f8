import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgError, eigh
from scipy.sparse import block_diag, csr_array

from twinsolve.solvers import symmetric
from twinsolve.solvers.clustering import eigenvectors, krylov
from twinsolve.solvers.clustering.eigenvectors import leading_eigenpairs, leading_eigenvectors

from .test_spectral import normalised, planted


@pytest.fixture
def searched(monkeypatch):
    """Iterations on graphs so small that they would be solved at once."""
    monkeypatch.setattr(eigenvectors, "_ALL_AT_ONCE", {"sparse": 200, "dense": 200})


@pytest.mark.parametrize(("wrap", "density"), [(np.asarray, 1.0), (csr_array, 0.05)])
def test_a_search_finds_the_eigenvectors_of_the_dense_solver(wrap, density, searched):
    """Two components, one of them of two blocks: the eigenvalue 1 is repeated."""
    left, _ = planted((150, 100), density=density)
    right, _ = planted((80,), seed=1, density=density)
    A = block_diag([left, right]).toarray()
    values, vectors, behind, error, certified = leading_eigenpairs(wrap(A), 4)
    expected = eigh(normalised(A), eigvals_only=True)[::-1][:5]
    assert_allclose(values, expected[:4], atol=1e-10, rtol=0)
    assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-10)
    residuals = np.linalg.norm(normalised(A) @ vectors - vectors * values, axis=0)
    assert_allclose(error, residuals.max(), rtol=0.01, atol=1e-14)
    assert certified
    assert_array_equal(leading_eigenvectors(wrap(A), 4)[1], vectors)
    assert_allclose(behind, expected[4], atol=1e-2)


@pytest.mark.parametrize("k", [1, 3])
def test_as_many_eigenvectors_as_components_are_written_down(k, searched):
    A = block_diag([planted((100,), seed=s)[0] for s in range(3)]).toarray()
    values, vectors = leading_eigenvectors(A, k)
    assert_allclose(values, 1)
    assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-12)
    assert_allclose(normalised(A) @ vectors, vectors, atol=1e-12)


def test_complete_graphs_have_no_other_positive_eigenvalue(searched):
    A = 1 - np.eye(300)
    values, _ = leading_eigenvectors(A, 2)
    assert_allclose(values, [1, -1 / 299], atol=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
def test_eigenvalues_that_all_but_coincide(sparse, searched):
    """The leading eigenvalues of a chain of pairs crowd at 1."""
    n, weak = 1000, 1e-3
    A = np.diag(np.where(np.arange(n - 1) % 2, weak, 1.0), 1)
    A += A.T
    values, vectors = leading_eigenvectors(csr_array(A) if sparse else A, 20)
    scale = 1 / np.sqrt(A.sum(axis=1))
    M = scale[:, None] * A * scale
    assert_allclose(values, np.linalg.eigvalsh(M)[::-1][:20], atol=1e-12, rtol=0)
    assert_allclose(M @ vectors, vectors * values, atol=1e-9)
    assert_allclose(vectors.T @ vectors, np.eye(20), atol=1e-8)


@pytest.mark.parametrize("fewer", [False, True])
def test_eigenvectors_where_the_method_of_subsets_gives_up(monkeypatch, fewer):
    A = np.random.default_rng(0).uniform(size=(30, 30))
    A += A.T
    expected, directions = leading_eigenvectors(A, 4)

    def failing(M, **options):
        if "subset_by_index" not in options:
            return eigh(M, **options)
        if not fewer:
            raise LinAlgError("Internal Error.")
        values, vectors = eigh(M, **options)
        return values[2:], vectors[:, 2:]

    monkeypatch.setattr(symmetric, "eigh", failing)
    values, vectors = leading_eigenvectors(A, 4)
    assert_allclose(values, expected, atol=1e-12)
    assert_allclose(np.abs(vectors.T @ directions), np.eye(4), atol=1e-10)


def test_many_groups_without_odd_cycles_are_no_obstacle():
    """Half of the eigenvalues of tied stars are 1, -1 or near: a search may end anywhere."""
    for n_stars, size in [(150, 6), (200, 5)]:
        star = np.zeros((size, size))
        star[0, 1:] = star[1:, 0] = 1
        A = block_diag([star] * n_stars, format="lil")
        for hub in range(size, n_stars * size, size):
            A[hub, hub - size] = A[hub - size, hub] = 0.01
        A, expected = csr_array(A), None
        for k in (n_stars, 3 * n_stars // 2):
            pairs = leading_eigenpairs(A, k)
            if expected is None:
                expected = eigh(normalised(A.toarray()), eigvals_only=True)[::-1]
            assert_allclose(pairs.values, expected[:k], atol=1e-10, rtol=0)
            assert pairs.certified


def tied(seed):
    """A ring of groups of points: near cycles, paths, random and complete graphs."""
    rng = np.random.default_rng(seed)
    n_groups, size = rng.integers(2, 6), rng.integers(45, 50)
    i, j = np.triu_indices(size, 1)
    kind = seed % 4
    inside = [(j - i) % (size - 1) <= 1, j - i == 1, rng.random(len(i)) < 0.3, i >= 0][kind]
    group = np.zeros((size, size))
    group[i, j] = inside * (1 if seed % 3 else rng.random(len(i)))
    A = np.kron(np.eye(n_groups), group)
    for g in range(n_groups):
        one, other = g * size + rng.integers(size), (g + 1) % n_groups * size
        A[one, other] += 10.0 ** rng.uniform(-14, 0) if seed % 5 else 1e-12
    return A + A.T, int(n_groups)


def test_no_eigenvalue_is_missed_however_weak_the_ties(monkeypatch):
    """100 graphs with LAPACK: the eigenvalues, the subspace, and sparse graphs like dense ones."""
    monkeypatch.setattr(eigenvectors, "_is_small", lambda M, k: M.shape[0] < 80 + k)
    for seed in range(100):
        A, k = tied(seed)
        expected, directions = eigh(normalised(A))
        gap = expected[-k] - expected[-k - 1]
        for graph in (csr_array(A), A + 1e-300)[: 1 + (seed % 5 == 1)]:  # some dense too
            values, vectors = leading_eigenvectors(graph, k)
            assert_allclose(values, expected[: -k - 1 : -1], atol=1e-12, rtol=0, err_msg=f"{seed}")
            assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-12)
            outside = vectors - directions[:, -k:] @ (directions[:, -k:].T @ vectors)
            assert np.linalg.norm(outside, 2) < max(1e-4, 1e-12 / gap), seed


def test_the_second_search_finds_what_the_first_was_blind_for(searched, monkeypatch):
    A = planted((90, 80, 70, 60), between=0.02)[0]
    expected, directions = eigh(normalised(A))
    drawn = []

    def blind(V, rng):
        block = fresh(V, rng)
        drawn.append(V.shape[1])
        hidden = directions[:, -2:-1] * (len(drawn) == 1)  # in the first block alone
        return np.linalg.qr(block - hidden @ (hidden.T @ block))[0]

    fresh = krylov._fresh_block
    monkeypatch.setattr(krylov, "_fresh_block", blind)
    pairs = leading_eigenpairs(A, 4)
    assert drawn[:2] == [1, 4]
    assert_allclose(pairs.values, expected[:-5:-1], atol=1e-12, rtol=0)
    assert pairs.certified
