"""Ridge regression on the tokens so far, exactly and a chunk at a time."""

import torch
from torch import Tensor

from .chunks import add_up, solve_rows, split

State = tuple[Tensor, Tensor]
_LEAST = {torch.float64: 1e-30}  # else 1e-15: far below a rounding, and its root has a gradient


def solve_ridge(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, lam: Tensor, state: State, chunk: int
) -> tuple[Tensor, State]:
    """Return ``q_t (H_t + Diag(lam))^-1 G_t`` and the last H and G, where nothing is forgotten.

    Before a chunk ``H + Diag(lam) = L L^T``. With g, K' and Q' for ``L^-1`` times G, ``K^T`` and
    ``Q^T``, and b the square roots of the weights, the leading blocks of the triangular R in ``I +
    b K'^T K' b = R R^T`` solve all prefixes at once::

        O = Q'^T g + triu(R^-1 b K'^T Q')^T R^-1 b (V - K'^T g)

    Both matrices that are factored are symmetric as computed: a small lam costs least digits so.
    """
    n_tokens, (H, G) = v.shape[-2], state
    q, k, v, beta = (split(x, chunk) for x in (q, k, v, beta))
    (H_before, H), (G_before, G) = (add_up(x, (beta * k).mT @ y) for x, y in ((H, k), (G, v)))
    root = (beta + _LEAST.get(beta.dtype, 1e-15)).sqrt()
    penalty = torch.diag_embed(lam.expand(*k.shape[:-3], 1, k.shape[-1]))
    L = torch.linalg.cholesky(H_before + penalty)
    solved = solve_rows(L, torch.cat([k, q, G_before.mT], dim=-2))
    keys, queries, g = solved.split([k.shape[-2], q.shape[-2], v.shape[-1]], dim=-2)
    one = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
    R = torch.linalg.cholesky(one + root * (keys @ keys.mT) * root.mT)
    errors = root * (v - keys @ g.mT)
    readers = queries @ (root * keys).mT
    solved = solve_rows(R, torch.cat([readers, errors.mT], dim=-2))
    readers, errors = solved.split([q.shape[-2], v.shape[-1]], dim=-2)
    out = queries @ g.mT + readers.tril() @ errors.mT
    return out.flatten(-3, -2)[..., :n_tokens, :], (H, G)
