import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from scipy.special import softmax

from twinsolve.solvers import boost
from twinsolve.solvers.boosting import generalized_residual, l2_boosting, sos_boosting

SEED = st.integers(0, 500)


def attention(Y):
    return softmax(Y @ Y.T / Y.shape[1] ** 0.5, axis=1) @ Y


def smoothers_and_values(seed, n_layers=4):
    rng = np.random.default_rng(seed)
    A = softmax(rng.standard_normal((n_layers, 5, 5)), axis=-1)
    return list(A), rng.standard_normal((5, 3))


@given(seed=SEED, data=st.data())
def test_generalized_residual_with_any_indices_and_weights(seed, data):
    """IF-GRC against a literal loop, one filter a layer."""
    filters, y = smoothers_and_values(seed)
    sources = [data.draw(st.integers(0, layer)) for layer in range(4)]
    weights = data.draw(st.lists(st.floats(-2, 2), min_size=4, max_size=4))
    expected = [y]
    for A, t, i in zip(filters, weights, sources, strict=True):
        expected.append(A @ expected[-1] + t * expected[i])
    path = {}
    found = generalized_residual(
        filters, y, sources=sources, weights=weights, callback=path.__setitem__
    )
    assert list(path) == [0, 1, 2, 3, 4]
    assert_allclose([*path.values()], expected, atol=1e-13)
    assert_array_equal(found, path[4])


@given(seed=SEED, t=st.floats(0, 1))
def test_boost_against_a_literal_loop(seed, t):
    """IF-26, for filters that depend on their input."""
    _, y = smoothers_and_values(seed)
    path, Y = {}, y
    boost(attention, y, t=t, n_iter=3, callback=path.__setitem__)
    for layer in range(3):
        assert_allclose(path[layer], Y, atol=1e-13)
        Y = attention(Y) + t * y + (1 - t) * Y


def test_weights_and_filters_may_change_with_the_layer():
    filters, y = smoothers_and_values(0)
    t = [0.0, 0.3, 0.6, 1.0]
    Y = y
    for A, weight in zip(filters, t, strict=True):
        Y = A @ Y + weight * y + (1 - weight) * Y
    mixed = [filters[0], csr_array(filters[1]), lambda v: filters[2] @ v, filters[3]]
    for given_as in (filters, tuple(filters), mixed):
        assert_allclose(boost(given_as, y, t=t, n_iter=4), Y, atol=1e-13)


def test_one_array_may_hold_a_matrix_for_each_layer():
    filters, y = smoothers_and_values(0)
    stacked = np.stack(filters)
    assert_array_equal(boost(stacked, y, t=0.3, n_iter=4), boost(filters, y, t=0.3, n_iter=4))
    assert_array_equal(
        generalized_residual(stacked, y, sources=[0, 0, 1, 3]),
        generalized_residual(filters, y, sources=[0, 0, 1, 3]),
    )


def test_one_float64_matrix_among_others_makes_all_layers_float64():
    filters, y = smoothers_and_values(0)
    y = y.astype(np.float32)
    for wide in range(4):
        mixed = [A.astype(np.float32) for A in filters]
        mixed[wide] = mixed[wide].astype(np.float64)
        found = boost(mixed, y, t=0.3, n_iter=4)
        assert found.dtype == np.float64
        exact = boost([A.astype(np.float64) for A in mixed], y.astype(np.float64), t=0.3, n_iter=4)
        assert_allclose(found, exact, rtol=1e-14)


def test_a_list_of_rows_is_one_matrix():
    A = np.random.default_rng(0).random((3, 3))
    y = np.ones((3, 1))
    expected = boost(A, y, t=0.5, n_iter=3)
    for rows in (A.tolist(), list(A)):
        assert_array_equal(boost(rows, y, t=0.5, n_iter=3), expected)


