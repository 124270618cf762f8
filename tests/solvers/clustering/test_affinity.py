import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array, issparse

from twinsolve.solvers.clustering import (
    affinity,
    keep_l1_mass,
    keep_largest,
    low_rank_affinity,
    nearest_rows_affinity,
    scale_by_row_maximum,
    softmax_rows,
    svd_power_affinity,
    symmetric_affinity,
    unit_rows,
)


def svd_power(C, power=2.0):
    return svd_power_affinity(C, 2, dimension=2, power=power)


@pytest.fixture
def C():
    """Signed coefficients with zeros, ties within a row, and a zero row."""
    rng = np.random.default_rng(0)
    C = rng.standard_normal((12, 12)) * (rng.random((12, 12)) < 0.6)
    C[3], C[4] = 0, 0.5
    return C


def unit(M):
    return np.array([m / np.linalg.norm(m) if np.linalg.norm(m) > 1e-12 else 0 * m for m in M])


@pytest.mark.parametrize("mass", [0.7, 1.0])
def test_l1_mass_is_kept_as_the_loop_keeps_it(C, mass):
    expected = np.zeros_like(C)
    for i, row in enumerate(C):
        held = 0.0
        for j in sorted(range(len(row)), key=lambda j: -abs(row[j])):
            if held >= mass * np.abs(row).sum() * (1 - 1e-12):
                break
            expected[i, j] = row[j]
            held += abs(row[j])
    assert (keep_l1_mass(C, mass) == expected).all()


def test_an_entry_that_reaches_the_mass_exactly_is_the_last():
    assert keep_l1_mass([[1.0, 2.0, 1.0]], 0.5).tolist() == [[0.0, 2.0, 0.0]]
    assert keep_l1_mass([[1.0, 2.0, 1.0]], 0.75).tolist() == [[1.0, 2.0, 0.0]]


def test_rows_are_divided_by_their_maximum_or_norm(C):
    largest = np.where(C.any(axis=1), np.abs(C).max(axis=1), 1)
    assert_allclose(scale_by_row_maximum(C), C / largest[:, None], rtol=1e-14)
    assert_allclose(unit_rows(C), unit(C), rtol=1e-14)


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
@pytest.mark.parametrize("step", [scale_by_row_maximum, unit_rows])
def test_rows_of_any_size_are_scaled(C, wrap, step):
    """Powers of two only move the exponents; squares of the smallest entries vanish."""
    sizes = np.ldexp(1.0, np.linspace(-600, 600, 12).astype(int))[:, None]
    expected, found = step(wrap(C)), step(wrap(sizes * C))
    assert abs(expected - found).max() == 0
    single = step(wrap((np.ldexp(1.0, -100) * C).astype(np.float32)))
    assert single.dtype == np.float32
    assert abs(single - step(wrap(C.astype(np.float32)))).max() == 0


def test_symmetric_affinity_is_the_sum_of_sizes(C):
    assert (symmetric_affinity(C) == np.abs(C) + np.abs(C.T)).all()


@pytest.mark.parametrize("power", [1.0, 3.0])
def test_low_rank_affinity_is_a_power_of_cosines(C, power):
    U, s, _ = np.linalg.svd(C)
    M = unit(U * np.sqrt(s))
    M[3] = 0
    A = low_rank_affinity(C, power=power)
    assert_allclose(A, np.abs(M @ M.T) ** power, atol=1e-10)
    assert (A[3] == 0).all()
    assert (A == A.T).all()
    assert (low_rank_affinity(csr_array(C), power=power) == A).all()


def test_no_affinity_of_cosines_exceeds_one_by_rounding():
    for seed in range(20):
        C = np.random.default_rng(seed).standard_normal((8, 8))
        for A in (low_rank_affinity(C), svd_power_affinity(C, 2, dimension=1, power=2)):
            assert 0.99 < A.max() <= 1


def test_svd_power_affinity_is_a_power_of_positive_cosines(C):
    U, s, _ = np.linalg.svd((C + C.T) / 2)
    M = unit(U[:, :7] * np.sqrt(s[:7]))
    B = np.maximum(M @ M.T, 0) ** 2
    A = svd_power_affinity(C, 3, dimension=2, power=2)
    assert_allclose(A, B / B.max(), atol=1e-10)
    assert_allclose(svd_power_affinity(csr_array(C), 3, dimension=2, power=2), A, atol=1e-12)
    assert svd_power_affinity(C, 3, dimension=99, power=2).shape == A.shape


