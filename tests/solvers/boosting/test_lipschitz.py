"""Stability of boosted layers and of softmax: IF-29, IF-22, IF-23 and their errata."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from twinsolve.solvers import boost
from twinsolve.solvers.boosting import boosting_lipschitz_bound

CONSTANT = st.floats(0.01, 4)
T = st.floats(0, 1)
LAYERS = st.integers(0, 20)


@given(L=CONSTANT, t=T, n=LAYERS)
def test_closed_form_and_recurrence_if29(L, t, n):
    found = boosting_lipschitz_bound(L, n, t=t)
    after = boosting_lipschitz_bound(L, n + 1, t=t)
    assert_allclose(after, (L + 1 - t) * found + t, rtol=1e-14)
    assert_allclose(boosting_lipschitz_bound(L, n), (L + 1) ** n, rtol=1e-12)
    if abs(L - t) > 1e-3:  # the closed form cancels near L = t
        assert_allclose(found, (L * (L + 1 - t) ** n - t) / (L - t), rtol=1e-10)


def test_bound_out_of_range_is_infinite():
    assert boosting_lipschitz_bound(9.0, 308) < np.inf
    assert boosting_lipschitz_bound(9.0, 309) == np.inf
    assert boosting_lipschitz_bound(0.0, 5000, t=0.5) == 1


@given(L=CONSTANT, t=T, n=st.integers(0, 8), seed=st.integers(0, 100))
def test_bound_is_attained_by_a_multiple_of_the_identity(L, t, n, seed):
    x, y = np.random.default_rng(seed).standard_normal((2, 3, 2))
    apart = boost(L * np.eye(3), x, t=t, n_iter=n) - boost(L * np.eye(3), y, t=t, n_iter=n)
    ratio = np.linalg.norm(apart) / np.linalg.norm(x - y)
    assert_allclose(ratio, boosting_lipschitz_bound(L, n, t=t), rtol=1e-10)


FILTERS = {
    "tanh": np.tanh,
    "sine": np.sin,
    "absolute": np.abs,
    "negation": np.negative,
    "rotation": lambda Y: Y[:, ::-1] * [1, -1],
    "permutation": lambda Y: Y[::-1],
    "soft threshold": lambda Y: np.sign(Y) * np.maximum(np.abs(Y) - 0.5, 0),
    "projection": lambda Y: Y / max(1.0, np.linalg.norm(Y)),
    "constant": np.zeros_like,
}


@given(
    name=st.sampled_from([*FILTERS]),
    L=CONSTANT,
    t=T,
    n=st.integers(0, 6),
    seed=st.integers(0, 500),
    near=st.sampled_from([1, 1e-3]),
)
def test_no_filter_exceeds_the_bound(name, L, t, n, seed, near):
    x, step = np.random.default_rng(seed).standard_normal((2, 3, 2))
    y = x + near * step
    ends = [boost(lambda Y: L * FILTERS[name](Y), start, t=t, n_iter=n) for start in (x, y)]
    bound = boosting_lipschitz_bound(L, n, t=t) * np.linalg.norm(x - y)
    # Rounding of each end, relative to its size.
    slack = 1e-13 * sum(np.linalg.norm(end) for end in ends)
    assert np.linalg.norm(ends[0] - ends[1]) <= bound * (1 + 1e-12) + slack


@given(L=CONSTANT, t=st.floats(0.05, 1), n=st.integers(1, 12))
def test_printed_signs_of_the_recurrence_fail_e0k(L, t, n):
    a = L + 1 - t
    assume(abs(a - 1) > 0.05 and n > 1)
    first, offset = L + 1, t / (a - 1)
    exact = boosting_lipschitz_bound(L, n, t=t)
    assert_allclose((first + offset) * a ** (n - 1) - offset, exact, rtol=1e-9)
    printed = (first - offset) * a ** (n - 1) + offset
    # They differ by 2 b (a^(n-1) - 1) / (a - 1), positive for n > 1.
    assert_allclose(exact - printed, 2 * t * sum(a**j for j in range(n - 1)), rtol=1e-8)
    assert printed < exact


def test_constant_stays_bounded_for_small_l_e0l():
    """K_n -> t / (t - L); the printed ratio to (L + 1)^n is not even positive."""
    for L, t in [(0.3, 0.9), (0.0, 0.5)]:
        values = [boosting_lipschitz_bound(L, n, t=t) for n in (0, 1, 10, 100, 2000)]
        assert (np.diff(values) >= 0).all()
        assert_allclose(values[-1], t / (t - L), rtol=1e-12)
        printed = L / (L - t) * (1 - t / (L + 1)) ** 100
        ratio = values[3] / boosting_lipschitz_bound(L, 100)
        assert printed <= 0 < ratio


def test_printed_ratio_is_off_without_limit_for_small_l_e0l():
    L, t = 0.3, 0.9
    off = [
        boosting_lipschitz_bound(L, n, t=t)
        / boosting_lipschitz_bound(L, n)
        / abs(L / (L - t) * (1 - t / (L + 1)) ** n)
        for n in (5, 10, 20, 40)
    ]
    # K_n tends to a constant while the printed form has the factor (L + 1 - t)^n.
    assert_allclose(np.array(off[1:]) / off[:-1], 0.4 ** -np.array([5.0, 10.0, 20.0]), rtol=0.02)
