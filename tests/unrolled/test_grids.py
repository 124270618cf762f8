"""Operators on a grid: their own, or that of the model, with class tokens in front."""

import pytest
import torch

from twinsolve.unrolled import (
    ClassAttentionTransformer,
    Context,
    CrissCross,
    Local,
    SpatialGaussian,
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


def test_class_attention_tells_operators_its_grid():
    """Other models are in models/test_places.py."""
    model = ClassAttentionTransformer((6, 8), 2, 1, 3, 12, 1, 3, operator="local")
    seen = record_calls(model.blocks[0].attention.operator)
    model(torch.randn(2, 1, 6, 8))
    context = seen[0][1]["context"]
    assert context.grid == (3, 4)
    assert context.n_class_tokens == 0
