"""Step lengths of ISTA on keys that change with every sample."""

import torch
from torch import Tensor

from ..attention import largest_eigenvalue, map_query_blocks

_LONGEST = 1e30


def safe_step(k: Tensor, visible: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Step ``1 / |K^T K|_F``, never longer than ``1 / |K|_2^2`` and differentiable everywhere.

    Parameters
    ----------
    k : Tensor of shape (..., n_keys, d)
    visible : bool Tensor broadcastable to (..., n_queries, n_keys), optional
        Each query's step is that of the keys it sees, so that hidden ones do not leak through it.
        If that differs from query to query, an n_keys x n_keys matrix is built.
    is_causal : bool, default=False
        Row i is of the keys 0 to i; then `visible` is not given.

    Returns
    -------
    Tensor of shape (..., 1 or n_queries, 1), or (..., n_keys, 1) if causal
        In float64, in which fourth powers of keys do not overflow; 1 where the keys are all zero or
        none is visible, and never more than 1e30, so that it is finite in float32.

    References
    ----------
    EQUATIONS LS-3.
    """
    k = k.double()
    if visible is not None:
        k = torch.where(visible.any(dim=-2)[..., None], k, 0)
    if is_causal:
        squared = map_query_blocks(lambda rows, start: _new_squares(rows, k, start), k).cumsum(-2)
    elif visible is None or visible.shape[-2] == 1:
        squared = (k.mT @ k).square().sum(dim=(-2, -1))[..., None, None]
    else:
        # |K_i^T K_i|_F^2 = sum_jl m_ij m_il (k_j.k_l)^2 for the keys that query i sees.
        seen = visible.double()
        squared = ((seen @ (k @ k.mT).square()) * seen).sum(dim=-1, keepdim=True)
    zero = squared == 0
    return torch.where(zero, 1, torch.where(zero, 1, squared).rsqrt()).clamp(max=_LONGEST)


def _new_squares(rows: Tensor, k: Tensor, start: int) -> Tensor:
    """What each key adds to the sum of squares of the Gram matrix of those up to it."""
    squares = (rows @ k[..., : start + rows.shape[-2], :].mT).square()
    earlier = squares.tril(start - 1).sum(dim=-1, keepdim=True)
    return 2 * earlier + squares.diagonal(start, -2, -1)[..., None]


def curvature(k: Tensor, support: Tensor) -> Tensor:
    """``|K_S|_2^2`` of the keys in each row's support S, in the dtype of `k`.

    Parameters
    ----------
    k : Tensor of shape (..., n_keys, d)
    support : bool Tensor of shape (..., n_queries, n_keys)

    Returns
    -------
    Tensor of shape (..., n_queries, 1)
        Zero for an empty support. Its gradient is that of a simple largest singular value; where
        this is a multiple one, it is a subgradient.
    """
    products = (k[..., :, None] * k[..., None, :]).flatten(-2)  # (..., n_keys, d * d)
    # (..., n_queries, d, d)
    grams = (support.to(k.dtype) @ products).unflatten(-1, (k.shape[-1], k.shape[-1]))
    return largest_eigenvalue(grams).clamp(min=0)
