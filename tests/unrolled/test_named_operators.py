import pytest
import torch

from twinsolve.unrolled import (
    Attention,
    Context,
    Softmax,
    make_operator,
    operator_names,
    register_operator,
)


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
    with pytest.raises(ValueError, match=r"operator: must be one of .*softmax.*, got 'soft'"):
        make_operator("soft", num_heads=1, head_dim=4)
    with pytest.raises(ValueError, match="name: an operator 'softmax' is registered already"):
        register_operator("softmax", lambda num_heads, head_dim: Softmax())
