"""Weights of a block of queries, for operators that build their matrix block by block."""

import torch
from torch import Tensor

from ..attention import hidden_by, masked_softmax


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with the mask applied: -inf, without a gradient, where it hides."""
    if mask is None:
        return logits
    if mask.dtype != torch.bool:
        logits = logits + mask
    return logits.masked_fill(hidden_by(mask), -torch.inf)


def visible_products(q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    """``q k^T``, zero where a key is not visible."""
    products = q @ k.mT
    return products if visible is None else torch.where(visible, products, 0)


def block_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys; zeros, with zero gradients, where there are none."""
    return masked_softmax(masked_logits(logits, mask), None)
