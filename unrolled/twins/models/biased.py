"""Twins: a constant bias on the logits, and positions stored as one, for a number of tokens."""

import copy
import math

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax
from torch import Tensor

from ...attention import Context
from ...kernel_smoothing import Biased, Bilateral, Softmax
from ..families.kernel_smoothing.regression import local_bandwidth
from ..heads import Array, as_array, head_value
from .shell_pass import split_heads, visible_keys
from .small_models import DIM, HEADS, add, drawn, hidden_tokens, joined, over_batch, sequences


def _build(images: Array) -> Biased:
    """Another bias in each head, of both signs."""
    n = sequences(torch.from_numpy(images)).shape[1]
    bias = np.random.default_rng(0).standard_normal((HEADS, n, n))
    return Biased(Softmax(), torch.from_numpy(bias))


def _inputs(images: Tensor) -> tuple[Tensor, Tensor]:
    x = sequences(images)
    return x, hidden_tokens(images, x.shape[1])


def _apply(layer: Biased, images: Tensor) -> Tensor:
    x, hidden = _inputs(images)
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (x, x.flip(1), x.sin()))
    seen = ~hidden[:, None, None]
    return joined(
        layer(q, k, v),
        layer(q, k, v, is_causal=True),
        layer(q, k, v, mask=seen),
        layer(q, k, v, mask=seen, is_causal=True),
        layer.matrix(q, k, mask=seen, is_causal=True),
    )


def _solve(layer: Biased, x: Array, hidden: Array) -> tuple[Array, ...]:
    q, k, v = (split_heads(part, HEADS) for part in (x, x[::-1], np.sin(x)))
    logits = q @ k.transpose(0, 2, 1) / np.sqrt(DIM // HEADS) + as_array(layer.bias)
    return _smoothed(logits, v, hidden)


def _smoothed(logits: Array, v: Array, hidden: Array) -> tuple[Array, ...]:
    n = logits.shape[1]

    def matrix(*, padding: Array | None = None, is_causal: bool = False) -> Array:
        visible = visible_keys(n, n, padding=padding, is_causal=is_causal)
        seen = logits if visible is None else np.where(visible, logits, -np.inf)
        return softmax(seen, axis=-1)

    padding = hidden.astype(bool)
    both = matrix(padding=padding, is_causal=True)
    masked = matrix(), matrix(is_causal=True), matrix(padding=padding)
    return *(A @ v for A in masked), both @ v, both


def _build_bilateral(images: Array) -> Bilateral:
    layer = Bilateral(2.0, 1.5, distances=True, num_heads=HEADS, learnable=True)
    return drawn(layer)  # type: ignore[return-value]


def _positions(n: int) -> Array:
    """Projected positions of queries and of keys, in every head."""
    return np.random.default_rng(1).standard_normal((2, HEADS, n, DIM // HEADS))


def _apply_precomputed(layer: Bilateral, images: Tensor) -> Tensor:
    """Positions of both forms of the logits are stored."""
    p_q, p_k = torch.from_numpy(_positions(sequences(images).shape[1])).to(images.dtype)
    products = copy.deepcopy(layer)
    products.distances = False
    context = Context(projected_positions=(p_q, p_k))
    return joined(*(_apply(x.precompute(context), images) for x in (layer, products)))


def _solve_precomputed(layer: Bilateral, x: Array, hidden: Array) -> tuple[Array, ...]:
    q, k, v = (split_heads(part, HEADS) for part in (x, x[::-1], np.sin(x)))
    pairs = ((q, k, layer.token_bandwidth), (*_positions(len(x)), layer.position_bandwidth))
    products = distances = np.zeros((HEADS, len(x), len(x)))
    for a, b, bandwidth in pairs:
        width = np.array([head_value(bandwidth, head) for head in range(HEADS)])[:, None, None]
        likeness = a @ b.transpose(0, 2, 1)
        squares = ((a**2).sum(-1)[:, :, None] + (b**2).sum(-1)[:, None]) / 2 - likeness
        products, distances = products + likeness / width**2, distances - squares / width**2
    return *_smoothed(distances, v, hidden), *_smoothed(products, v, hidden)


def _grid(n: int) -> Array:
    """Places of the pixels of a square image, row by row."""
    return np.stack(np.unravel_index(np.arange(n), [math.isqrt(n)] * 2), axis=1).astype(float)


def _build_nearby(X: Array) -> Biased:
    """The bias of pixel pairs is the Gaussian of their distance, of a pixel's width."""
    return Biased(Softmax(), torch.from_numpy(-cdist(_grid(len(X)), _grid(len(X)), "sqeuclidean")))


def _solve_nearby(layer: Biased, X: Array) -> Array:
    logits = X @ X.T / np.sqrt(X.shape[1]) + as_array(layer.bias)
    return np.asarray(softmax(logits, axis=-1) @ X)


def _build_bilateral_patches(X: Array) -> Bilateral:
    return Bilateral(local_bandwidth(X, X), 2.0, distances=True, dtype=torch.float64)


def _apply_bilateral_patches(layer: Bilateral, X: Tensor) -> Tensor:
    places = torch.from_numpy(_grid(len(X))).to(X.dtype)[None]
    return layer.precompute(Context(projected_positions=(places, places)))(*[X[None]] * 3)[0]


def _solve_bilateral_patches(layer: Bilateral, X: Array) -> Array:
    assert layer.token_bandwidth is not None
    assert layer.position_bandwidth is not None
    squares = sum(
        cdist(x, x, "sqeuclidean") / head_value(bandwidth, 0) ** 2
        for x, bandwidth in ((X, layer.token_bandwidth), (_grid(len(X)), layer.position_bandwidth))
    )
    return np.asarray(softmax(-squares / 2, axis=-1) @ X)


add(
    "bilateral-precomputed",
    Bilateral,
    source="Tomasi and Manduchi (1998)",
    equation="IF-21",
    build=_build_bilateral,
    apply=_apply_precomputed,
    solve=over_batch(_solve_precomputed, _inputs),
    task={
        "inputs": "patches",
        "build": _build_bilateral_patches,
        "apply": _apply_bilateral_patches,
        "solve": _solve_bilateral_patches,
    },
)
add(
    "biased-attention",
    Biased,
    source="Raffel et al. (2020)",
    equation="FF-7",
    build=_build,
    apply=_apply,
    solve=over_batch(_solve, _inputs),
    task={
        "inputs": "patches",
        "build": _build_nearby,
        "apply": lambda layer, X: layer(*[X[None]] * 3)[0],
        "solve": _solve_nearby,
    },
)
