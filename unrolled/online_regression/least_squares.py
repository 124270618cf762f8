"""Ridge regression on the tokens so far, exactly and a chunk at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .chunks import split

State = tuple[Tensor, Tensor]
_LEAST = {torch.float64: 1e-30}  # else 1e-15: far below a rounding, and its root has a gradient


def solve_ridge(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, lam: Tensor, state: State, chunk: int
) -> tuple[Tensor, State]:
    """Return ``q_t (H_t + Diag(lam))^-1 G_t`` and the last H and G, where nothing is forgotten.

    With ``A = H + Diag(lam)`` and ``S = A^-1 G`` before a chunk, and b the square roots of its
    weights, the leading blocks of ``I + b K A^-1 K^T b^T = R R^T`` solve all prefixes at once::

        O = Q S + triu(R^-1 b K A^-1 Q^T)^T R^-1 b (V - K S)
    """
    n_tokens, (H, G) = v.shape[-2], state
    q, k, v, beta = (split(x, chunk) for x in (q, k, v, beta))
    (H_before, H), (G_before, G) = (_add_up(x, (beta * k).mT @ y) for x, y in ((H, k), (G, v)))
    root = (beta + _LEAST.get(beta.dtype, 1e-15)).sqrt()
    solved = torch.linalg.solve(
        H_before + torch.diag_embed(lam.expand(*k.shape[:-3], 1, k.shape[-1])),
        torch.cat([G_before, k.mT, q.mT], dim=-1),
    )
    S, to_keys, to_queries = solved.split([v.shape[-1], k.shape[-2], q.shape[-2]], dim=-1)
    one = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
    R = torch.linalg.cholesky(one + root * (k @ to_keys) * root.mT)
    given = root * torch.cat([v - k @ S, k @ to_queries], dim=-1)
    errors, readers = torch.linalg.solve_triangular(R, given, upper=False).split(
        [v.shape[-1], q.shape[-2]], dim=-1
    )
    out = q @ S + readers.triu().mT @ errors
    return out.flatten(-3, -2)[..., :n_tokens, :], (H, G)


def _add_up(first: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums before each of the parts, (..., n_parts, rows, columns), and of all."""
    sums = first[..., None, :, :] + F.pad(parts.cumsum(dim=-3), (0, 0, 0, 0, 1, 0))
    return sums[..., :-1, :, :], sums[..., -1, :, :]
