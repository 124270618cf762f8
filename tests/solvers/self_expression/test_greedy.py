import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers import omp_self_expression


def literal_omp(X, n_nonzero, tol):
    """The sentence of CL-9, with a least squares solve at every step."""
    C = np.zeros((len(X), len(X)))
    for i, x in enumerate(X):
        support, r = [], x.copy()
        while len(support) < n_nonzero and np.linalg.norm(r) > tol:
            scores = np.abs(X @ r)
            scores[[i, *support]] = -1
            if scores.max() < 1e-12:
                break
            support.append(int(scores.argmax()))
            c = np.linalg.lstsq(X[support].T, x, rcond=None)[0]
            r = x - c @ X[support]
            C[i] = 0
            C[i, support] = c
    return C


@pytest.mark.parametrize(("n_nonzero", "tol"), [(3, 0.0), (8, 1e-9), (8, 0.8)])
def test_is_the_literal_loop(X, n_nonzero, tol):
    X.flags.writeable = False  # as processes get the data
    found = omp_self_expression(X, n_nonzero=n_nonzero, tol=tol)
    assert_allclose(found.toarray(), literal_omp(X, n_nonzero, tol), atol=1e-9)
    assert (found.diagonal() == 0).all()
    assert found.has_sorted_indices
