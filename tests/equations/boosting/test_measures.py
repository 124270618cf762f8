import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose

from .formulas import kernel_smoother


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


def test_a_denoiser_may_have_the_better_ratio_and_still_lose_the_signal_if_r3():
    """Remark III.3, of a signal and a noise without the constant that all tokens tend to."""
    A, _ = kernel_smoother()
    values, vectors = np.linalg.eig(A)
    order = np.argsort(values)
    signal, noise = vectors[:, order[-2]], vectors[:, order[0]]
    eye, powers = np.eye(len(A)), np.arange(1, 7)
    plain, residual, alone = (norm(F @ signal) / norm(F @ noise) for F in (eye, eye + A, A))
    assert plain < residual < alone
    kept = [norm(np.linalg.matrix_power(A, k) @ signal) / norm(signal) for k in powers]
    assert_allclose(kept, values[order[-2]] ** powers, rtol=1e-10)
    assert kept[-1] < 0.9 * kept[0]
