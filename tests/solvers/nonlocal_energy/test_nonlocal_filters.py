"""Banks of filters that mix their responses to similar windows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers.nonlocal_energy import (
    FilterBank,
    NonlocalFilterBank,
)

rng = np.random.default_rng(0)
SHAPE = (7, 8)
N_WINDOWS = 5 * 6
FILTERS = rng.standard_normal((4, 3, 3))
SIMILAR = rng.integers(0, N_WINDOWS, (N_WINDOWS, 3))
SHARING = np.array([-0.3, 0.0, 0.6, 1.4])
BANK = NonlocalFilterBank(FILTERS, SIMILAR, sharing=SHARING)
IMAGE = rng.random(SHAPE)


def matrix(bank):
    units = np.eye(np.prod(SHAPE)).reshape(-1, *SHAPE)
    return np.stack([bank(unit).ravel() for unit in units], axis=1)


def test_responses_are_mixed_with_those_to_similar_windows():
    alone = FilterBank(FILTERS)(IMAGE).reshape(4, -1)
    b = SHARING[:, None]
    expected = (1 - b) * alone + b * alone[:, SIMILAR].mean(axis=2)
    assert_allclose(BANK(IMAGE).reshape(4, -1), expected, rtol=1e-12)


def test_norm_is_bounded_where_the_one_of_the_filters_does_not_hold():
    weights = np.array([0.5, 1.0, 2.0, 0.1])
    all_to_one = NonlocalFilterBank(FILTERS, np.full((N_WINDOWS, 1), 7), sharing=1.0)
    for bank in (BANK, all_to_one):
        K = matrix(bank).reshape(4, -1, np.prod(SHAPE))
        exact = np.linalg.norm(np.einsum("i,iwp,iwq->pq", weights, K, K), 2)
        assert exact <= bank.norm_bound(weights)
    assert exact > FilterBank(FILTERS).norm_bound(weights)


def test_bad_arguments_are_named():
    for similar, sharing, name in [
        (np.full((30, 2), 30), 0.5, "similar"),
        (np.full((30, 2), -1), 0.5, "similar"),
        (np.zeros((30, 2)), 0.5, "similar"),
        (np.zeros(30, dtype=int), 0.5, "similar"),
        (np.zeros((29, 2), dtype=int), 0.5, "similar"),
        (SIMILAR, np.nan, "sharing"),
        (SIMILAR, np.ones(3), "sharing"),
    ]:
        with pytest.raises(ValueError, match=f"^{name}: must"):
            NonlocalFilterBank(FILTERS, similar, sharing=sharing)(IMAGE)
