"""Stability of boosted layers and of softmax: IF-29, IF-22, IF-23 and their errata."""

import numpy as np
from numpy.testing import assert_allclose
from scipy.special import softmax


def test_dot_product_attention_has_no_constant_on_all_inputs_e0l():
    def attention(Y):
        return softmax(Y @ Y.T, axis=1) @ Y

    quotients = []
    for scale in (1.0, 10.0, 100.0):
        Y, step = scale * np.array([[0.0], [1.0], [-1.0]]), np.array([[1e-6], [0.0], [0.0]])
        quotients.append(np.linalg.norm(attention(Y + step) - attention(Y)) / 1e-6)
    # The derivative of token 0 at 0 is (1 + 2 scale^2) / 3.
    assert_allclose(quotients, (1 + 2 * np.array([1.0, 1e2, 1e4])) / 3, rtol=0.25)
