"""Autocast lowers nothing that is computed in float32; operators by name are in test_operators."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from twinsolve.twins.laws.subject import map_tensors
from twinsolve.unrolled import (
    LISTA,
    Attention,
    Bilateral,
    Context,
    DeepSelfExpression,
    FeatScale,
    Softmax,
    SpatialGaussian,
    UnrolledADMM,
    UnrolledSelfExpression,
)
from twinsolve.unrolled.attention import Positive
from twinsolve.unrolled.kernel_smoothing import (
    FeatureKernel,
    elliptical_weights,
    gaussian_attention,
)

from .draws import moved
from .operator_calls import context_of
from .operator_cases import OPERATORS, make, subject_of

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
HIDDEN = torch.arange(40) > 30
COMPUTED_IN_FLOAT32 = {
    "gaussian attention": lambda: gaussian_attention(X, X, X, bandwidth=0.5),
    "elliptical weights": lambda: elliptical_weights(X, 2 * X.sin(), visible=HIDDEN[None]),
    "feature scale": lambda: moved(FeatScale(6))(X, HIDDEN),
    "lista": lambda: LISTA(X[:8], 5, lam=0.1)(X),
    "unrolled self-expression": lambda: UnrolledSelfExpression(5, 0.1)(X),
    "unrolled admm": lambda: UnrolledADMM(5, 0.1)(X),
    "deep self-expression": lambda: DeepSelfExpression(6, n_layers=2)(X),
}


@pytest.mark.parametrize("name", COMPUTED_IN_FLOAT32)
def test_autocast_changes_nothing(name):
    compute = COMPUTED_IN_FLOAT32[name]
    expected = compute()
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(compute(), expected, atol=0, rtol=0)


@pytest.mark.parametrize("autocast", [False, True])
def test_features_too_small_for_half_precision_have_gradients(autocast):
    """exp(-60) is 0 in float16, and 1 / exp(-60) infinite."""
    q, k, v = (
        20 * torch.randn(1, 2, 64, 8, generator=torch.Generator().manual_seed(s)) for s in range(3)
    )
    inputs = [x.half().requires_grad_() for x in (q - 30, k - 30, v / 20)]
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        out = FeatureKernel()(*inputs)
    out.float().sum().backward()
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = FeatureKernel()(*exact)
    expected.sum().backward()
    eps = torch.finfo(torch.float16).eps
    assert (out - expected).abs().max() <= eps * expected.abs().max()
    for x, y in zip(inputs, exact, strict=True):
        assert (x.grad - y.grad).abs().max() <= eps * y.grad.abs().max()


def test_a_feature_map_with_parameters_is_given_their_dtype():
    features = nn.Sequential(nn.Linear(8, 4), nn.Softplus())
    q, k, v = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = FeatureKernel(features)(q, k, v)
    expected = FeatureKernel(features)(q.float(), k.float(), v.float())
    assert_close(found, expected.bfloat16(), atol=0, rtol=0)
    narrow = FeatureKernel(features.bfloat16())(q, k, v)
    assert_close(narrow, found, atol=0.05, rtol=0.05)


def test_queries_normalised_in_float32_meet_values_that_are_not():
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found = Softmax()(q, k, v.bfloat16())
    assert_close(found, Softmax()(q.bfloat16(), k.bfloat16(), v.bfloat16()), atol=0, rtol=0)
    layer = Attention(16, 2, operator=SpatialGaussian(2.0))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(q[0, 0].new_ones(1, 9, 16), *[q.new_ones(1, 9, 16)] * 2)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coefficients_have_the_dtype_of_the_values_they_multiply(dtype):
    """Operators of users multiply them without a cast."""

    class Own(Softmax):
        def attend(self, call):
            return self.coefficients(call) @ call.v

    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert Own()(x, x, x).dtype == dtype


SMOOTHERS = [name for name in OPERATORS if make(name).row_stochastic and make(name).nonnegative]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SMOOTHERS)
def test_smoothing_matrices_of_halves_are_rounded_at_their_end_alone(name, dtype):
    """Logits of 16 bits would be off by 2 to 4 of the errors allowed here."""
    q, k, v = (x.to(dtype) for x in subject_of(name).inputs)
    q, k = 2 * q, 2 * k
    context, width = context_of(q, k, v), q.shape[-1]
    exact, operator = make(name, width), make(name, width).to(dtype)
    exact.load_state_dict(operator.state_dict())
    widened = map_tensors(context, lambda _, x: x.double())
    expected = exact.matrix(q.double(), k.double(), context=widened)
    found = operator.matrix(q, k, context=context)
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bandwidths", [(math.inf, 0.63), (math.inf, 1.43), (2.7, 0.63)])
@pytest.mark.parametrize("learnable", [False, True])
def test_bandwidths_of_dot_products_round_no_queries(bandwidths, learnable, dtype):
    """Quotients of 16 bits would be off by 3 eps."""
    operator = Bilateral(*bandwidths, learnable=learnable).to(dtype)
    exact = copy.deepcopy(operator).double()
    q, k, v, p = (
        torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(s)).to(dtype)
        for s in range(4)
    )
    found = operator(3 * q, k, v, context=Context(projected_positions=(p, p)))
    wide = Context(projected_positions=(p.double(), p.double()))
    expected = exact((3 * q).double(), k.double(), v.double(), context=wide)
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_learned_number_has_no_fewer_digits_than_float32(dtype):
    number = Positive(0.63, num_heads=3, learnable=True, dtype=dtype)
    found = number()
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert_close(found.double(), number.log.double().exp(), rtol=3e-7, atol=0)
