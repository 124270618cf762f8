"""Twicing, residuals, and attention pulled to the first values."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    Context,
    Gaussian,
    GeneralizedResidual,
    Neutreno,
    Residual,
    Softmax,
    SparseCoding,
    Tupe,
    Twicing,
)

GENERATOR = torch.Generator().manual_seed(0)
X, Y, V, F = torch.randn(4, 2, 2, 7, 4, generator=GENERATOR, dtype=torch.float64)
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


def test_both_forms_of_residuals_start_as_the_plain_one_exactly():
    """IF-26 at t = 0, and Definition IV.1 at i_l = l and t_l = 1."""
    x, y, *others = torch.randn(4, 6, 4, dtype=torch.float64)
    context = Context(first_tokens=others[0], history=(others[1], x))
    plain = Residual()(x, y, context)
    assert (plain == x + y).all()
    for source in (None, -1, 1):
        assert (GeneralizedResidual(source, dtype=torch.float64)(x, y, context) == plain).all()


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


def test_first_layer_is_the_base():
    context = Context(first_values=V)
    assert (Neutreno(Softmax())(X, Y, V, context=context) == Softmax()(X, Y, V)).all()


def test_asks_for_what_its_base_needs_too():
    assert set(Neutreno(Tupe(8, 2)).needs) == {"positions", "first_values"}
    assert Neutreno(Neutreno(Softmax())).needs == ("first_values",)


def test_lam_is_a_parameter():
    """The published code has 0.6 written into it (PEERS)."""
    outputs = [Neutreno(Softmax(), lam)(X, Y, V, context=CONTEXT) for lam in (0.6, 0.4)]
    assert_close(outputs[0] - outputs[1], 0.2 * (F - V), atol=1e-12, rtol=0)
    assert_close(Neutreno(Softmax())(X, Y, V, context=CONTEXT), outputs[0])
    layer = Neutreno(Softmax(), 0.4, num_heads=2, learnable=True, dtype=torch.float64)
    with torch.no_grad():
        layer.lam.log[1] = 0.0
    found = layer(X, Y, V, context=CONTEXT) - Softmax()(X, Y, V)
    assert_close(found[:, 0], 0.4 * (F - V)[:, 0], atol=1e-12, rtol=0)
    assert_close(found[:, 1], (F - V)[:, 1], atol=1e-12, rtol=0)
    layer(X, Y, V, context=CONTEXT).square().sum().backward()
    assert (layer.lam.log.grad != 0).all()
