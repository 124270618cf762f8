"""Sparsemax attention: logits projected on the simplex."""

from typing import Any

import torch
from torch import Tensor

from ..attention import (
    Call,
    Operator,
    blocks_serve,
    check_positive,
    has_no_values,
    is_one_of_many,
    is_transformed,
    map_query_blocks,
    query_offset,
    vjp,
)
from ..attention.precision import unlowered
from ..attention.tiles import Scratch, Tile, flatten_heads, flatten_mask, hide_, split_tiles
from .logits import masked_logits

_GROUPS = 16
_FEW = 128


def project_on_simplex(logits: Tensor) -> Tensor:
    """Euclidean projection of each row on the probability simplex.

    ``p = max(z - tau, 0)`` with tau such that ``sum_j p_j = 1``. The threshold comes from Newton
    steps on this equation, which is convex and piecewise linear in tau: from below they rise to its
    root and end there after a few steps. Compiled code and the transforms of ``torch.func`` cannot
    loop until convergence; they sort instead.

    On the support the gradient is the incoming one minus its mean there; elsewhere it is zero.

    Parameters
    ----------
    logits : Tensor of shape (..., n)
        -inf excludes an entry.

    Returns
    -------
    Tensor of shape (..., n)
        Zeros in rows of -inf alone.

    References
    ----------
    Michelot (1986); Martins and Astudillo, "From softmax to sparsemax" (2016); EQUATIONS SE-SPM.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import project_on_simplex
    >>> project_on_simplex(torch.tensor([0.5, 0.0, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    centred = subtract_largest(logits)
    if centred.shape[-1] == 0:
        return centred.to(logits.dtype)
    if is_transformed():
        return (centred - sorted_threshold(centred)).relu().to(logits.dtype)
    projected: Tensor = _Projection.apply(centred)
    return projected.to(logits.dtype)


def subtract_largest(logits: Tensor) -> Tensor:
    """Subtract the largest logit of each row, in float32 at least; -inf stays.

    The projection is the same, and thresholds are then sought among small numbers.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = wide.detach().amax(dim=-1, keepdim=True) if wide.shape[-1] else wide
    return wide - largest.masked_fill(largest == -torch.inf, 0)


