"""Hopfield attention: queries are states that retrieve stored keys in several steps."""

import torch
from torch import Tensor

from .attention import (
    Call,
    SoftmaxSmoother,
    blocks_serve,
    check_count,
    check_positive,
    fused_attention,
    map_query_blocks,
    masked_softmax,
)

# Of larger ones rounding moves a logit by one and more: there the fused kernel, which computes
# weights anew in the backward pass, may overflow.
_LARGEST_LOGIT = {torch.float64: 2.0**52}  # else 2**23, as of float32


class Hopfield(SoftmaxSmoother):
    """Hopfield attention: retrieval of the keys by the queries, of which the last step reads v.

    ::

        xi_0 = q,    xi_t = softmax(beta xi_{t-1} k^T) k  for t < n_iter
        output = softmax(beta xi_{n_iter - 1} k^T) v

    Queries are states of a memory whose patterns are the keys. Each step lowers the energy
    ``-1/beta log sum_j exp(beta k_j . xi) + 1/2 |xi|^2`` of every state by at least half of the
    squared step. One step is `Softmax` with the scale beta. Many steps attend to the keys near one
    fixed point: to a single key, or to keys that are not told apart at this beta.

    `n_iter` counts all softmaxes; the parameter ``update_steps_max`` of the package hopfield-layers
    counts one less. A query sees the same keys, and has the same bias, in each step. States are as
    large as keys, so that logits of large keys grow with their squares. Where rounding would move
    them by one, the CPU computes weights explicitly, in blocks and some four times the time.

    Parameters
    ----------
    n_iter : int
        Number of steps, >= 1.
    beta : float, optional
        Inverse temperature > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    Ramsauer et al., "Hopfield networks is all you need" (2021); EQUATIONS HM-1, HM-2
    (erratum E10-i: a count of steps in public code is one less).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Hopfield
    >>> keys = torch.eye(2)
    >>> Hopfield(5, beta=10.0).matrix(torch.tensor([[0.6, 0.4]]), keys).round(decimals=3)
    tensor([[1., 0.]])
    """

    def __init__(self, n_iter: int, beta: float | None = None) -> None:
        super().__init__()
        self.n_iter = check_count(n_iter, "n_iter", 1)
        self.beta = None if beta is None else check_positive(beta, "beta")

    def attend(self, call: Call) -> Tensor:
        return self._retrieve(call, self.n_iter)

    def logits(self, call: Call) -> Tensor:
        states = call.q
        if self.n_iter > 1:
            states = self._retrieve(call._replace(v=call.k), self.n_iter - 1)
        return self._scale(call.q) * states @ call.k.mT

    def _retrieve(self, call: Call, n_iter: int) -> Tensor:
        """Return the values that the last of `n_iter` steps reads."""
        q, k, v, mask, is_causal, _ = call
        scale = self._scale(q)
        if n_iter > 1 and _are_large(q, k, scale):
            return _retrieve_in_blocks(call, n_iter, scale)
        for values in [k] * (n_iter - 1) + [v]:
            q = fused_attention(q, k, values, mask=mask, is_causal=is_causal, scale=scale)
        return q

    def _scale(self, q: Tensor) -> float:
        return q.shape[-1] ** -0.5 if self.beta is None else self.beta

    def extra_repr(self) -> str:
        beta = "head_dim ** -0.5" if self.beta is None else f"{self.beta:.4g}"
        return f"n_iter={self.n_iter}, beta={beta}"


def _are_large(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether rounding may move logits by one and more; only the CPU looks at the tokens."""
    if not blocks_serve(q):
        return False
    of_q, of_k = (x.detach().norm(dim=-1).max().item() for x in (q, k))
    return scale * max(of_q, of_k) * of_k > _LARGEST_LOGIT.get(q.dtype, 2.0**23)


def _retrieve_in_blocks(call: Call, n_iter: int, scale: float) -> Tensor:
    wide = torch.promote_types(call.q.dtype, torch.float32)
    k, v = call.k.to(wide), call.v.to(wide)

    def block(rows: Tensor, start: int) -> Tensor:
        mask, states = call.pairs_of(rows, start), rows.to(wide)
        for values in [k] * (n_iter - 1) + [v]:
            states = masked_softmax(scale * states @ k.mT, mask) @ values
        return states

    return map_query_blocks(block, call.q).to(call.v.dtype)
