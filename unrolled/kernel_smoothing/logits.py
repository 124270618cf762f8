"""Parts of logits: features, biases, distances, places on a grid, and masks."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import (
    Context,
    check_count,
    hidden_by,
    is_transformed,
    masked_softmax,
    query_offset,
)


def of_queries(features: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return the features of the queries, which are the last tokens, from those of all tokens."""
    if features.shape[-2] != k.shape[-2] or q.shape[-2] == k.shape[-2]:
        return features
    return features[..., query_offset(q, k) :, :]


def expand_features(features: Tensor, tokens: Tensor, name: str) -> Tensor:
    """Expand features to the batch and heads of the tokens; errors call the features `name`."""
    front, present = tokens.shape[:-1], features.shape[:-1]
    tail = front[len(front) - len(present) :]
    fits = len(present) <= len(front) and present[-1] == front[-1]
    if not fits or any(m not in (1, n) for m, n in zip(present, tail, strict=True)):
        raise ValueError(
            f"{name}: shape {tuple(features.shape)} does not broadcast to "
            f"{(*front, features.shape[-1])}, the heads and tokens of the queries or keys"
        )
    return features.expand(*front, -1).to(tokens.dtype)


def split_features(features: Tensor, dtype: torch.dtype, n_parts: int = 3) -> Tensor:
    """Return features (..., d) in `dtype`; if it is narrow, as `n_parts` d, whose sums keep digits.

    Three parts keep all 24 bits of float32.

    Bits are cut off, not rounded: compiled programs leave out casts to a dtype and back.
    """
    n_bits = round(-math.log2(torch.finfo(dtype).eps))
    if n_bits >= 23:
        return features.to(dtype)
    high_bits, remainder, parts = -(2 ** (23 - n_bits)), features.detach().float(), []
    for _ in range(n_parts):
        parts.append((remainder.view(torch.int32) & high_bits).view(torch.float32))
        remainder = remainder - parts[-1]
    parts[0] = features - (features.detach() - parts[0])  # the gradient is that of the whole
    return torch.cat(parts, dim=-1).to(dtype)


def add_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """Add a bias to an additive mask, or hide by -inf what a boolean mask hides."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -torch.inf)
    return bias + mask


class _Distances(torch.autograd.Function):
    """``|q_i - k_j|`` or its square, with gradients by matrix products instead of `cdist`'s.

    These products are in float64: in float32 those of tokens far from the origin would cancel.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, squared: bool) -> Tensor:
        if q.is_cuda and q.dtype == torch.float32:
            squares = _square_by_products(q, k)
            return squares if squared else squares.sqrt_()
        distance = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
        return distance.square_() if squared else distance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, squared = inputs
        ctx.save_for_backward(q, k, None if squared else output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        q, k, distance = ctx.saved_tensors
        dtype, (q, k) = q.dtype, (x.double() for x in (q, k))
        if distance is None:
            q, k, weights = 2 * q, 2 * k, gradient.double()
        else:
            weights = (gradient / distance.masked_fill(distance == 0, torch.inf)).double()
        by_query, by_key = _pull(weights, q, k), _pull(weights.mT, k, q)
        return by_query.to(dtype), by_key.to(dtype), None


def _pull(weights: Tensor, x: Tensor, others: Tensor) -> Tensor:
    """Return ``sum_j w_ij (x_i - y_j)``, with y the `others`."""
    sums = weights @ F.pad(others, (0, 1), value=1.0)
    return sums[..., -1:] * x - sums[..., :-1]


def _square_by_products(q: Tensor, k: Tensor) -> Tensor:
    """Squared distances in float32 by products in float64: on a GPU far faster than `cdist`."""
    q, k = q.double(), k.double()
    squares = (q @ k.mT).mul_(-2).add_(q.square().sum(dim=-1, keepdim=True))
    return squares.add_(k.square().sum(dim=-1)[..., None, :]).clamp_(min=0).float()


def squared_distances(q: Tensor, k: Tensor) -> Tensor:
    """Squared distances ``|q_i - k_j|^2`` of shape (..., n_queries, n_keys), from differences.

    In float32 on a GPU they come from products in float64, which leave an error of some ``1e-16
    (|q_i|^2 + |k_j|^2)``. Queries and keys must have the same leading shape.
    """
    if is_transformed():
        # PyTorch's cdist has no forward derivative.
        return (q[..., :, None, :] - k[..., None, :, :]).square().sum(dim=-1)
    squares: Tensor = _Distances.apply(q, k, True)
    return squares


def distances(q: Tensor, k: Tensor) -> Tensor:
    """Distances ``|q_i - k_j|``, with derivatives 0 where they are 0; see `squared_distances`."""
    if is_transformed():
        squares = squared_distances(q, k)
        return torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)
    distance: Tensor = _Distances.apply(q, k, False)
    return distance


def gaussian_logits(q: Tensor, k: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Logits ``-|q_i - k_j|^2 / (2 bandwidth^2)``, in float32 at least.

    The bandwidth divides distances, not tokens: those far from the origin would lose digits.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    bandwidth = bandwidth.to(wide) if isinstance(bandwidth, Tensor) else bandwidth
    return squared_distances(q.to(wide), k.to(wide)) * (-0.5 / bandwidth**2)


def key_nearest_zero(k: Tensor, mask: Tensor | None) -> Tensor:
    """In each feature, the number nearest to zero among the keys that any query sees.

    As a centre it costs no key digits, and it keeps those of keys far from the origin. It is a
    constant, without a gradient.
    """
    k = k.detach()
    sizes = k.abs()
    if mask is not None:
        sizes = sizes.masked_fill(hidden_by(mask).all(dim=-2)[..., None], torch.inf)
    return k.gather(-2, sizes.argmin(dim=-2, keepdim=True))


class Grid:
    """The grid of an operator: its own of `width` columns, or, for None, that of the model.

    Without a model it has one column, a sequence. `n_class_tokens` stand in front of the grid,
    without a place on it.
    """

    def __init__(self, width: int | None, n_class_tokens: int) -> None:
        self.width = None if width is None else check_count(width, "width", 1)
        self.n_class_tokens = check_count(n_class_tokens, "n_class_tokens", 0)

    def on(self, k: Tensor, context: Context | None) -> tuple[int, int]:
        """Return the number of columns of the grid of these keys, and of class tokens.

        A ValueError says if the model's grid differs from this one, or does not fit the number of
        keys.
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
                f"context.grid: must fit the {k.shape[-2]} tokens, got {rows} x {columns} and "
                f"{n_class} class tokens"
            )
        return columns, n_class

    def __repr__(self) -> str:
        shown = [] if self.width is None else [f"width={self.width}"]
        shown += [f"n_class_tokens={self.n_class_tokens}"] if self.n_class_tokens else []
        return ", ".join(shown)


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a mask to logits: -inf, without a gradient, where it hides."""
    if mask is None:
        return logits
    if mask.dtype != torch.bool:
        logits = logits + mask
    return logits.masked_fill(hidden_by(mask), -torch.inf)


def visible_products(q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
    """Return ``q k^T`` with zeros where a key is not visible."""
    products = q @ k.mT
    return products if visible is None else torch.where(visible, products, 0)


def block_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the visible keys; zeros, with zero gradients, in rows that see none."""
    return masked_softmax(masked_logits(logits, mask), None)
