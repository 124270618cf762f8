"""Attention to the keys with the largest logits."""

import torch
from torch import Tensor

from ..attention import Call, Operator, check_count, check_positive, map_query_blocks
from .query_blocks import block_softmax, masked_logits


class TopK(Operator):
    """Scaled dot-product attention to the keys with the `n_largest` largest logits of each query.

    All keys that tie with the last of them are kept, so that the result does not depend on the
    order of the keys; where fewer are visible, those are used. The choice is piecewise constant:
    gradients flow through the kept logits alone. The matrix is built in blocks of queries that are
    recomputed in the backward pass: quadratic time, linear memory.

    Parameters
    ----------
    n_largest : int
        >= 1. As many as there are keys is scaled dot-product attention.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    EQUATIONS QK-local.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import TopK
    >>> q, k = torch.tensor([[1.0]]), torch.tensor([[3.0], [1.0], [3.0], [2.0]])
    >>> TopK(2).matrix(q, k)
    tensor([[0.5000, 0.0000, 0.5000, 0.0000]])
    """

    row_stochastic = True
    nonnegative = True
    additive_masks = True

    def __init__(self, n_largest: int, *, scale: float | None = None) -> None:
        super().__init__()
        self.n_largest = check_count(n_largest, "n_largest", 1)
        self.scale = None if scale is None else check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        k, v = call.k, call.v

        def block(rows: Tensor, start: int) -> Tensor:
            return self._weights(rows, k, call.pairs_of(rows, start)).to(v.dtype) @ v

        return map_query_blocks(block, call.q)

    def coefficients(self, call: Call) -> Tensor:
        return self._weights(call.q, call.k, call.pairs()).to(call.q.dtype)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        wide = torch.promote_types(q.dtype, torch.float32)
        logits = masked_logits((scale * q.to(wide)) @ k.to(wide).mT, mask)
        n_kept = min(self.n_largest, k.shape[-2])
        smallest = logits.detach().topk(n_kept, dim=-1).values[..., -1:]
        return block_softmax(logits.masked_fill(logits < smallest, -torch.inf), None)

    def extra_repr(self) -> str:
        scale = "head_dim ** -0.5" if self.scale is None else f"{self.scale:.4g}"
        return f"n_largest={self.n_largest}, scale={scale}"
