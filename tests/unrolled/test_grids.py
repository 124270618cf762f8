"""Operators on a grid: their own, or that of the model, with class tokens in front."""

import pytest
import torch
from torch.testing import assert_close

from twinsolve.unrolled import (
    Attention,
    ClassAttentionTransformer,
    Context,
    CrissCross,
    Local,
    Softmax,
    SpatialGaussian,
    VisionTransformer,
    WindowedTransformer,
    make_operator,
    replace_attention,
)

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
    """The matrix of one loop over pairs."""
    n = rows * columns + n_class
    logits = torch.full((*q.shape[:-2], n, n), -torch.inf, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            of_class = min(i, j) < n_class
            dr = abs((i - n_class) // columns - (j - n_class) // columns)
            dc = abs((i - n_class) % columns - (j - n_class) % columns)
            if name == "spatial_gaussian":
                logits[..., i, j] = 0 if of_class else -(dr**2 + dc**2) / (2 * 1.3**2)
            elif of_class or (max(dr, dc) <= 1 if name == "local" else min(dr, dc) == 0):
                logits[..., i, j] = (q[..., i, :] * k[..., j, :]).sum(dim=-1) / 2
    return logits.softmax(dim=-1)


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


MODELS = {
    "vision": (lambda o: VisionTransformer((6, 8), 2, 1, 3, 12, 1, 3, operator=o), (3, 4), 1),
    "class attention": (
        lambda o: ClassAttentionTransformer((6, 8), 2, 1, 3, 12, 1, 3, operator=o),
        (3, 4),
        0,
    ),
    "windows": (
        lambda o: WindowedTransformer((4, 8), 1, 1, 3, 12, (2,), (3,), operator=o, window_size=2),
        (2, 2),
        0,
    ),
}


@by_name
@pytest.mark.parametrize("backbone", MODELS)
def test_models_tell_operators_their_grid(backbone, name):
    """In every layer, shifted windows too, the matrix by name is that of the true grid."""
    make, grid, n_class = MODELS[backbone]
    model = make(name).double()
    size = (4, 8) if backbone == "windows" else (6, 8)
    seen = []
    layers = [m for m in model.modules() if isinstance(m, Attention)][: 2 if grid[0] % 3 else 1]
    for layer in layers:
        layer.operator.register_forward_hook(
            lambda m, args, kwargs, out: seen.append((m, args, kwargs)), with_kwargs=True
        )
    model(torch.randn(2, 1, *size, dtype=torch.float64, generator=GENERATOR))
    own = {
        "local": lambda: Local(7, width=grid[1], n_class_tokens=n_class),
        "criss_cross": lambda: CrissCross(grid[1], n_class_tokens=n_class),
        "spatial_gaussian": lambda: SpatialGaussian(
            2.0, width=grid[1], n_class_tokens=n_class, num_heads=3, learnable=True
        ).double(),
    }[name]()
    assert len(seen) == len(layers)
    for operator, (q, k, _), given in seen:
        found = operator.matrix(q, k, **given)
        assert_close(found, own.matrix(q, k, mask=given["mask"]), atol=1e-13, rtol=0)
    wrong = {"local": Local(1, width=7), "criss_cross": CrissCross(7)}.get(name)
    if wrong is not None:
        with pytest.raises(ValueError, match="width: must be None or the model's"):
            make(wrong)(torch.randn(2, 1, *size, generator=GENERATOR))


@by_name
def test_a_replaced_operator_has_the_models_grid(name):
    torch.manual_seed(0)
    model = VisionTransformer((6, 8), 2, 1, 3, 12, 1, 3)
    replaced = replace_attention(model, name)
    built = VisionTransformer((6, 8), 2, 1, 3, 12, 1, 3, operator=name)
    built.load_state_dict(replaced.state_dict())
    images = torch.randn(2, 1, 6, 8, generator=GENERATOR)
    assert_close(replaced(images), built(images))
