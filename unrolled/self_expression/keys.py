"""Keys of self-expression: their products, penalties relative to them, and a query's own key."""

from typing import Any

import torch
from torch import Tensor

from ..attention import largest_eigenvalue, padding_mask


def check_pair(queries: Tensor, keys: Tensor | None) -> Tensor:
    """Return the keys or, without keys, the queries, after a check that both have one width."""
    other = queries if keys is None else keys
    if min(queries.ndim, other.ndim) < 2 or other.shape[-1] != queries.shape[-1]:
        shape = None if keys is None else tuple(keys.shape)
        raise ValueError(
            "queries: must be of shape (..., n_queries, d), and keys (..., n_keys, d), got "
            f"{tuple(queries.shape)} and {shape}"
        )
    return other


def own_keys(own: Tensor | None, start: int, rows: Tensor, k: Tensor) -> Tensor | None:
    """Mask, for a block of queries from `start` on, that is True at each query's own key."""
    if own is None:
        return None
    index = own[start : start + rows.shape[-2], None]
    return index == torch.arange(k.shape[-2], device=rows.device)


def visible_keys(k: Tensor, mask: Tensor | None, name: str) -> Tensor:
    """Return the keys with zeros for hidden ones: they have no effect on a quadratic problem."""
    if mask is None:
        return k
    return torch.where(padding_mask(mask, k.shape[-2], name).mT, k, 0)


def scaled_penalty(lam: Tensor, gram: Tensor, relative: bool) -> Tensor:
    """Return the penalty in float64, multiplied by the largest eigenvalue of `gram` if `relative`.

    It is differentiable as `largest_eigenvalue` is.
    """
    lam = lam.double()
    if not relative:
        return lam
    largest = largest_eigenvalue(gram.double())[..., None]
    return lam * torch.where(largest > 0, largest, 1)


def key_products(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``k^T k`` and ``k^T v`` in float64, so that a small penalty is not lost.

    k and v have one dtype. Their gradients, products with many rows again, are computed in it.
    """
    gram, moments = _KeyProducts.apply(k, v)
    return gram, moments


class _KeyProducts(torch.autograd.Function):
    """`key_products` with gradients in the dtype of the inputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(k, v):  # type: ignore[no-untyped-def]
        transposed = k.double().mT
        return transposed @ transposed.mT, transposed @ v.double()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gram, moments):  # type: ignore[no-untyped-def]
        k, v = ctx.saved_tensors
        gram, moments = (gram + gram.mT).to(k.dtype), moments.to(k.dtype)
        by_k = (k @ gram + v @ moments.mT).sum_to_size(k.shape)
        return by_k, (k @ moments).sum_to_size(v.shape)
