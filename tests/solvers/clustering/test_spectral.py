from contextlib import nullcontext

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import eigh
from scipy.sparse import block_diag, csr_array, random_array
from sklearn.cluster import KMeans
from sklearn.cluster._spectral import cluster_qr
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from twinsolve.solvers.clustering import (
    eigengap_n_clusters,
    eigenvectors,
    kmeans,
    krylov,
    spectral,
    spectral_labels,
)
from twinsolve.solvers.clustering.eigenvectors import leading_eigenpairs
from twinsolve.solvers.clustering.spectral import EmbeddedGraph, embed_graph


def planted(sizes, between=0.05, seed=0, density=1.0):
    """Affinity with strong blocks and, between them, weak links of random strength."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    A = rng.random((len(y), len(y))) * np.where(y[:, None] == y, 1, between)
    A *= rng.random(A.shape) < density
    A = A + A.T
    np.fill_diagonal(A, 0)
    return A, y


def normalised(A):
    degree = A.sum(axis=1)
    return A / np.sqrt(degree[:, None] * degree)


def literal_labels(A, k, seed):
    vectors = eigh(normalised(A))[1][:, -k:]
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return KMeans(k, n_init=20, random_state=seed).fit_predict(rows)


def test_labels_are_those_of_the_formula():
    for wrap, sizes in [(np.asarray, (20, 30, 25)), (csr_array, (120, 90, 100))]:
        A, y = planted(sizes)
        found = spectral_labels(wrap(A), 3, random_state=0)
        assert adjusted_rand_score(literal_labels(A, 3, 0), found) == 1
        assert adjusted_rand_score(y, found) == 1


def test_points_of_very_different_degree_need_the_unit_rows():
    A, y = planted((40, 50, 30))
    strength = np.random.default_rng(0).lognormal(sigma=2, size=len(A))
    A *= np.outer(strength, strength)
    assert adjusted_rand_score(y, spectral_labels(A, 3, random_state=0)) == 1
    vectors = eigh(normalised(A))[1][:, -3:]
    without = KMeans(3, n_init=20, random_state=0).fit_predict(vectors)
    assert adjusted_rand_score(y, without) < 0.7


def test_large_sparse_graphs_are_never_made_dense(monkeypatch):
    monkeypatch.setattr(csr_array, "toarray", None)
    blocks = [random_array((1500, 1500), density=0.02, rng=seed, format="csr") for seed in (0, 1)]
    A = csr_array(block_diag(blocks))
    bridge = csr_array(([0.01], ([0], [2000])), shape=A.shape)
    A = csr_array(A + A.T + bridge + bridge.T)
    found = spectral_labels(A, 2, random_state=0)
    assert adjusted_rand_score(np.repeat([0, 1], 1500), found) == 1
    assert eigengap_n_clusters(A) == 2


def test_isolated_points_join_the_largest_cluster_and_spend_none():
    A, y = planted((15, 20))
    padded = np.zeros((40, 40))
    padded[:35, :35] = A
    padded[38, 38] = 7
    found = spectral_labels(padded, 2, random_state=0)
    assert adjusted_rand_score(y, found[:35]) == 1
    assert (found[35:] == found[20]).all()


def test_components_are_never_split_while_there_are_enough_of_them():
    blocks = [planted((size,), seed=size)[0] for size in (12, 9, 6, 2)]
    A = block_diag([*blocks, np.zeros((1, 1))]).toarray()
    y = np.repeat(np.arange(5), (12, 9, 6, 2, 1))
    assert (
        adjusted_rand_score([0] * 12 + [1] * 9 + [2] * 6 + [3] * 2 + [0], spectral_labels(A, 4))
        == 1
    )
    merged = spectral_labels(A, 2)
    assert len(np.unique(merged)) == 2
    for part in range(4):
        assert len(np.unique(merged[y == part])) == 1
    assert (merged[:12] != merged[12:21][0]).all()
    assert (merged[21:] == merged[0]).all()


def test_fewer_components_than_clusters_split_the_loosest():
    left, inner = planted((20, 20))
    right, _ = planted((20,), seed=1)
    found = spectral_labels(block_diag([left, right]).toarray(), 3, random_state=0)
    assert adjusted_rand_score(np.r_[inner, np.full(20, 2)], found) == 1


def test_graphs_without_edges_and_pairs():
    assert spectral_labels(np.zeros((5, 5)), 3).tolist() == [0] * 5
    assert spectral_labels(np.eye(5), 3).tolist() == [0] * 5
    pair = np.zeros((3, 3))
    pair[0, 1] = pair[1, 0] = 1
    assert len(np.unique(spectral_labels(pair, 3, random_state=0)[:2])) == 2
    assert spectral_labels(pair, 1).tolist() == [0] * 3


def test_cluster_qr_is_that_of_scikit_learn_and_needs_no_seed():
    A, y = planted((20, 30, 25), between=0.3)
    found = spectral_labels(A, 3, assign_labels="cluster_qr")
    vectors = eigh(normalised(A))[1][:, :-4:-1]
    assert adjusted_rand_score(cluster_qr(vectors), found) == 1
    assert adjusted_rand_score(y, found) > 0.9
    assert (spectral_labels(A, 3, assign_labels="cluster_qr") == found).all()


def test_cluster_qr_labels_where_the_usual_singular_values_do_not_converge():
    weights = np.abs(np.random.default_rng(1).standard_normal((501, 501)))
    A = weights * (np.random.default_rng(2).random((501, 501)) < 0.02)
    labels = spectral_labels(A + A.T, 500, assign_labels="cluster_qr", random_state=0)
    assert len(np.unique(labels)) > 250


def test_sums_that_overflow_are_refused():
    A, _ = planted((20, 30))
    same = spectral_labels(1e300 * A, 2, random_state=0) == spectral_labels(A, 2, random_state=0)
    assert same.all()
    for wrap in (np.asarray, csr_array):
        with pytest.raises(ValueError, match="affinity: sums of its entries overflow; divide it"):
            spectral_labels(wrap(1e307 * A), 2)


def test_an_embedded_graph_serves_all_seeds_and_survives_storage():
    for between in [0.0, 0.9]:
        A, _ = planted((20, 30, 25), between=between)
        seeds = (3, 0, 7)
        expected = [spectral_labels(A, 3, random_state=seed).tolist() for seed in seeds]
        graph = embed_graph(A, 3)
        stored = EmbeddedGraph.from_arrays(graph.arrays())
        for found in (graph, stored):
            assert [found.kmeans(seed).tolist() for seed in seeds] == expected
            qr = spectral_labels(A, 3, assign_labels="cluster_qr")
            assert found.cluster_qr().tolist() == qr.tolist()
        with pytest.raises(ValueError, match="n_clusters: must be at most"):
            embed_graph(A, 76)


@pytest.mark.parametrize(
    ("n_clusters", "kind"), [(3, "loose"), (12, "loose"), (6, "tight"), (8, "few"), (2, "few")]
)
def test_kmeans_is_that_of_scikit_learn_seed_by_seed(n_clusters, kind):
    """The same labels by the same names; "few" are a dozen points, some of them twice."""
    rng = np.random.default_rng(n_clusters)
    X = rng.standard_normal((150, n_clusters))
    if kind == "tight":
        X += 9 * np.eye(n_clusters)[rng.integers(n_clusters, size=150)]
    if kind == "few":
        X = np.vstack([X[:8], X[:4]])
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    shared = kmeans.RepeatedKMeans(X, n_clusters)
    for seed in range(5):
        expected = KMeans(n_clusters, n_init=20, random_state=seed).fit_predict(X)
        assert shared.labels(seed).tolist() == expected.tolist()
        assert shared.labels(np.random.RandomState(seed)).tolist() == expected.tolist()


def test_kmeans_of_three_parts_is_that_of_scikit_learn():
    """Distances are computed 512 points at a time; the last of the parts is not full."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1100, 3)) + 4 * np.eye(3)[rng.integers(3, size=1100)]
    expected = KMeans(3, n_init=20, random_state=0).fit_predict(X)
    assert kmeans.RepeatedKMeans(X, 3).labels(0).tolist() == expected.tolist()


