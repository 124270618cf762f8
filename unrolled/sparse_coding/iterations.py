"""Iterations on whole matrices of codes: penalties, step lengths and their parameters.

An iteration applies a map of codes and step lengths, such as `proximal_map`: see `repeated`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Positive, largest_eigenvalue, map_query_blocks

_SMALLEST = 1e-30


class SparsePenalty(NamedTuple):
    """``lam (r |c|_1 + (1 - r) / 2 |c|^2)`` of each row, r = l1_ratio, with its constraints.

    Codes are zero where `hidden` is True, and none is negative if `nonnegative`. Both `lam` and
    `hidden` broadcast to the codes.

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
        """Return ``argmin_c |c - z|^2 / step + penalty(c)``; steps multiply half the gradient.

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
    """Return ``S_t(z) = sign(z) max(|z| - t, 0)``, the proximal operator of ``t |.|_1``."""
    return z.sign() * (z.abs() - threshold).clamp(min=0)


def lam_max_of(products: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Return `lam_max` from the products ``q k^T``, but 0 for zero queries."""
    size = products.abs()
    return 2 * (size if hidden is None else size.masked_fill(hidden, 0)).amax(-1, keepdim=True)


def strongest_key(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return the index of the allowed key with the largest ``|q_i . k_j|``; of equals the first.

    It has shape (..., n_queries, 1), and is -1 for a query without allowed keys.
    """
    with torch.no_grad():
        size = (q @ k.mT).abs_()
        if allowed is None:
            return size.argmax(dim=-1, keepdim=True)
        size = size.masked_fill(~allowed, -1)
        return size.argmax(dim=-1, keepdim=True).masked_fill(~allowed.any(-1, keepdim=True), -1)


def lam_max(q: Tensor, k: Tensor, strongest: Tensor) -> Tensor:
    """Return the smallest penalty for which the code of query i is zero: ``2 max_j |q_i . k_j|``.

    `strongest` comes from `strongest_key`: gradients flow through the products with these keys
    alone. It is 1 where it is below 1e-30, as for zero queries, whose code is zero for any penalty.

    References
    ----------
    EQUATIONS SE-12, CL-1.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding.iterations import lam_max, strongest_key
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
        Row i is the step of the keys 0 to i; `visible` must then be None.

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
        squared = map_query_blocks(lambda rows, start: _sum_squares(rows, k, start), k).cumsum(-2)
    elif visible is None or visible.shape[-2] == 1:
        squared = (k.mT @ k).square().sum(dim=(-2, -1))[..., None, None]
    else:
        # |K_i^T K_i|_F^2 = sum_jl m_ij m_il (k_j.k_l)^2 for the keys that query i sees.
        seen = visible.double()
        squared = ((seen @ (k @ k.mT).square()) * seen).sum(dim=-1, keepdim=True)
    zero = squared == 0
    return torch.where(zero, 1, torch.where(zero, 1, squared).rsqrt()).clamp(max=_LONGEST)


def _sum_squares(rows: Tensor, k: Tensor, start: int) -> Tensor:
    """Return what each key adds to the squared norm of the Gram matrix of the keys before it."""
    squares = (rows @ k[..., : start + rows.shape[-2], :].mT).square()
    earlier = squares.tril(start - 1).sum(dim=-1, keepdim=True)
    return 2 * earlier + squares.diagonal(start, -2, -1)[..., None]


def curvature(k: Tensor, support: Tensor) -> Tensor:
    """Return ``|K_S|_2^2`` of the keys in each row's support S, of shape (..., n_queries, 1).

    It is zero for an empty support. Its gradient is exact where the largest singular value is
    simple, and a subgradient where it is multiple.
    """
    products = (k[..., :, None] * k[..., None, :]).flatten(-2)  # (..., n_keys, d * d)
    # (..., n_queries, d, d)
    grams = (support.to(k.dtype) @ products).unflatten(-1, (k.shape[-1], k.shape[-1]))
    return largest_eigenvalue(grams).clamp(min=0)


def positive_per_iteration(initial: float, n_iter: int, name: str, **kwargs: Any) -> nn.ModuleList:
    """One learnable positive number for each of `n_iter` iterations, equal at first."""
    values = (Positive(initial, name=name, learnable=True, **kwargs) for _ in range(n_iter))
    return nn.ModuleList(values)


def at_iteration(values: nn.ModuleList | Positive, t: int) -> Tensor:
    """Return the value for iteration t; later ones repeat the last, a single one serves all."""
    chosen = values if isinstance(values, Positive) else values[min(t, len(values) - 1)]
    value: Tensor = chosen()
    return value


Move = Callable[[Tensor, Any], Tensor]


def proximal_step(
    codes: Tensor, pull: Tensor, step: Tensor | float, penalty: SparsePenalty
) -> Tensor:
    """Return ``prox_step( C + step G )``, where the pull G is half the negative gradient.

    References
    ----------
    EQUATIONS SE-15, SE-15n; the printed iterations have faults E3-d to E3-h.
    """
    return penalty.prox(codes + step * pull, step)


def proximal_map(q: Tensor, k: Tensor, penalty: SparsePenalty) -> Move:
    """Return the `proximal_step` on ``|q - C k|_F^2 + penalty`` as a map of codes and step.

    References
    ----------
    EQUATIONS SE-18 and FF-9 (the order ``(C k) k^T``).
    """
    return lambda codes, step: proximal_step(codes, (q - codes @ k) @ k.mT, step, penalty)


def support_step(codes: Tensor, move: Move, local: Tensor, whole: Tensor | float) -> Tensor:
    """One move with the support-adaptive step.

    Rows take the step ``1 / local`` if that adds nothing to their support S, else ``1 / whole``.

    Parameters
    ----------
    codes : Tensor of shape (..., n_queries, n_keys)
    move : callable
        Such as `proximal_map`.
    local : Tensor of shape (..., n_queries, 1)
        ``|k_S|_2^2``, or zero for an empty support.
    whole : float or Tensor broadcastable to (..., n_queries, 1)
        ``|k|_2^2`` of all keys of the row's problem, > 0.

    References
    ----------
    EQUATIONS LS-1.
    """
    in_support = codes != 0
    long, short = (move(codes, 1 / L) for L in (torch.where(local > 0, local, whole), whole))
    grows = ((long != 0) & ~in_support).any(dim=-1, keepdim=True)
    return torch.where(grows, short, long)


def repeated(move: Move, codes: Tensor, steps: Iterable[Any]) -> Tensor:
    """Return the last of ``C_k = move(C_{k-1}, step_k)``."""
    for step in steps:
        codes = move(codes, step)
    return codes


def accelerated(move: Move, codes: Tensor, steps: Iterable[Any]) -> Tensor:
    """Return the last codes of `repeated` with the momentum of FISTA."""
    extrapolated, t = codes, 1.0
    for step in steps:
        previous, codes = codes, move(extrapolated, step)
        next_t = (1 + (1 + 4 * t**2) ** 0.5) / 2
        extrapolated = codes + (t - 1) / next_t * (codes - previous)
        t = next_t
    return codes
