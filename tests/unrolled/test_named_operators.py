import inspect

import pytest
import torch

import twinsolve.unrolled
from twinsolve.unrolled import (
    Attention,
    Context,
    Operator,
    Softmax,
    make_operator,
    operator_names,
    register_operator,
    replace_attention,
)
from twinsolve.unrolled.models import Block


@pytest.mark.parametrize("name", operator_names())
def test_every_name_makes_an_operator_that_runs_in_a_shell(name):
    torch.manual_seed(0)
    layer = Attention(12, 3, operator=make_operator(name, num_heads=3, head_dim=4))
    x = torch.randn(2, 20, 12)
    context = Context(positions=torch.randn(20, 12))
    out, _, _ = layer(x, x, x, need_weights=False, context=context)
    assert out.shape == x.shape
    assert torch.isfinite(out).all()


def test_unknown_and_taken_names_are_refused():
    with pytest.raises(
        ValueError, match=r"operator: must be one of .*softmax.*, got 'soft'; close is softmax"
    ):
        make_operator("soft", num_heads=1, head_dim=4)
    with pytest.raises(ValueError, match="name: an operator 'softmax' is registered already"):
        register_operator("softmax", lambda num_heads, head_dim: Softmax())


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for _, kind in inspect.getmembers(twinsolve.unrolled, inspect.isclass)
        if issubclass(kind, Operator)
    ],
)
def test_a_class_is_no_operator(kind):
    """Its arguments are others than a factory's: Bilateral(3, 4) has two bandwidths."""
    message = rf"operator: must be .* an Operator such as .*; got the class {kind.__name__}"
    with pytest.raises(ValueError, match=message):
        Block(12, 3, operator=kind)
    with pytest.raises(ValueError, match=message + " .for the model"):
        replace_attention(torch.nn.MultiheadAttention(12, 3), kind)
