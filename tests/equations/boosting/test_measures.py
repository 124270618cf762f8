import numpy as np
import pytest
from numpy.testing import assert_allclose


@pytest.mark.parametrize("g", [0.4, 2.0])
def test_printed_noise_term_is_not_the_square_e0e(g):
    n = np.random.default_rng(0).standard_normal((6, 1))
    square = (n**2).sum()
    exact = ((n + g * n) ** 2).sum()
    assert_allclose(exact, ((1 + g**2) + 2 * g) * square, rtol=1e-13)
    assert_allclose(exact, (1 + g) ** 2 * square, rtol=1e-13)
    printed = ((1 + g) + 2 * g) * square
    assert (printed < exact) == (g > 1)  # no upper bound there
    assert abs(printed / exact - 1) > 0.1
