import pytest
import torch
from torch.testing import assert_close

from twinsolve.solvers.boosting import (
    generalized_residual,
)
from twinsolve.unrolled import Context, GeneralizedResidual, Residual, Softmax


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (6, 4), generator=generator, dtype=torch.float64)


def residual(source=None, t=0.3):
    layer = GeneralizedResidual(source, dtype=torch.float64)
    torch.nn.init.constant_(layer.t, t)
    return layer


def stack(layers, branch, X):
    """The layers one after the other, as a model runs them."""
    context = Context(first_tokens=X)
    for layer in layers:
        context = context._replace(history=(*context.history, X))
        X = layer(X, branch(X), context)
    return X.detach()


def attend(X):
    return Softmax()(X, X, X)


def test_both_forms_start_as_the_plain_residual_exactly():
    """IF-26 at t = 0, and Definition IV.1 at i_l = l and t_l = 1."""
    x, y = tokens(), tokens(seed=1)
    context = Context(first_tokens=tokens(seed=2), history=(tokens(seed=3), x))
    plain = Residual()(x, y, context)
    assert (plain == x + y).all()
    assert (GeneralizedResidual(dtype=torch.float64)(x, y, context) == plain).all()
    assert (GeneralizedResidual(-1, dtype=torch.float64)(x, y, context) == plain).all()
    assert (GeneralizedResidual(1, dtype=torch.float64)(x, y, context) == plain).all()


@pytest.mark.parametrize("sources", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 2, 1], [0, 1, 0, 3]])
def test_any_sequence_of_sources_is_the_solvers(sources):
    X = tokens()
    weights = [0.4, 1.0, 0.7, 0.2]
    expected = generalized_residual(
        lambda Y: attend(torch.from_numpy(Y)).numpy(), X, sources=sources, weights=weights
    )
    layers = [residual(i, t) for i, t in zip(sources, weights, strict=True)]
    assert_close(stack(layers, attend, X).numpy(), expected, atol=1e-12, rtol=0)


# Stability of the softmax


# Modules


@pytest.mark.parametrize("source", [None, 0, -2])
def test_residuals_are_modules_like_any_other(source):
    x, y, first = (tokens(seed=s).requires_grad_() for s in range(3))
    layer = residual(source)

    def run(x, y, first, t):
        context = Context(first_tokens=first, history=(first, x))
        return torch.func.functional_call(layer, {"t": t}, (x, y, context))

    t = layer.t.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(run, (x, y, first, t))
    other = GeneralizedResidual(source, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert other.t == 0.3
    other.reset_parameters()
    assert other.t == (0 if source is None else 1)
    empty = GeneralizedResidual(source, device="meta").to_empty(device="cpu")
    empty.reset_parameters()
    assert empty.t == other.t
    assert "t=0.3" in repr(layer)
    assert layer.needs_history == (source is not None)
    assert not Residual().needs_history
    half = [z.detach().bfloat16() for z in (x, y, first)]
    context = Context(first_tokens=half[2], history=(half[2], half[0]))
    assert layer(half[0], half[1], context).dtype == torch.bfloat16


def test_missing_or_unfit_context_is_named():
    x = tokens()
    for context in (None, Context()):
        with pytest.raises(ValueError, match="context: GeneralizedResidual needs first_tokens"):
            residual()(x, x, context)
        with pytest.raises(ValueError, match=r"GeneralizedResidual\(source=0\) reads history"):
            residual(0)(x, x, context)
    for source in (2, -3):
        with pytest.raises(ValueError, match="reads history, which has 2 blocks"):
            residual(source)(x, x, Context(history=(x, x)))
    with pytest.raises(ValueError, match=r"context: the earlier tokens have shape \(5, 4\)"):
        residual()(x, x, Context(first_tokens=x[:5]))
    for source in (True, 1.0, "first"):
        with pytest.raises(ValueError, match="source: must be a whole number or None"):
            GeneralizedResidual(source)
