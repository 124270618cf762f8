"""Iterations on codes that are held whole, differentiable as often as wanted.

An iteration repeats a map of codes and step lengths, such as `proximal_map`: see `repeated`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .penalties import SparsePenalty

Move = Callable[[Tensor, Any], Tensor]


def proximal_step(
    codes: Tensor, pull: Tensor, step: Tensor | float, penalty: SparsePenalty
) -> Tensor:
    """``prox_step( C + step G )``, where the pull G is half the negative gradient.

    References
    ----------
    EQUATIONS SE-15, SE-15n; the printed iterations have faults E3-d to E3-h.
    """
    return penalty.prox(codes + step * pull, step)


def proximal_map(q: Tensor, k: Tensor, penalty: SparsePenalty) -> Move:
    """`proximal_step` of ``|q - C k|_F^2`` from given codes, as a map of them and a step length.

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
    on = codes != 0
    long, short = (move(codes, 1 / L) for L in (torch.where(local > 0, local, whole), whole))
    grows = ((long != 0) & ~on).any(dim=-1, keepdim=True)
    return torch.where(grows, short, long)


def repeated(move: Move, codes: Tensor, steps: Iterable[Any]) -> Tensor:
    """The last of ``C_k = move(C_{k-1}, step_k)``."""
    for step in steps:
        codes = move(codes, step)
    return codes


def accelerated(move: Move, codes: Tensor, steps: Iterable[Any]) -> Tensor:
    """`repeated` with the momentum of FISTA: moves start ahead of the last codes."""
    ahead, t = codes, 1.0
    for step in steps:
        previous, codes = codes, move(ahead, step)
        following = (1 + (1 + 4 * t**2) ** 0.5) / 2
        ahead = codes + (t - 1) / following * (codes - previous)
        t = following
    return codes
