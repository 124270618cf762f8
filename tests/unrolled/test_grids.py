"""Operators on a grid: their own, or that of the model, with class tokens in front."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    ClassAttentionTransformer,
    Context,
    CrissCross,
    Local,
    Softmax,
    SpatialGaussian,
    VisionTransformer,
    make_operator,
    replace_attention,
)

from .recording import record_calls

GENERATOR = torch.Generator().manual_seed(0)
ON_GRIDS = {
    "local": lambda **grid: Local(1, **grid),
    "criss_cross": CrissCross,
    "spatial_gaussian": lambda **grid: SpatialGaussian(1.3, **grid).double(),
}
by_name = pytest.mark.parametrize("name", ON_GRIDS)


def qkv(n):
    return torch.randn(3, 2, 2, n, 4, dtype=torch.float64, generator=GENERATOR).unbind()


def literal(name, q, k, rows, columns, n_class):
    """The matrix by rows and columns of all pairs; class tokens are near to all."""
    place = torch.arange(rows * columns + n_class) - n_class
    row, column = place.div(columns, rounding_mode="floor"), place % columns
    dr, dc = ((x[:, None] - x).abs() for x in (row, column))
    of_class = (place < 0)[:, None] | (place < 0)
    if name == "spatial_gaussian":
        logits = -(dr**2 + dc**2).double() / (2 * 1.3**2)
        return logits.masked_fill(of_class, 0).softmax(dim=-1).expand(*q.shape[:-2], -1, -1)
    near = torch.maximum(dr, dc) <= 1 if name == "local" else torch.minimum(dr, dc) == 0
    return (q @ k.mT / 2).masked_fill(~(near | of_class), -torch.inf).softmax(dim=-1)


@by_name
@pytest.mark.parametrize("n_class", [0, 2])
def test_the_models_grid_is_the_literal_one(name, n_class):
    q, k, v = qkv(15 + n_class)
    expected = literal(name, q, k, 3, 5, n_class)
    context = Context(grid=(3, 5), n_class_tokens=n_class)
    own = ON_GRIDS[name](width=5, n_class_tokens=n_class)
    for operator, given in ((ON_GRIDS[name](), context), (own, None), (own, context)):
        assert_close(operator.matrix(q, k, context=given), expected, atol=1e-13, rtol=0)
        assert_close(operator(q, k, v, context=given), expected @ v, atol=1e-13, rtol=0)


@by_name
def test_class_tokens_across_blocks_of_queries_and_with_masks(name):
    """577 tokens are more than two blocks of queries."""
    n = 577
    q, k, v = (x[:1] for x in qkv(n))
    operator, context = ON_GRIDS[name](), Context(grid=(24, 24), n_class_tokens=1)
    padding = torch.rand(1, 1, 1, n, generator=GENERATOR) > 0.3
    for arguments in ({}, {"is_causal": True}, {"mask": padding}):
        A = operator.matrix(q, k, context=context, **arguments)
        assert_close(operator(q, k, v, context=context, **arguments), A @ v, atol=1e-12, rtol=0)
    assert_close(A.sum(dim=-1), torch.ones_like(A[..., 0]))


@by_name
def test_another_grid_than_the_models_is_an_error(name):
    q, k, v = qkv(16)
    context = Context(grid=(3, 5), n_class_tokens=1)
    with pytest.raises(ValueError, match=r"width: must be None or the model's .* 5, got 4"):
        ON_GRIDS[name](width=4)(q, k, v, context=context)
    with pytest.raises(ValueError, match=r"n_class_tokens: must be the model's, 1, got 2"):
        ON_GRIDS[name](n_class_tokens=2)(q, k, v, context=context)
    with pytest.raises(ValueError, match=r"context\.grid: must fit the 16 tokens, got 4 x 4 and 1"):
        ON_GRIDS[name]().matrix(q, k, context=Context(grid=(4, 4), n_class_tokens=1))
    with pytest.raises(ValueError, match="n_class_tokens: must be a whole number >= 0"):
        ON_GRIDS[name](n_class_tokens=-1)


def test_without_a_grid_tokens_are_a_sequence():
    q, k, v = qkv(9)
    assert_close(make_operator("criss_cross", num_heads=2, head_dim=4)(q, k, v), Softmax()(q, k, v))
    for made in (Local(2), SpatialGaussian(2.0)):
        wide = type(made)(2, width=1)
        assert_close(made(q, k, v), wide(q, k, v))


def test_class_attention_tells_operators_its_grid():
    """Other models are in models/test_places.py."""
    model = ClassAttentionTransformer((6, 8), 2, 1, 3, 12, 1, 3, operator="local")
    seen = record_calls(model.blocks[0].attention.operator)
    model(torch.randn(2, 1, 6, 8))
    context = seen[0][1]["context"]
    assert context.grid == (3, 4)
    assert context.n_class_tokens == 0


@by_name
def test_a_replaced_operator_has_the_models_grid(name):
    torch.manual_seed(0)
    model = VisionTransformer((6, 8), 2, 1, 3, 12, 1, 3)
    replaced = replace_attention(model, name)
    built = VisionTransformer((6, 8), 2, 1, 3, 12, 1, 3, operator=name)
    built.load_state_dict(replaced.state_dict())
    images = torch.randn(2, 1, 6, 8, generator=GENERATOR)
    assert_close(replaced(images), built(images))
