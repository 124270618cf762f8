"""Ridge regression on the tokens so far, exactly and a chunk at a time."""

import torch
from torch import Tensor

from ..attention import is_transformed
from .chunks import add_up, solve_rows, split

State = tuple[Tensor, Tensor]
# Of the penalty, else 1e-15: far below a rounding, and its root has a gradient.
_LEAST = {torch.float64: 1e-30}


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
    penalty = lam.expand(*k.shape[:-3], 1, k.shape[-1])
    root = _root(beta, k, penalty.detach().amin(dim=-1)[..., None, None])
    L = torch.linalg.cholesky(H_before + torch.diag_embed(penalty))
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


def _root(beta: Tensor, k: Tensor, lam: Tensor) -> Tensor:
    """Return the roots of weights; the graph refuses second derivatives at the smallest ones.

    There they would be differences of numbers that are larger by the penalty over the weight.
    """
    kind = torch.finfo(beta.dtype)
    root = (beta + (_LEAST.get(beta.dtype, 1e-15) * lam).clamp(min=kind.tiny)).sqrt()

    def refuse(gradient: Tensor) -> None:
        is_light = (beta < kind.eps**0.5 * lam) & (k != 0).any(dim=-1, keepdim=True)
        if torch.is_grad_enabled() and bool(is_light.any()):
            raise RuntimeError(
                "Mesa: has no second derivative where a weight is below "
                f"{kind.eps**0.5:.1g} of the penalty; with a log_forget of zeros it has one"
            )

    if root.requires_grad and not (torch.compiler.is_compiling() or is_transformed()):
        root.register_hook(refuse)
    return root
