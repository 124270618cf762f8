import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import ksvd


def signals():
    return np.random.default_rng(0).standard_normal((40, 6))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**6), n_nonzero=st.integers(1, 4))
def test_objective_never_increases(points, data, seed, n_nonzero):
    Y = data.draw(points)
    D, C, objective = ksvd(Y, n_atoms=6, n_nonzero=n_nonzero, n_iter=8, random_state=seed)
    assert (np.diff(objective) <= 1e-12 * (Y**2).sum()).all()
    assert_allclose(objective[-1], ((Y - C @ D) ** 2).sum(), atol=1e-12 * (Y**2).sum())
    assert_allclose(np.linalg.norm(D, axis=1), 1)
    assert np.diff(C.indptr).max() <= n_nonzero


def test_one_update_is_the_best_rank_one_term():
    """IF-KSVD: with one atom the answer is the leading singular pair."""
    Y = signals()
    _, _, objective = ksvd(Y, n_atoms=1, n_nonzero=1, n_iter=1, random_state=0)
    s = np.linalg.svd(Y, compute_uv=False)
    assert_allclose(objective[0], (s[1:] ** 2).sum(), rtol=1e-12)


def test_float32_is_kept_and_the_start_is_drawn():
    Y = signals().astype(np.float32)
    D, C, _ = ksvd(Y, n_atoms=5, n_nonzero=2, n_iter=2, random_state=0)
    assert D.dtype == C.dtype == np.float32
    again = ksvd(Y, n_atoms=5, n_nonzero=2, n_iter=2, random_state=0)
    assert_allclose(again[0], D)


def on_lines(n_lines, n_rows, n_features, noise, seed):
    """Rows near lines through the origin, and the least error of one atom for each line."""
    rng = np.random.default_rng(seed)
    lines = rng.standard_normal((n_lines, n_features))
    sizes = rng.uniform(0.5, 3, (n_lines, n_rows, 1)) * rng.choice([-1, 1], (n_lines, n_rows, 1))
    groups = sizes * lines[:, None] + noise * rng.standard_normal((n_lines, n_rows, n_features))
    least = (np.linalg.svd(groups, compute_uv=False)[:, 1:] ** 2).sum()
    return rng.permutation(groups.reshape(-1, n_features)), least


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize(("n_lines", "n_rows", "n_features"), [(12, 30, 20), (20, 6, 8)])
def test_each_group_gets_an_atom(n_lines, n_rows, n_features, noise):
    for seed in range(3):
        Y, least = on_lines(n_lines, n_rows, n_features, noise, seed)
        D, C, objective = ksvd(Y, n_atoms=n_lines, n_nonzero=1, random_state=seed)
        assert objective[-1] <= least * (1 + 1e-9) + 1e-24 * (Y**2).sum()
        assert (np.diff(objective) <= 1e-12 * (Y**2).sum()).all()
        assert_allclose(objective[-1], ((Y - C @ D) ** 2).sum(), atol=1e-12 * (Y**2).sum())


def test_unused_atoms_of_a_pass_take_different_rows():
    """Most atoms of the start are one row, so that one pass has to replace them by all others."""
    Y = np.diag(np.arange(1.0, 13))[[0] * 200 + list(range(1, 12))]
    for seed in range(5):
        D, _, objective = ksvd(Y, n_atoms=12, n_nonzero=1, n_iter=1, random_state=seed)
        assert objective[0] < 1e-24
        assert_allclose(np.abs(D).sum(axis=0), 1, atol=1e-12)


def test_equal_and_unused_atoms_are_cleared_while_a_row_has_an_error():
    """Rows with a large common part, as patches of a page: the atoms of the start come together."""
    rng = np.random.default_rng(0)
    Y = 5 + (rng.random((300, 16)) < 0.1) * rng.standard_normal((300, 16))
    for n_nonzero in (1, 3):
        D, C, objective = ksvd(Y, n_atoms=24, n_nonzero=n_nonzero, n_iter=10, random_state=0)
        assert objective[-1] > 0
        assert np.bincount(C.indices, minlength=24).min() > 0
        assert np.abs(D @ D.T - np.eye(24)).max() < 1 - 1e-9


def test_one_atom_has_no_other_to_hand_its_rows_to():
    Y = np.vstack([np.eye(2), [[0.0, 5.0]]])
    _, C, objective = ksvd(Y, n_atoms=1, n_nonzero=1, n_iter=3, random_state=0)
    assert_allclose(objective, 1)
    assert C.nnz <= 3
