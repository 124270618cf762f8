import numpy as np
import pytest
import scipy.fft
from numpy.testing import assert_allclose

from .formulas import cosines


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_sk_8_and_sk_9_transform_and_inverse(n):
    D, X = cosines(n), np.random.default_rng(n).standard_normal((n, 5))
    assert_allclose(D @ D.T, np.eye(n), atol=1e-12)
    F = scipy.fft.dctn(X, norm="ortho")
    assert_allclose(D @ X @ cosines(5).T, F, atol=1e-12)
    assert_allclose(D.T @ F @ cosines(5), X, atol=1e-12)


def test_erratum_e4_j_the_printed_matrix_is_the_inverse_transform():
    n = 6
    printed, x = cosines(n).T, np.random.default_rng(0).standard_normal(n)
    assert_allclose(printed @ x, scipy.fft.idct(x, norm="ortho"), atol=1e-12)
    assert np.abs(printed @ x - scipy.fft.dct(x, norm="ortho")).max() > 0.1
