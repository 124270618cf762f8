"""The penalty of sparse codes, and the one that makes a code zero, their unit."""

from typing import NamedTuple

import torch
from torch import Tensor

_SMALLEST = 1e-30


class SparsePenalty(NamedTuple):
    """``lam (r |c|_1 + (1 - r) / 2 |c|^2)`` of each row, r = l1_ratio, with its constraints.

    Codes are zero where they are `hidden`, which broadcasts to them as `lam` does, and none is
    negative if `nonnegative`.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding import SparsePenalty
    >>> SparsePenalty(2.0).prox(torch.tensor([3.0, -0.5]), 1.0)
    tensor([2., -0.])
    """

    lam: Tensor | float
    l1_ratio: float = 1.0
    nonnegative: bool = False
    hidden: Tensor | None = None

    def prox(self, z: Tensor, step: Tensor | float) -> Tensor:
        """``argmin_c |c - z|^2 / step + penalty(c)``: step lengths multiply half the gradient.

        References
        ----------
        EQUATIONS SE-15, SE-15n, CL-2.
        """
        threshold = step * self.lam * (self.l1_ratio / 2)
        codes = (z - threshold).clamp(min=0) if self.nonnegative else soft_threshold(z, threshold)
        if self.l1_ratio < 1:
            codes = codes / (1 + step * self.lam * ((1 - self.l1_ratio) / 2))
        return codes if self.hidden is None else codes.masked_fill(self.hidden, 0)


def soft_threshold(z: Tensor, threshold: Tensor | float) -> Tensor:
    """``S_t(z) = sign(z) max(|z| - t, 0)``, the proximal operator of ``t |.|_1``."""
    return z.sign() * (z.abs() - threshold).clamp(min=0)


def lam_max_of(products: Tensor, hidden: Tensor | None = None) -> Tensor:
    """`lam_max` from all products ``q k^T`` at hand, and 0 for zero queries."""
    size = products.abs()
    return 2 * (size if hidden is None else size.masked_fill(hidden, 0)).amax(-1, keepdim=True)


def strongest_key(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Index of the allowed key with the largest ``|q_i . k_j|``, of equal ones the first.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    allowed : bool Tensor broadcastable to (..., n_queries, n_keys), optional

    Returns
    -------
    Tensor of int64 of shape (..., n_queries, 1)
        -1 for a query without allowed keys.
    """
    with torch.no_grad():
        size = (q @ k.mT).abs()
        if allowed is None:
            return size.argmax(dim=-1, keepdim=True)
        size = size.masked_fill(~allowed, -1)
        return size.argmax(dim=-1, keepdim=True).masked_fill(~allowed.any(-1, keepdim=True), -1)


def lam_max(q: Tensor, k: Tensor, strongest: Tensor) -> Tensor:
    """``2 max_j |q_i . k_j|``, the smallest penalty for which the code of query i is zero.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    strongest : Tensor of int64 of shape (..., n_queries, 1)
        From `strongest_key`; gradients flow through the products with these keys alone.

    Returns
    -------
    Tensor of shape (..., n_queries, 1)
        1 where it is below 1e-30, and so for zero queries: their code is zero for any penalty.

    References
    ----------
    EQUATIONS SE-12, CL-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.penalties import lam_max, strongest_key
    >>> q, k = torch.tensor([[3.0, 0.5]]), torch.eye(2)
    >>> lam_max(q, k, strongest_key(q, k))
    tensor([[6.]])
    """
    keys = k.expand(*strongest.shape[:-2], *k.shape[-2:])
    index = strongest.clamp(min=0).expand(*strongest.shape[:-1], k.shape[-1])
    # Where nothing is allowed, not even NaN in a hidden key may reach the gradient.
    keys = torch.where(strongest >= 0, keys.gather(-2, index), 0)
    largest = 2 * (q * keys).sum(dim=-1, keepdim=True).abs()
    return torch.where(largest > _SMALLEST, largest, 1)
