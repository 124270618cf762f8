"""Distances between tokens, exact where they are close."""

import torch
from torch import Tensor

from ..attention import is_transformed


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
