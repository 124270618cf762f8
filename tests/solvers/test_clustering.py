import numpy as np
import pytest
from scipy.sparse import csr_array, issparse

from twinsolve.solvers import symmetric_affinity


def test_affinity_is_symmetric_nonnegative_and_keeps_sparsity():
    C = np.random.default_rng(0).standard_normal((5, 5))
    A = symmetric_affinity(C)
    assert (A == A.T).all()
    assert (A >= 0).all()
    sparse = symmetric_affinity(csr_array(C))
    assert issparse(sparse)
    assert (sparse.toarray() == A).all()


@pytest.mark.parametrize("wrap", [np.asarray, csr_array])
def test_bad_coefficients_are_named(wrap):
    with pytest.raises(ValueError, match="coef: must be square"):
        symmetric_affinity(wrap(np.ones((2, 3))))
    with pytest.raises(ValueError, match=r"coef: .*NaN"):
        symmetric_affinity(wrap(np.full((2, 2), np.nan)))
