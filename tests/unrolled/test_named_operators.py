import pytest
import torch

from twinsolve.unrolled import (
    Bilateral,
    Softmax,
    make_operator,
    register_operator,
    replace_attention,
)
from twinsolve.unrolled.models import Block


def test_unknown_and_taken_names_are_refused():
    with pytest.raises(
        ValueError, match=r"operator: must be one of .*softmax.*, got 'soft'; close is softmax"
    ):
        make_operator("soft", num_heads=1, head_dim=4)
    with pytest.raises(ValueError, match="name: an operator 'softmax' is registered already"):
        register_operator("softmax", lambda num_heads, head_dim: Softmax())


@pytest.mark.parametrize("kind", [Softmax, Bilateral])
def test_a_class_is_no_operator(kind):
    """Its arguments are others than a factory's: Bilateral(3, 4) has two bandwidths."""
    message = rf"operator: must be .* an Operator such as .*; got the class {kind.__name__}"
    with pytest.raises(ValueError, match=message):
        Block(12, 3, operator=kind)
    with pytest.raises(ValueError, match=message + " .for the model"):
        replace_attention(torch.nn.MultiheadAttention(12, 3), kind)
