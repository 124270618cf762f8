"""Twicing, and attention pulled to the first values."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import Context, Gaussian, Neutreno, Softmax, SparseCoding, Tupe, Twicing

GENERATOR = torch.Generator().manual_seed(0)
X, V, F = torch.randn(3, 2, 2, 7, 4, generator=GENERATOR, dtype=torch.float64)
CONTEXT = Context(first_values=F)


def test_a_base_without_the_law_is_warned_about_but_the_algebra_holds():
    with pytest.warns(UserWarning, match="SparseCoding is not row stochastic"):
        twicing = Twicing(SparseCoding(0.2, n_iter=50).double())
    A = twicing.base.matrix(X, X)
    assert_close(twicing(X, X, X), (2 * A - A @ A) @ X, atol=1e-12, rtol=0)
    assert not twicing.row_stochastic


@pytest.mark.parametrize("masks", [{}, {"is_causal": True}, {"mask": torch.arange(7)[None] < 5}])
def test_the_explicit_form_is_the_streaming_one(masks):
    explicit, streaming = Twicing(Softmax()), Twicing(Softmax())
    streaming.max_explicit = 0
    assert explicit.is_explicit(X)
    assert not streaming.is_explicit(X)
    assert_close(explicit(X, X, X, **masks), streaming(X, X, X, **masks), atol=1e-12, rtol=0)


def test_long_sequences_half_precision_and_dear_matrices_are_streamed():
    long = torch.zeros(257, 4)
    assert Twicing(Softmax()).is_explicit(long[:256])
    assert not Twicing(Softmax()).is_explicit(long)
    assert not Twicing(Softmax()).is_explicit(long[:9].bfloat16())
    assert not Twicing(Gaussian()).is_explicit(long[:9])


def test_composes_in_either_order():
    """Twicing smooths the residual with whatever its base is: outside, it adds the pull twice."""
    A, one = Gaussian().matrix(X, X), torch.eye(7, dtype=torch.float64)
    inside = Neutreno(Twicing(Gaussian()), 0.3)(X, X, V, context=CONTEXT)
    assert_close(inside, (2 * A - A @ A) @ V + 0.3 * (F - V), atol=1e-12, rtol=0)
    with pytest.warns(UserWarning, match="Neutreno is not") as warned:
        outside = Twicing(Neutreno(Gaussian(), 0.3))
    assert any("not linear in its values" in str(w.message) for w in warned)
    M = A - 0.3 * one
    expected = (2 * M - M @ M) @ V + (2 * one - M) @ (0.3 * F)
    assert_close(outside(X, X, V, context=CONTEXT), expected, atol=1e-12, rtol=0)
    assert_close(outside.matrix(X, X, context=CONTEXT), 2 * M - M @ M, atol=1e-12, rtol=0)


def test_asks_for_what_its_base_needs_too():
    assert set(Neutreno(Tupe(8, 2)).needs) == {"positions", "first_values"}
    assert Neutreno(Neutreno(Softmax())).needs == ("first_values",)
