import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    Context,
    Gaussian,
    GeneralizedResidual,
    Residual,
    Softmax,
    SparseCoding,
    Twicing,
)

X = torch.randn(2, 2, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


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