def test_svd_power_affinity_of_many_points_by_few_vectors():
    for spectrum in ["both ends", "repeated"]:
        rng = np.random.default_rng(0)
        Q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
        values = rng.permutation(np.r_[np.linspace(-3, -1, 4), np.linspace(1, 4, 3), np.zeros(53)])
        if spectrum == "repeated":
            values = (np.arange(60) < 7).astype(float)
        V = Q[:, values != 0] * np.sqrt(np.abs(values[values != 0]))
        B = np.maximum(unit(V) @ unit(V).T, 0) ** 3
        found = svd_power_affinity(Q * values @ Q.T, 3, dimension=2, power=3)
        assert_allclose(found, B / B.max(), atol=1e-10)


def test_softmax_of_rows(C):
    A = softmax_rows(C)
    assert_allclose(A, np.exp(C) / np.exp(C).sum(axis=1, keepdims=True), rtol=1e-13)
    assert (softmax_rows(csr_array(C)) == A).all()
    assert np.isfinite(softmax_rows([[1e4, 0.0]])).all()


@pytest.mark.parametrize(
    "step",
    [lambda C: keep_l1_mass(C, 0.7), scale_by_row_maximum, unit_rows, symmetric_affinity],
    ids=["mass", "maximum", "norm", "symmetric"],
)
def test_sparse_stays_sparse_and_equals_dense_and_keeps_its_input(C, step):
    given = csr_array(C)
    found = step(given)
    assert issparse(found)
    assert_allclose(found.toarray(), step(C), rtol=1e-14)
    assert (given.toarray() == C).all()
    kept = C.copy()
    step(C)
    assert (kept == C).all()


def test_zero_coefficients_give_a_zero_affinity():
    zero = np.zeros((4, 4))
    for A in (
        keep_l1_mass(zero, 0.7),
        unit_rows(zero),
        scale_by_row_maximum(zero),
        low_rank_affinity(zero),
        svd_power(zero),
    ):
        assert (A == 0).all()


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
@pytest.mark.parametrize("n_entries", [3, 50])
def test_largest_entries_as_a_loop(C, wrap, n_entries):
    expected = np.zeros_like(C)
    for i, row in enumerate(C):
        for j in sorted(range(12), key=lambda j: -abs(row[j]))[:n_entries]:
            expected[i, j] = row[j]
    given = wrap(C)
    found = keep_largest(given, n_entries)
    assert issparse(found) == issparse(given)
    dense = found.toarray() if issparse(found) else found
    assert (dense == expected).all()
    if issparse(found):
        assert found.nnz == np.count_nonzero(expected)
        assert (given != csr_array(C)).nnz == 0


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
def test_nearest_rows_as_a_loop(C, wrap):
    C = C.astype(np.float32)
    graph, used = np.zeros((12, 12)), [i for i in range(12) if i != 3]
    U = unit(C.astype(np.float64))
    for i in used:
        for j in sorted((j for j in used if j != i), key=lambda j: -(U[i] @ U[j]))[:2]:
            graph[i, j] = 1
    found = nearest_rows_affinity(wrap(C), n_neighbors=2)
    assert found.dtype == np.float32
    assert (found.toarray() == (graph + graph.T) / 2).all()


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
def test_nearest_rows_have_the_largest_cosines(wrap, monkeypatch):
    """Of both signs, and of rows that share a column with fewer than n others."""
    monkeypatch.setattr(affinity, "_BATCH", 7)
    rng = np.random.default_rng(1)
    C = np.where(rng.random((40, 40)) < 0.1, rng.standard_normal((40, 40)), 0)
    C += 0.1 * np.eye(40)
    cosines = unit(C) @ unit(C).T
    others = np.sort(np.where(np.eye(40), -np.inf, cosines), axis=1)
    assert ((others > 0).sum(axis=1) < 4).any()
    graph = nearest_rows_affinity(wrap(C), n_neighbors=4)
    assert graph.sum() == 4 * 40
    assert not graph.diagonal().any()
    assert_allclose((graph * cosines).sum(), others[:, -4:].sum())