class _Projection(torch.autograd.Function):
    """The projection of rows whose largest entry is 0, with its gradient."""

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        if has_no_values(logits):
            return (logits - sorted_threshold(logits)).relu()
        rows = logits.reshape(1, -1, logits.shape[-1])
        out, scratch = torch.empty_like(rows), Scratch()
        for tile in split_tiles(rows, rows.mT, None):
            z = tile.of(rows)
            # No entry below -1 is in the support, and 0 times -inf is NaN.
            tau = _find_threshold(z.clamp(min=-2), scratch)
            torch.sub(z, tau, out=tile.of(out)).relu_()
        return out.view_as(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _project_gradient_(gradient.clone(), ctx.saved_tensors[0].detach().sign())


def _project_gradient_(gradient: Tensor, support: Tensor) -> Tensor:
    """Subtract the mean over the support from a gradient there, and set it to 0 elsewhere."""
    inside = gradient.mul_(support)
    mean = inside.sum(dim=-1, keepdim=True) / support.sum(dim=-1, keepdim=True).clamp(min=1)
    return inside.addcmul_(support, mean, value=-1)


def _find_threshold(z: Tensor, scratch: Scratch) -> Tensor:
    """Return the threshold tau of each row, of shape (..., 1).

    It is at least -1, and at least that of some of the entries, the largest of each group of a few.
    """
    lowest = z.new_full((*z.shape[:-1], 1), -1.0)
    n, few = z.shape[-1], z.shape[-1] // _GROUPS
    if n <= _FEW:
        return _iterate_newton(z, lowest, scratch)
    grouped, ungrouped = z.split((_GROUPS * few, n - _GROUPS * few), dim=-1)
    largest = torch.cat([grouped.unflatten(-1, (_GROUPS, few)).amax(dim=-2), ungrouped], dim=-1)
    return _iterate_newton(z, _iterate_newton(largest, lowest, scratch), scratch)


def _iterate_newton(z: Tensor, tau: Tensor, scratch: Scratch) -> Tensor:
    """Take Newton steps from below until the support of no row shrinks any more.

    A step is ``tau <- (sum z_j - 1) / n`` over the n entries above tau.
    """
    support, last_size = scratch.like(z), None
    while True:
        torch.gt(z, tau, out=support)
        size = support.sum(dim=-1, keepdim=True)
        if last_size is not None and not bool((size < last_size).any()):
            return tau
        above = support.mul_(z).sum(dim=-1, keepdim=True)
        tau, last_size = torch.maximum(tau, (above - 1) / size.clamp(min=1)), size


class _SimplexAttention(torch.autograd.Function):
    """The projection of ``q k^T + mask`` times v, with the largest logit and tau of each row.

    They are small beside the matrix, which the backward pass computes again from them.
    """

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, offset: int | None
    ) -> tuple[Tensor, ...]:
        out = v.new_empty(*q.shape[:2], v.shape[-1])
        largest, tau = q.new_empty(2, *q.shape[:2], 1)
        logits, scratch = Scratch(), Scratch()
        for tile in split_tiles(q, k, offset):
            z = hide_(logits.products(tile.of(q), tile.keys(k)), tile, mask, offset)
            top = z.amax(dim=-1, keepdim=True)
            top.masked_fill_(top == -torch.inf, 0)
            threshold = _find_threshold(z.sub_(top).clamp_(min=-2), scratch)
            tile.of(out).copy_(torch.bmm(z.sub_(threshold).clamp_(min=0), tile.keys(v)))
            tile.of(largest).copy_(top)
            tile.of(tau).copy_(threshold)
        return out, largest, tau

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.offset = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    @unlowered
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, largest, tau = ctx.saved_tensors
        offset = ctx.offset
        if is_one_of_many(gradient):

            def output(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                whole = Tile(slice(None), slice(0, q.shape[1]), k.shape[1])
                return project_on_simplex(hide_(q @ k.mT, whole, mask, offset)) @ v

            return *vjp(output, (q, k, v), gradient), None, None
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        logits, pulls = Scratch(), Scratch()
        for tile in split_tiles(q, k, offset):
            Q, G, K, V = tile.of(q), tile.of(gradient), tile.keys(k), tile.keys(v)
            z = hide_(logits.products(Q, K), tile, mask, offset)
            p = z.sub_(tile.of(largest)).sub_(tile.of(tau)).clamp_(min=0)
            tile.keys(dv).baddbmm_(p.mT, G)
            dz = _project_gradient_(pulls.products(G, V), p.sign_())
            tile.of(dq).copy_(torch.bmm(dz, K))
            tile.keys(dk).baddbmm_(dz.mT, Q)
        return dq, dk, dv, None, None


def sorted_threshold(z: Tensor) -> Tensor:
    """Return ``tau = max_k (z_(1) + ... + z_(k) - 1) / k`` of rows whose largest entry is 0."""
    below = z.clamp(min=-2).sort(dim=-1, descending=True).values
    counts = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    return ((below.cumsum(dim=-1) - 1) / counts).amax(dim=-1, keepdim=True)


class Sparsemax(Operator):
    """Attention with logits projected on the simplex: most coefficients are exactly zero.

    ::

        A_i = argmin_p |p - z_i|^2   subject to   p >= 0,  sum_j p_j = 1,      z_i = scale q_i k^T

    Queries are taken in blocks, recomputed in the backward pass, so that memory is linear in the
    number of tokens. A row without visible keys gives zeros.

    Parameters
    ----------
    scale : float, optional
        None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If `scale` is not positive.

    References
    ----------
    Martins and Astudillo, "From softmax to sparsemax" (2016); EQUATIONS SE-SPM.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Sparsemax
    >>> q, k = torch.tensor([[1.0]]), torch.tensor([[2.0], [1.5], [0.0]])
    >>> Sparsemax(scale=1.0).matrix(q, k)
    tensor([[0.7500, 0.2500, 0.0000]])
    """

    row_stochastic = True
    nonnegative = True
    additive_masks = True

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else check_positive(scale, "scale")

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """Logits of shape (..., n_queries, n_keys), in float32 at least."""
        wide = torch.promote_types(q.dtype, torch.float32)
        return self._scale(q.to(wide)) @ k.to(wide).mT

    def _scale(self, q: Tensor) -> Tensor:
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        return scale * q

    def attend(self, call: Call) -> Tensor:
        if blocks_serve(call.q, call.mask):
            return self._attend_by_tiles(call)
        k, v = call.k, call.v

        def block(rows: Tensor, start: int) -> Tensor:
            visible = call.pairs_of(rows, start)
            A = project_on_simplex(masked_logits(self.logits(rows, k), visible))
            return A.to(v.dtype) @ v

        return map_query_blocks(block, call.q)

    def _attend_by_tiles(self, call: Call) -> Tensor:
        q, k, v, mask, is_causal, _ = call
        wide = torch.promote_types(q.dtype, torch.float32)
        offset = query_offset(q, k) if is_causal else None
        inputs = (flatten_heads(x.to(wide)) for x in (self._scale(q.to(wide)), k, v))
        out: Tensor = _SimplexAttention.apply(*inputs, flatten_mask(mask, q.shape[:-2]), offset)[0]
        return out.view(*q.shape[:-1], v.shape[-1]).to(v.dtype)

    def coefficients(self, call: Call) -> Tensor:
        z = subtract_largest(masked_logits(self.logits(call.q, call.k), call.pairs()))
        return (z - sorted_threshold(z)).relu().to(call.q.dtype)

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"
