import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import Gaussian, Softmax, SparseCoding, Twicing

X = torch.randn(2, 2, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("base", [Gaussian(0.8), Twicing(Softmax())])
def test_is_two_a_minus_a_squared_of_its_base(base):
    A = base.matrix(X, X)
    assert_close(Twicing(base)(X, X, X), (2 * A - A @ A) @ X, atol=1e-12, rtol=0)


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
