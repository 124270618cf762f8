import numpy as np
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
