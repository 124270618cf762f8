"""Sparse mixture of experts as a sparse code in a dictionary (IF-32, IF-33), and IF-KSVD."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinsolve.solvers import ksvd

from ...equations.boosting.formulas import update_atom

SEED = st.integers(0, 500)


@settings(deadline=None)  # the first call compiles
@given(seed=SEED)
def test_learned_dictionary_only_gets_better_and_so_does_one_more_update_if_ksvd(seed):
    S = np.random.default_rng(seed).standard_normal((20, 4))
    dictionary, C, objective = ksvd(S, n_atoms=6, n_nonzero=2, n_iter=3, random_state=seed)
    assert (np.diff(objective) <= 1e-12 * objective[0]).all()
    C, before = C.toarray(), objective[-1]
    for j in range(6):
        C, dictionary = update_atom(S, C, dictionary, j)
        after = ((S - C @ dictionary) ** 2).sum()
        assert after <= before * (1 + 1e-12)
        before = after
