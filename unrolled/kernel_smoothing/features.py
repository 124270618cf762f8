"""Terms of the logits as further features of queries and keys, or as a bias."""

import torch
from torch import Tensor

from ..attention import query_offset


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
