"""Backbones in NumPy, one image or sequence at a time: patches, windows and convolutions by loops.

Weights come from the model, settings from the arguments.
"""

from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from scipy.special import logsumexp
from torch import nn

from ..heads import Array, HeadCall, as_array
from ..pairs import solve_head
from ..registry import exact_twin
from .block_pass import Settings, gelu, layer_norm, run_block, run_blocks
from .shell_pass import Shared, affine, linear, split_heads


def patch_rows(image: Array, size: int) -> tuple[Array, tuple[int, int]]:
    """Patches of an image (channels, height, width), row by row, and their grid."""
    _, height, width = image.shape
    rows = [
        image[:, top : top + size, left : left + size].ravel()
        for top in range(0, height, size)
        for left in range(0, width, size)
    ]
    return np.stack(rows), (height // size, width // size)


def sinusoids(n_tokens: int, dim: int) -> Array:
    """Sines at even places, cosines at odd ones, two of each rate."""
    i, t = np.indices((n_tokens, dim))
    angles = i / 10000 ** (2 * (t // 2) / dim)
    return np.where(t % 2 == 0, np.sin(angles), np.cos(angles))


def vision_transformer(
    model: Any,
    image: Array,
    settings: Settings,
    *,
    patch_size: int,
    pool: str = "class",
    positions: str = "learned",
    positions_in: tuple[bool, ...] | None = None,
    padding: Array | None = None,
) -> Array:
    """Class scores; blocks of `positions_in` add positions themselves, None adds to the tokens.

    `padding` is true for hidden patches.
    """
    patches, grid = patch_rows(image, patch_size)
    if padding is not None:
        patches = np.where(padding[:, None], 0, patches)
    x = linear(model.patch_embedding.projection, patches)
    n_class_tokens = int(pool == "class")
    if n_class_tokens:
        x = np.vstack([as_array(model.class_token)[0], x])
    hidden = None if padding is None else np.r_[np.zeros(n_class_tokens, dtype=bool), padding]
    p = sinusoids(*x.shape) if positions == "sinusoidal" else as_array(model.positions.weight)
    x = run_blocks(
        model.blocks, x if positions_in else x + p,
        settings, Shared(p, grid, n_class_tokens),
        add_positions=positions_in or (), padding=hidden,
    )  # fmt: skip
    x = layer_norm(model.norm, x, settings.norm_eps)
    if n_class_tokens:
        return linear(model.head, x[0])
    return linear(model.head, x.mean(axis=0) if padding is None else x[~padding].mean(axis=0))


def class_attention_transformer(
    model: Any,
    image: Array,
    settings: Settings,
    *,
    patch_size: int,
    positions_in: tuple[bool, ...] | None = None,
) -> Array:
    """Class scores: the class token asks the patches, which the last blocks leave as they are.

    Blocks of `positions_in` add positions themselves, and class blocks then do; the class token,
    which comes last, has none.
    """
    patches, grid = patch_rows(image, patch_size)
    positions = as_array(model.positions.weight)
    x = linear(model.patch_embedding.projection, patches)
    x = run_blocks(
        model.blocks, x if positions_in else x + positions, settings, Shared(positions, grid),
        add_positions=positions_in or (),
    )  # fmt: skip
    token = as_array(model.class_token)[0]
    of_all = np.vstack([positions, np.zeros_like(token)])
    token = run_blocks(
        model.class_blocks, token, settings, Shared(of_all),
        add_positions=(positions_in is not None,) * len(model.class_blocks), memory=x,
    )  # fmt: skip
    return linear(model.head, layer_norm(model.norm, token, settings.norm_eps)[0])


def self_expression_transformer(
    model: Any, image: Array, *, patch_size: int, num_heads: int, norm_eps: float
) -> Array:
    """Class scores; each head has one self-expression problem, its iterates from the solver."""
    patches, _ = patch_rows(image, patch_size)
    x = linear(model.patch_embedding.projection, patches) + as_array(model.positions.weight)
    x = layer_norm(model.token_norm, x, norm_eps)
    features, values = (
        split_heads(affine(x, part.projection.weight), num_heads)
        for part in (model.features, model.values)
    )
    twin = exact_twin(model.codes, same_points=True)
    coded = [
        solve_head(twin, model.codes, HeadCall(points, points, own))
        for points, own in zip(features, values, strict=True)
    ]
    x = layer_norm(model.norm, x + linear(model.out_proj, np.hstack(coded)), norm_eps)
    return linear(model.head, x.mean(axis=0))


def language_loss(scores: Array, ids: Array, padding: Array) -> Array:
    """Mean over the tokens that are shown, but for the first, of what each costs after the last."""
    costs = [
        logsumexp(scores[t - 1]) - scores[t - 1, ids[t]]
        for t in range(1, len(ids))
        if not padding[t]
    ]
    return np.mean(costs, keepdims=True)


def language_model(
    model: Any, ids: Array, settings: Settings, *, padding: Array | None = None
) -> Array:
    """Scores of the next token at each place, with tied weights."""
    weight, positions = as_array(model.embedding.weight), as_array(model.positions.weight)
    positions = positions[: len(ids)]
    x = weight[ids] * np.sqrt(weight.shape[1]) + positions
    x = run_blocks(model.blocks, x, settings, Shared(positions), is_causal=True, padding=padding)
    return layer_norm(model.norm, x, settings.norm_eps) @ weight.T


def windowed_transformer(
    model: Any,
    image: Array,
    settings: Settings,
    *,
    patch_size: int,
    window_size: int,
    num_heads: tuple[int, ...],
    positions_in: tuple[bool, ...] | None = None,
) -> Array:
    """Class scores; every other block has windows that are shifted by half of one.

    Blocks of `positions_in` add positions themselves, None adds them to the tokens of each stage.
    """
    patches, grid = patch_rows(image, patch_size)
    x = linear(model.patch_embedding.projection, patches).reshape(*grid, -1)
    adds = iter(positions_in or repeat(False))
    for index, stage in enumerate(model.stages):
        if index:
            x = _merge(model.merges[index - 1], x, settings.norm_eps)
        positions = as_array(stage.positions.weight).reshape(x.shape)
        x = _run_stage(
            zip(stage.blocks, adds, strict=False), x if positions_in else x + positions, positions,
            replace(settings, num_heads=num_heads[index]), window_size,
        )  # fmt: skip
    x = layer_norm(model.norm, x, settings.norm_eps)
    return linear(model.head, x.reshape(-1, x.shape[-1]).mean(axis=0))


def _merge(merge: Any, x: Array, eps: float) -> Array:
    """Four neighbours side by side, normalised and projected."""
    four = [x[0::2, 0::2], x[0::2, 1::2], x[1::2, 0::2], x[1::2, 1::2]]
    return linear(merge.reduction, layer_norm(merge.norm, np.concatenate(four, axis=-1), eps))


def _run_stage(
    blocks: Any,
    x: Array,
    positions: Array,
    settings: Settings,
    window_size: int,
) -> Array:
    """Blocks, with whether they add positions, in windows of a grid (height, width, dim).

    The values that layers share follow their tokens.
    """
    first, previous, history = None, None, []
    for index, (block, adds) in enumerate(blocks):
        history.append(x)
        out, values = np.empty_like(x), np.empty_like(x)
        for places, pairs in _windows(x.shape[:2], window_size, shifted=index % 2 == 1):
            rows, columns = places
            shared = Shared(
                positions=positions[rows, columns],
                grid=(window_size, window_size),
                first_values=None if first is None else _heads(first[rows, columns], settings),
                previous_values=(
                    None if previous is None else _heads(previous[rows, columns], settings)
                ),
                first_tokens=history[0][rows, columns],
                history=tuple(tokens[rows, columns] for tokens in history),
            )
            y, shared = run_block(
                block, x[rows, columns], shared, settings, pairs=pairs, add_positions=adds
            )
            assert shared.previous_values is not None
            out[rows, columns] = y
            values[rows, columns] = np.hstack(list(shared.previous_values))
        first, previous, x = values if first is None else first, values, out
    return x


def _heads(values: Array, settings: Settings) -> Array:
    return np.stack(np.split(values, settings.num_heads, axis=1))


def _windows(grid: tuple[int, ...], size: int, *, shifted: bool) -> Any:
    """Rows and columns of the tokens of each window, and pairs that are no neighbours in it.

    A shifted window that reaches over the edge holds tokens of the other edge too.
    """
    shift = [size // 2 if shifted and size < n else 0 for n in grid]
    for top in range(0, grid[0], size):
        for left in range(0, grid[1], size):
            rows, columns = (
                part.ravel()
                for part in np.mgrid[top : top + size, left : left + size]
                + np.array(shift)[:, None, None]
            )
            part = 2 * (rows >= grid[0]) + (columns >= grid[1])
            pairs = part[:, None] != part
            yield (rows % grid[0], columns % grid[1]), pairs if any(shift) else None


def conv_mixer(model: Any, image: Array, *, kernel_size: int, patch_size: int, skip: bool) -> Array:
    """Class scores of a ConvMixer in evaluation mode."""
    patches, grid = patch_rows(image, patch_size)
    embedding = model.patch_embedding
    x = patches @ as_array(embedding.weight).reshape(len(embedding.weight), -1).T
    x = (x + as_array(embedding.bias)).T.reshape(-1, *grid)
    x = _batch_norm(model.norm, gelu(x))
    for layer in model.layers:
        y = _batch_norm(layer.spatial_norm, gelu(_depthwise(layer.spatial, x, kernel_size)))
        x = x + y if skip else y
        y = np.einsum("oc,chw->ohw", as_array(layer.pointwise.weight)[:, :, 0, 0], x)
        y = y + as_array(layer.pointwise.bias)[:, None, None]
        x = _batch_norm(layer.pointwise_norm, gelu(y))
    return linear(model.head, x.mean(axis=(1, 2)))


def _depthwise(layer: nn.Conv2d, x: Array, size: int) -> Array:
    """Each channel with its own kernel; zeros around the image, one more after it if need be."""
    before = (size - 1) // 2
    padded = np.pad(x, [(0, 0), (before, size - 1 - before), (before, size - 1 - before)])
    out = np.zeros_like(x)
    for i in range(size):
        for j in range(size):
            window = padded[:, i : i + x.shape[1], j : j + x.shape[2]]
            out += as_array(layer.weight)[:, 0, i, j, None, None] * window
    assert layer.bias is not None
    return out + as_array(layer.bias)[:, None, None]


def _batch_norm(norm: Any, x: Array) -> Array:
    """With the statistics of the training, which evaluation takes."""
    mean, variance, weight, bias = (
        as_array(part)[:, None, None]
        for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias
