"""The transformer block in NumPy: weights come from the layer, settings from the arguments."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import erf

from ....solvers.spectral_filtering import scale_frequencies
from ..heads import Array, as_array
from .shell_pass import Shared, attend, linear, visible_keys


@dataclass(frozen=True)
class Settings:
    """What a block is told beside its weights; `scale` is "layer", "feat" or None.

    `residual` is None, "boosting" or the index of a block.
    """

    num_heads: int
    attention_skip: bool = True
    feed_forward_skip: bool = True
    feed_forward: bool = True
    scale: str | None = None
    residual: str | int | None = None
    norm_eps: float = 1e-6


def layer_norm(norm: Any, x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return centred / spread * as_array(norm.weight) + as_array(norm.bias)


def gelu(x: Array) -> Array:
    """The exact one: x times the normal distribution function."""
    return x * (1 + erf(x / np.sqrt(2))) / 2


def run_block(
    block: Any,
    x: Array,
    shared: Shared,
    settings: Settings,
    *,
    memory: Array | None = None,
    add_positions: bool = False,
    is_causal: bool = False,
    padding: Array | None = None,
    pairs: Array | None = None,
) -> tuple[Array, Shared]:
    """Tokens (n, dim) after a block, and what the next one shares."""
    if shared.first_tokens is None:
        shared = replace(shared, first_tokens=x)
    tokens = x if memory is None else np.vstack([memory, x])
    normed = layer_norm(block.attention_norm, tokens, settings.norm_eps)
    keys = normed
    if add_positions and shared.positions is not None:
        keys = layer_norm(block.attention_norm, tokens + shared.positions, settings.norm_eps)
    seen = visible_keys(len(x), len(tokens), is_causal=is_causal, padding=padding, pairs=pairs)
    queries = keys[len(tokens) - len(x) :]
    y, _, shared = attend(
        block.attention, queries, keys, normed,
        num_heads=settings.num_heads, shared=shared, visible=seen,
    )  # fmt: skip
    own = None if seen is None else seen[..., len(tokens) - len(x) :]
    y = _scaled(block.attention_scale, y, settings.scale, own)
    x = _connect(block.attention_residual, x, y, shared, settings, settings.attention_skip)
    if settings.feed_forward:
        y = layer_norm(block.feed_forward_norm, x, settings.norm_eps)
        y = linear(block.feed_forward.fc2, gelu(linear(block.feed_forward.fc1, y)))
        if settings.scale == "layer":
            y = _scaled(block.feed_forward_scale, y, "layer")
        skip = settings.feed_forward_skip
        x = _connect(block.feed_forward_residual, x, y, shared, settings, skip)
    return x, shared


def run_blocks(
    blocks: Any,
    x: Array,
    settings: Settings,
    shared: Shared = Shared(),  # noqa: B008 (it never changes)
    *,
    add_positions: tuple[bool, ...] = (),
    **arguments: Any,
) -> Array:
    """Tokens after all blocks; `add_positions` has an entry a block, or none."""
    for index, block in enumerate(blocks):
        shared = replace(shared, history=(*shared.history, x))
        adds = bool(add_positions) and add_positions[index]
        x, shared = run_block(block, x, shared, settings, add_positions=adds, **arguments)
    return x


def _scaled(scale: Any, y: Array, kind: str | None, seen: Array | None = None) -> Array:
    """With `seen`, each token's mean is that of the tokens that it sees in all heads."""
    if kind == "layer":
        return y * as_array(scale.gamma)
    if kind != "feat":
        return y
    s, t = as_array(scale.s), as_array(scale.t)
    if seen is None:
        return scale_frequencies(y, s, t)
    by_all = np.asarray(seen if seen.ndim == 2 else seen.all(axis=0))
    mean = by_all @ y / np.maximum(by_all.sum(axis=1, keepdims=True), 1)
    return np.asarray((1 + s) * mean + (1 + t) * (y - mean))


def _connect(
    residual: Any, x: Array, y: Array, shared: Shared, settings: Settings, skip: bool
) -> Array:
    if not skip:
        return y
    if settings.residual is None:
        return x + y
    t = float(residual.t.detach())
    if settings.residual == "boosting":
        assert shared.first_tokens is not None
        return y + t * shared.first_tokens + (1 - t) * x
    return y + t * shared.history[int(settings.residual)]