def test_scikit_learn_takes_over_where_a_cluster_empties(monkeypatch):
    handed = []

    class Counted(KMeans):
        def fit_predict(self, X):
            handed.append(len(X))
            return super().fit_predict(X)

    monkeypatch.setattr(kmeans, "KMeans", Counted)
    X = np.repeat(np.eye(3), 5, axis=0)
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        expected = KMeans(4, n_init=20, random_state=1).fit_predict(X)
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        found = kmeans.RepeatedKMeans(X, 4).labels(1)
    assert found.tolist() == expected.tolist()
    assert handed == [15]


def test_a_graph_is_embedded_once_for_all_seeds_and_for_the_eigengap(monkeypatch):
    calls = []

    def counted(A, k):
        calls.append(k)
        return leading_eigenpairs(A, k)

    monkeypatch.setattr(spectral, "leading_eigenpairs", counted)
    A, y = planted((20, 30, 25))
    graph = embed_graph(A, 3)
    for seed in range(4):
        graph.kmeans(seed)
    assert calls == [3]
    assert adjusted_rand_score(y, spectral_labels(A, None, random_state=0)) == 1
    assert calls == [3, 11]


@pytest.mark.parametrize(("assign_labels", "between"), [("kmeans", 0.3), ("cluster_qr", 0.85)])
def test_scale_and_order_of_the_points_do_not_matter(assign_labels, between):
    A, _ = planted((20, 25, 30), between=between)
    found = spectral_labels(A, 3, assign_labels=assign_labels, random_state=0)
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(len(A))
        permuted = 1e-3 * A[np.ix_(order, order)]
        labels = spectral_labels(permuted, 3, assign_labels=assign_labels, random_state=0)
        assert adjusted_rand_score(found[order], labels) == 1


def test_the_eigengap_counts_planted_clusters():
    for sizes in [(30,), (15, 20, 25, 30), (70, 80, 90)]:
        A, _ = planted(sizes)
        assert eigengap_n_clusters(A) == eigengap_n_clusters(csr_array(A)) == len(sizes)


def test_the_eigengap_counts_components_and_leaves_out_isolated_points():
    A = block_diag([planted((12,), seed=s)[0] for s in range(4)] + [np.zeros((3, 3))]).toarray()
    assert eigengap_n_clusters(A) == 4
    assert eigengap_n_clusters(A, max_clusters=3) == 3
    assert eigengap_n_clusters(np.zeros((4, 4))) == 1


def rings(n_rings, size, tie):
    """Rings of points, tied by one weak edge each; a tie of 0 is stored."""
    i = np.arange(n_rings * size)
    inside = csr_array((np.ones(len(i)), (i, i // size * size + (i + 1) % size)))
    heads = np.arange(n_rings) * size
    ties = (np.full(n_rings, 7.0), (heads, np.roll(heads + size // 2, 1)))
    A = inside + csr_array(ties, shape=inside.shape)
    A = csr_array(A + A.T)
    A.data[A.data == 7] = tie  # a sum would drop zeros
    return A, i // size


@pytest.mark.parametrize(
    ("n_rings", "size", "tie"), [(5, 400, 1e-4), (20, 100, 1e-12), (7, 250, 1e-8), (6, 200, 0)]
)
def test_weakly_tied_rings_are_told_apart_at_every_call(n_rings, size, tie):
    A, y = rings(n_rings, size, tie)
    found = [spectral_labels(graph, n_rings, random_state=3) for graph in (A, A, A.toarray())]
    assert adjusted_rand_score(y, found[0]) == 1
    assert found[0].tolist() == found[1].tolist() == found[2].tolist()
    assert eigengap_n_clusters(A, max_clusters=n_rings + 2) == n_rings


@pytest.mark.parametrize("wrap", [csr_array, csr_array.toarray])
@pytest.mark.parametrize(
    ("n_rings", "size", "tie"), [(20, 40, 1e-15), (14, 30, 1e-16), (12, 60, 0)]
)
def test_rounding_does_not_choose_the_number_of_clusters(n_rings, size, tie, wrap):
    A = wrap(rings(n_rings, size, tie)[0])
    said = "eigenvalues 10 and 11 differ by .*: .* Raise max_clusters"
    with nullcontext() if tie == 0 else pytest.warns(ConvergenceWarning, match=said):
        assert eigengap_n_clusters(A) == 10
    assert eigengap_n_clusters(A, max_clusters=n_rings + 1) == n_rings


def test_of_equal_gaps_the_first_counts():
    """The eigenvalues are 1, 1/2, 0 and -1/2, up to rounding."""
    A = np.array([[1.0, 2, 0, 1], [2, 1, 1, 0], [0, 1, 1, 2], [1, 0, 2, 1]])
    for seed in range(5):
        scale = np.random.default_rng(seed).uniform(size=4) * 1e-15 + 1
        assert eigengap_n_clusters(A * scale[:, None] * scale, max_clusters=3) == 1


@pytest.mark.parametrize("wrap", [csr_array, np.asarray])
def test_degrees_of_single_precision_are_summed_in_double(wrap, monkeypatch):
    monkeypatch.setattr(eigenvectors, "_ALL_AT_ONCE", {"sparse": 100, "dense": 100})
    A = planted((150, 100), density=0.3 if wrap is np.asarray else 0.05)[0].astype(np.float32)
    single, double = (leading_eigenpairs(wrap(A.astype(kind)), 3) for kind in (np.float32, float))
    assert_allclose(single.values, double.values, atol=1e-13, rtol=0)
    assert_allclose(single.error, 0, atol=1e-9)


@pytest.mark.parametrize("wrap", [csr_array, np.asarray])
def test_a_cut_between_equal_eigenvalues_is_said(wrap):
    A, _ = rings(5, 130, 1e-15)
    with pytest.warns(ConvergenceWarning, match="eigenvalues 3 and 4 differ by"):
        spectral_labels(wrap(A.toarray()), 3, random_state=0)
    ring = rings(1, 40, 0)[0].toarray()
    with pytest.warns(ConvergenceWarning, match="eigenvalues 2 and 3 differ by"):
        spectral_labels(wrap(ring), 2, random_state=0)


def test_an_embedding_without_a_certificate_is_said(monkeypatch):
    monkeypatch.setattr(krylov, "_CYCLES", {"product": 1, "inverse": 1, "filter": 1})
    monkeypatch.setattr(eigenvectors, "_MADE_DENSE", 0)
    with pytest.warns(ConvergenceWarning, match="one may be missed"):
        spectral_labels(rings(5, 400, 1e-4)[0], 5, random_state=0)
