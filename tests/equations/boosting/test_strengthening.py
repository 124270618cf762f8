import numpy as np
from numpy.testing import assert_allclose

from .formulas import kernel_smoother, limit


def test_fixed_point_is_not_the_one_of_the_sum_alone():
    """Left out, tau rho + tau - 1 = rho at tau = 1 would be the plain sum, which is another one."""
    A, y = kernel_smoother()
    rho = 0.5
    u = limit(A, y, rho)
    assert_allclose(A @ (y + rho * u) - rho * u, u, atol=1e-13)
    assert np.abs(A @ (y + rho * u) - u).max() > 1e-2
