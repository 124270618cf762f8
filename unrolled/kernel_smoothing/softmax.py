"""Scaled dot-product attention: to all keys, of the keys to themselves, to the largest logits."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import (
    Call,
    Operator,
    SoftmaxSmoother,
    check_count,
    check_positive,
    fused_attention,
    has_static_value,
    map_query_blocks,
)
from .logits import block_softmax, masked_logits


class Softmax(SoftmaxSmoother):
    """Scaled dot-product attention ``softmax(scale q k^T) v``.

    It is the Nadaraya-Watson regression of the values with the Gaussian kernel of bandwidth
    ``scale ** -0.5`` if all keys have equal norm, and not otherwise.

    Parameters
    ----------
    scale : float, optional
        None is ``head_dim ** -0.5``.

    References
    ----------
    EQUATIONS SE-4, SE-7 (erratum E3-a: the scale is 1 / s^2).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Softmax
    >>> q = torch.randn(1, 2, 5, 8)
    >>> Softmax()(q, q, q).shape
    torch.Size([1, 2, 5, 8])
    """

    cheap_matrix = True

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        return fused_attention(q, k, v, mask=mask, is_causal=is_causal, scale=self.scale)

    def logits(self, call: Call) -> Tensor:
        scale = call.q.shape[-1] ** -0.5 if self.scale is None else self.scale
        return scale * call.q @ call.k.mT

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"


class Symmetric(SoftmaxSmoother):
    """Attention of the keys to themselves: one gradient step on the smoothness of the values.

    ``A_ij = K_ij / d_i`` with ``K_ij = exp(scale k_i . k_j)`` and ``d_i = sum_j K_ij``. K is
    symmetric, so that ``A v = v - grad J(v) / d`` is a step of preconditioned gradient descent on
    ``J(v) = 1/4 sum_ij K_ij |v_i - v_j|^2``, and J(A v) is never above J(v). Neither holds with
    queries that differ from the keys (errata E2-a, E2-b). The operator takes queries as others do
    but ignores them, and an `Attention` shell around it does not project them. A causal mask breaks
    the symmetry. A key that no query sees is no query either: its row is the mean of the visible
    values.

    Parameters
    ----------
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If `scale` is not positive, or queries and keys differ in number.

    References
    ----------
    EQUATIONS NT-10 to NT-14, NT-J.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Softmax, Symmetric
    >>> q, k = torch.randn(2, 5, 8)
    >>> torch.equal(Symmetric()(q, k, q), Softmax()(k, k, q))
    True
    """

    square_only = True
    outputs_kept = 0
    reads = ("k", "v")

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else check_positive(scale, "scale")

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        own = k[..., k.shape[-2] - q.shape[-2] :, :]
        return fused_attention(own, k, v, mask=mask, is_causal=is_causal, scale=self.scale)

    def logits(self, call: Call) -> Tensor:
        k = call.k
        scale = k.shape[-1] ** -0.5 if self.scale is None else self.scale
        return scale * k @ k.mT

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"


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
        """Softmax of the `n_largest` logits of each row, and of those equal to the last of them."""
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        wide = torch.promote_types(q.dtype, torch.float32)
        logits = masked_logits((scale * q.to(wide)) @ k.to(wide).mT, mask)
        n_kept, scores = self.n_largest, logits.detach()
        if has_static_value(k.shape[-2]):
            n_kept = min(n_kept, k.shape[-2])
        else:  # one program for fewer keys too
            scores = F.pad(scores, (0, n_kept), value=-torch.inf)
        smallest = scores.topk(n_kept, dim=-1).values[..., -1:]
        return block_softmax(logits.masked_fill(logits < smallest, -torch.inf), None)

    def extra_repr(self) -> str:
        scale = "head_dim ** -0.5" if self.scale is None else f"{self.scale:.4g}"
        return f"n_largest={self.n_largest}, scale={scale}"
