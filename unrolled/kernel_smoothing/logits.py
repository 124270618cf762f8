"""What logits are made of: features, biases, distances, places on a grid, masks of a block."""

import torch
from torch import Tensor

from ..attention import (
    Context,
    check_count,
    hidden_by,
    is_transformed,
    masked_softmax,
    query_offset,
)


def of_queries(features: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The features of queries that are the last tokens, where those of all tokens are given."""
    if features.shape[-2] != k.shape[-2] or q.shape[-2] == k.shape[-2]:
        return features
    return features[..., query_offset(q, k) :, :]


def expand_features(features: Tensor, tokens: Tensor, name: str) -> Tensor:
    """Give features the leading dimensions (batch, heads) that the tokens have and they may lack.

    Raises
    ------
    ValueError
        If they do not broadcast; the message starts with `name`.
    """
    wanted, given = tokens.shape[:-1], features.shape[:-1]
    tail = wanted[len(wanted) - len(given) :]
    fits = len(given) <= len(wanted) and given[-1] == wanted[-1]
    if not fits or any(g not in (1, w) for g, w in zip(given, tail, strict=True)):
        raise ValueError(
            f"{name}: shape {tuple(features.shape)} does not broadcast to "
            f"{(*wanted, features.shape[-1])}, the heads and tokens of the queries or keys"
        )
    return features.expand(*wanted, -1).to(tokens.dtype)


def split_feature(feature: Tensor, dtype: torch.dtype) -> Tensor:
    """A feature of shape (..., 1) as several in a narrow dtype whose sum keeps 24 bits of it."""
    if torch.finfo(dtype).bits > 16:
        return feature.to(dtype)
    parts = []
    for _ in range(3):
        parts.append(feature.to(dtype))
        feature = feature - parts[-1].to(feature.dtype)
    return torch.cat(parts, dim=-1)


def add_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """An additive mask of the bias where the mask allows it, plus the mask if that is additive."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -torch.inf)
    return bias + mask


def squared_distances(q: Tensor, k: Tensor) -> Tensor:
    """``|q_i - k_j|^2`` from differences, not from norms and products.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)

    Returns
    -------
    Tensor of shape (..., n_queries, n_keys)
        PyTorch refuses its second derivatives, but not within ``torch.func``.
    """
    if is_transformed():
        # PyTorch has no forward derivative of its function, and a wrong batch of backward ones.
        return (q[..., :, None, :] - k[..., None, :, :]).square().sum(dim=-1)
    return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist").square()


def distances(q: Tensor, k: Tensor) -> Tensor:
    """``|q_i - k_j|``, with zero derivatives where it is zero; see `squared_distances`."""
    if not is_transformed():
        return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
    squares = squared_distances(q, k)
    return torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)


class Grid:
    """The grid of an operator: its own, or that of the model around it.

    Parameters
    ----------
    width : int, optional
        Number of columns. None is the model's, and without one a sequence, which is one column.
    n_class_tokens : int
        Tokens in front that stand nowhere.
    """

    def __init__(self, width: int | None, n_class_tokens: int) -> None:
        self.width = None if width is None else check_count(width, "width", 1)
        self.n_class_tokens = check_count(n_class_tokens, "n_class_tokens", 0)

    def on(self, k: Tensor, context: Context | None) -> tuple[int, int]:
        """Number of columns and of class tokens of the tokens that keys stand for.

        Raises
        ------
        ValueError
            If the model's grid is another one, or not that of the keys.
        """
        if context is None or context.grid is None:
            return self.width or 1, self.n_class_tokens
        (rows, columns), n_class = context.grid, context.n_class_tokens
        if self.width not in (None, columns):
            raise ValueError(
                f"width: must be None or the model's number of columns, {columns}, got {self.width}"
            )
        if self.n_class_tokens not in (0, n_class):
            raise ValueError(
                f"n_class_tokens: must be the model's, {n_class}, got {self.n_class_tokens}"
            )
        if k.shape[-2] != rows * columns + n_class:
            raise ValueError(
                f"context.grid: {rows} x {columns} and {n_class} class tokens are not the "
                f"{k.shape[-2]} tokens that there are"
            )
        return columns, n_class

    def __repr__(self) -> str:
        shown = [] if self.width is None else [f"width={self.width}"]
        shown += [f"n_class_tokens={self.n_class_tokens}"] if self.n_class_tokens else []
        return ", ".join(shown)


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
