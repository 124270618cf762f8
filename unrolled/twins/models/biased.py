"""Twin: a constant bias on the logits, which fixes the number of tokens."""

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from ...kernel_smoothing import Biased, Softmax
from ..heads import as_array
from ..registry import Array
from .shell_pass import split_heads, visible_keys
from .small_models import DIM, HEADS, add, hidden_tokens, joined, over_batch, sequences


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

    def matrix(*, padding: Array | None = None, is_causal: bool = False) -> Array:
        visible = visible_keys(len(x), len(x), padding=padding, is_causal=is_causal)
        seen = logits if visible is None else np.where(visible, logits, -np.inf)
        return softmax(seen, axis=-1)

    padding = hidden.astype(bool)
    both = matrix(padding=padding, is_causal=True)
    masked = matrix(), matrix(is_causal=True), matrix(padding=padding)
    return *(A @ v for A in masked), both @ v, both


add(
    "biased-attention",
    Biased,
    source="Raffel et al. (2020)",
    equation="FF-7",
    build=_build,
    apply=_apply,
    solve=over_batch(_solve, _inputs),
)
