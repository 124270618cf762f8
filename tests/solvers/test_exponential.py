import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from twinsolve.solvers.kernels.exponential import exp, exp2, exp2_terms, exp2_to_zero


@njit
def exponentials(x, out):
    for i in range(x.size):
        out[i] = exp(x[i])


@njit
def powers_of_two(x, out):
    for i in range(x.size):
        out[i] = exp2(x[i])


@njit
def powers_by_terms(x, terms, out):
    for i in range(x.size):
        out[i] = exp2_to_zero(x[i], terms)


def powers_of_two_to_zero(x, out):
    powers_by_terms(x, exp2_terms(x.dtype), out)


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_is_right_to_two_units_in_the_last_place(real):
    rng = np.random.default_rng(0)
    x = -np.concatenate([k * rng.random(20_000) for k in (1e-4, 1, 20, 86, 700)]).astype(real)
    found = np.empty_like(x)
    exponentials(x, found)
    exact = np.exp(x.astype(np.longdouble))
    normal = exact > 4 * np.finfo(real).tiny
    assert normal.sum() > 50_000
    assert (np.abs(found - exact)[normal] <= 2 * np.finfo(real).eps * exact[normal]).all()
    assert (found[~normal] <= 8 * np.finfo(real).tiny).all()


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_limits(real):
    x = np.array([0.0, -0.0, -np.inf, -1e30, np.nan], dtype=real)
    found = np.empty_like(x)
    exponentials(x, found)
    assert_array_equal(found, [1, 1, 0, 0, 0])


@pytest.mark.parametrize(("real", "least"), [(np.float32, -87), (np.float64, -708)])
def test_is_zero_from_the_stated_argument_on(real, least):
    x = np.array([least, np.nextafter(real(least), real(0))], dtype=real)
    found = np.empty_like(x)
    exponentials(x, found)
    assert found[0] == 0
    assert np.finfo(real).tiny <= found[1] < 4 * np.finfo(real).tiny


@pytest.mark.parametrize("powers_of_two", [powers_of_two, powers_of_two_to_zero])
@pytest.mark.parametrize(("real", "largest"), [(np.float32, 126), (np.float64, 1022)])
def test_powers_of_two_are_right_to_two_units_and_whole_ones_exact(real, largest, powers_of_two):
    rng = np.random.default_rng(0)
    x = np.concatenate([k * rng.uniform(-1, 1, 20_000) for k in (1e-4, 1, 20, largest)])
    x = x.astype(real)
    found = np.empty_like(x)
    powers_of_two(x, found)
    exact = np.exp2(x.astype(np.longdouble))
    assert (np.abs(found - exact) <= 2 * np.finfo(real).eps * exact).all()
    whole = np.arange(-largest, largest + 1, dtype=real)
    found = np.empty_like(whole)
    powers_of_two(whole, found)
    assert_array_equal(found, np.exp2(whole))


@pytest.mark.parametrize(("real", "least"), [(np.float32, -126.5), (np.float64, -1022.5)])
def test_powers_of_two_vanish_below_the_stated_argument(real, least):
    below = np.nextafter(real(least), real(-np.inf))
    x = np.array([below, 2 * below, -1e30, -np.inf, least + 0.5], dtype=real)
    found = np.empty_like(x)
    powers_of_two_to_zero(x, found)
    assert_array_equal(found, [0, 0, 0, 0, np.finfo(real).tiny])


@pytest.mark.parametrize(
    ("exponential", "more"), [(exp, ()), (exp2, ()), (exp2_to_zero, (exp2_terms(np.float64),))]
)
def test_outside_of_kernels_they_say_so(exponential, more):
    with pytest.raises(NotImplementedError, match="numba kernels"):
        exponential(-1.0, *more)
