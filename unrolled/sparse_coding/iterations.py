"""Iterations of ISTA on codes that are held whole, differentiable as often as wanted."""

import torch
from torch import Tensor

from .step_lengths import curvature


def soft_threshold(z: Tensor, threshold: Tensor | float) -> Tensor:
    """``S_t(z) = sign(z) max(|z| - t, 0)``, the proximal operator of ``t |.|_1``."""
    return z.sign() * (z.abs() - threshold).clamp(min=0)


def ista_step(
    codes: Tensor,
    q: Tensor,
    k: Tensor,
    *,
    lam: Tensor | float,
    step: Tensor | float,
    nonnegative: bool = False,
    allowed: Tensor | None = None,
) -> Tensor:
    """One of the iterations of `ista_codes`, from given codes."""
    moved = codes + step * ((q - codes @ k) @ k.mT)
    threshold = step * lam / 2
    codes = (moved - threshold).clamp(min=0) if nonnegative else soft_threshold(moved, threshold)
    return codes if allowed is None else codes.masked_fill(~allowed, 0)


def support_step(
    codes: Tensor,
    q: Tensor,
    k: Tensor,
    *,
    lam: Tensor | float,
    whole: Tensor,
    nonnegative: bool = False,
    allowed: Tensor | None = None,
) -> Tensor:
    """One ISTA iteration with the support-adaptive step, in the signature of `ista_step`.

    Rows take the step ``1 / |k_S|_2^2`` of their support S if that adds nothing to S, else
    ``1 / whole``, where `whole` is ``|k|_2^2`` of all keys of the row's problem.

    References
    ----------
    EQUATIONS LS-1.
    """
    on = codes != 0
    local = curvature(k, on)
    long, short = (
        ista_step(codes, q, k, lam=lam, step=1 / L, nonnegative=nonnegative, allowed=allowed)
        for L in (torch.where(local > 0, local, whole), whole)
    )
    grows = ((long != 0) & ~on).any(dim=-1, keepdim=True)
    return torch.where(grows, short, long)


def ista_codes(
    q: Tensor,
    k: Tensor,
    *,
    lam: Tensor | float,
    step: Tensor | float,
    n_iter: int,
    nonnegative: bool = False,
    allowed: Tensor | None = None,
) -> Tensor:
    """Run `n_iter` ISTA iterations on ``min_C |q - C k|_F^2 + lam |C|_1`` from ``C = 0``.

    ``C <- S_{step lam / 2}( C + step (q - C k) k^T )``; entries that are not allowed are set to
    zero after each step, which is exact for the problem in which they are absent.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    lam, step : float or Tensor broadcastable to (..., n_queries, 1)
    n_iter : int
    nonnegative : bool, default=False
        One-sided threshold: the problem with ``C >= 0``.
    allowed : bool Tensor broadcastable to (..., n_queries, n_keys), optional

    Returns
    -------
    Tensor of shape (..., n_queries, n_keys)

    References
    ----------
    EQUATIONS SE-15, SE-15n, SE-18 and FF-9 (the order ``(C k) k^T``); the printed iterations have
    faults E3-d to E3-h.
    """
    codes = torch.zeros_like(q @ k.mT)
    for _ in range(n_iter):
        codes = ista_step(codes, q, k, lam=lam, step=step, nonnegative=nonnegative, allowed=allowed)
    return codes