@given(seed=SEED, t=st.floats(0, 1))
def test_two_layers_combine_for_linear_filters_if27(seed, t):
    filters, y = smoothers_and_values(seed)
    path = {}
    boost(filters, y, t=t, n_iter=4, callback=path.__setitem__)
    for layer in (0, 1, 2):
        f, after = filters[layer], filters[layer + 1]
        Y = path[layer]
        combined = after @ (f @ Y + Y) + t * after @ (y - Y) + t * y + (1 - t) * path[layer + 1]
        assert_allclose(path[layer + 2], combined, atol=1e-12)


def test_two_layers_do_not_combine_for_attention_e0j():
    _, y = smoothers_and_values(0)
    t, path = 0.5, {}
    boost(attention, y, t=t, n_iter=3, callback=path.__setitem__)
    Y = path[1]
    combined = attention(attention(Y) + Y) + t * attention(y - Y) + t * y + (1 - t) * path[2]
    assert np.abs(path[3] - combined).max() > 1e-2 * np.abs(path[3]).max()


def test_the_standard_residual_grows_e0m():
    """Prop IV.1 models |u_l| by 2 alpha^l |u_0|, which decays; accumulation makes it grow."""
    for alpha in [0.1, 0.9]:
        u = np.random.default_rng(0).standard_normal((4, 2))
        path = {}
        generalized_residual(alpha * np.eye(4), u, sources=range(12), callback=path.__setitem__)
        norms = np.array([np.linalg.norm(Y) for Y in path.values()]) / np.linalg.norm(u)
        layers = np.arange(13)
        assert_allclose(norms, (1 + alpha) ** layers, rtol=1e-13)
        printed = 2 * alpha ** layers[1:]
        assert (norms[1:] > printed).any()
        assert norms[-1] > 3 * printed[-1]


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)])
def test_images_no_layers_and_overflow(shape):
    y = np.random.default_rng(0).random(shape)
    assert_allclose(boost(lambda v: 0.5 * v, y, t=0, n_iter=3), 1.5**3 * y, rtol=1e-15)
    for nothing in (
        boost(np.tanh, y, t=1.0, n_iter=0),
        generalized_residual(np.tanh, y, sources=[]),
    ):
        assert_array_equal(nothing, y)
        assert not np.shares_memory(nothing, y)
    with pytest.raises(ValueError, match=r"filter: iterate \d+ holds NaN or infinity"):
        boost(lambda v: 3 * v, y, t=0, n_iter=600)


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_two_layers_are_twicing_and_a_skip_if_their_signs_differ_if27(t):
    """Filters a A and b A with a b = -1 and b + (1 - t) a = 2 give (2 A - A^2) y and y."""
    (A, *_), y = smoothers_and_values(0)
    a = -0.5 if t == 1 else (1 - (2 - t) ** 0.5) / (1 - t)
    found = boost([a * A, -A / a], y, t=t, n_iter=2)
    assert_allclose(found, 2 * A @ y - A @ A @ y + y, atol=1e-13)


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
def test_two_equal_layers_are_never_twicing_if27(t, mu):
    """On an eigenvalue mu they give mu^2 + (2 - t) mu + 1, twicing 2 mu - mu^2."""
    y = np.ones((1, 1))
    gain = boost(np.array([[mu]]), y, t=t, n_iter=2)[0, 0]
    assert_allclose(gain, mu**2 + (2 - t) * mu + 1, atol=1e-14)
    assert gain - (2 * mu - mu**2) >= 1 - t**2 / 8


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize("boosting", [l2_boosting, sos_boosting])
@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_two_equal_layers_are_no_boosting_of_their_filter_if27(t, boosting, n_iter):
    """What the filter takes away stays away in boosting; the layers keep it whole."""
    A, y = np.array([[0.5, -0.5], [-0.5, 0.5]]), np.ones((2, 1))
    assert_allclose(boosting(A, y, n_iter=n_iter), 0 * y, atol=1e-15)
    assert_allclose(boost(A, y, t=t, n_iter=2), y, atol=1e-15)
