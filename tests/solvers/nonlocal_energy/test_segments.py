"""Total variation of signals: the segments, and the certificate."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinsolve.solvers.nonlocal_energy import signal_variation
from twinsolve.solvers.oracles import nonlocal_energy as oracle

RNG = np.random.default_rng(0)
SIGNALS = {
    "random": RNG.standard_normal((4, 30)),
    "walk": RNG.standard_normal((4, 300)).cumsum(axis=1),
    "ties": RNG.integers(-2, 3, (4, 40)).astype(float),
    "constant": np.full((4, 5), 0.1),
    "steep": np.exp(RNG.standard_normal((4, 25)) * 5),
    "single": RNG.standard_normal((4, 1)),
    "pair": RNG.standard_normal((4, 2)),
}


@pytest.mark.parametrize("lam", [1e-3, 0.4, 30.0, 1e6])
@pytest.mark.parametrize("kind", SIGNALS)
def test_signals_are_solved_up_to_rounding_fe_5(kind, lam):
    f = SIGNALS[kind]
    solution = signal_variation(f, lam=lam)
    assert solution.gap.max() < 1e-14
    assert np.abs(solution.dual).max(initial=0) <= lam
    if lam == 1e6:
        assert_allclose(solution.coef, np.tile(f.mean(axis=1, keepdims=True), f.shape[1]))


def test_rows_are_the_images_of_height_one_of_the_oracle_fe_5():
    f, lam = SIGNALS["random"], np.array([0.1, 0.5, 2.0, 20.0])
    found = signal_variation(f, lam=lam).coef
    for u, row, weight in zip(found, f, lam, strict=True):
        assert_allclose(u, oracle.total_variation(row[None], lam=weight)[0], atol=1e-5)


def test_the_gap_bounds_the_distance_fe_5():
    f = SIGNALS["random"]
    best = signal_variation(f, lam=0.5).coef
    energy = ((f - f.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    # Rounding of float32 is a distance; a float32 solution is certified after it.
    low = signal_variation(f.astype(np.float32), lam=0.5)
    assert low.coef.dtype == np.float32
    assert (((low.coef - best) ** 2).sum(axis=1) / 2 <= low.gap * energy + 1e-13).all()
    assert low.gap.min() > 1e-9


@pytest.mark.parametrize("lam", [0.0, -1.0, np.nan, [1.0, 2.0, np.inf, 1.0]])
def test_weights_that_are_not_positive_are_refused(lam):
    with pytest.raises(ValueError, match="lam: must be finite"):
        signal_variation(SIGNALS["random"], lam=lam)
