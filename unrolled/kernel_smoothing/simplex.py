"""Sparsemax attention: logits projected on the simplex."""

from typing import Any

import torch
from torch import Tensor

from ..attention import (
    Call,
    Operator,
    check_positive,
    has_no_values,
    is_transformed,
    map_query_blocks,
)
from ..block_size import block_size
from .logits import masked_logits

# Entries of the logits for which thresholds are sought at once: they stay in a core's cache, or are
# enough to occupy a GPU.
_CPU_ENTRIES, _GPU_ENTRIES = 2**18, 2**26
_GROUPS = 8
_FEW = 128


def project_on_simplex(logits: Tensor) -> Tensor:
    """Euclidean projection of each row on the probability simplex.

    ``p = max(z - tau, 0)`` with tau such that ``sum_j p_j = 1``. The threshold comes from Newton
    steps on this equation, which is convex and piecewise linear in tau: from below they rise to its
    root and end there after a few steps. Compiled code and the transforms of ``torch.func`` cannot
    loop until then and sort instead.

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
        out = torch.empty_like(logits, memory_format=torch.contiguous_format)
        n_keys = logits.shape[-1]
        entries = _CPU_ENTRIES if logits.device.type == "cpu" else _GPU_ENTRIES
        n_rows = block_size(max(1, entries // n_keys))
        tiles = zip(
            logits.reshape(-1, n_keys).split(n_rows),
            out.view(-1, n_keys).split(n_rows),
            strict=True,
        )
        for z, p in tiles:
            torch.sub(z, _find_threshold(z), out=p)
            p.relu_()
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        support = ctx.saved_tensors[0].detach().sign()
        inside = gradient * support
        mean = inside.sum(dim=-1, keepdim=True) / support.sum(dim=-1, keepdim=True).clamp(min=1)
        return inside.addcmul_(support, mean, value=-1)


def _find_threshold(z: Tensor) -> Tensor:
    """Return the threshold tau of each row, of shape (..., 1).

    Newton steps start at the threshold of some of the entries, the largest of each of a few groups.
    It is never larger than that of all entries.
    """
    n = z.shape[-1]
    if n <= _FEW:
        start = z.amax(dim=-1, keepdim=True) - 1
        return _iterate_newton(z, start.masked_fill_(start == -torch.inf, 0))
    grouped, ungrouped = z.split((n - n % _GROUPS, n % _GROUPS), dim=-1)
    largest = grouped.unflatten(-1, (_GROUPS, -1)).amax(dim=-2)
    return _iterate_newton(z, _find_threshold(torch.cat([largest, ungrouped], dim=-1)))


def _iterate_newton(z: Tensor, tau: Tensor) -> Tensor:
    """Take Newton steps from below until the support of no row shrinks any more."""
    last_size, shrinks = None, True
    while shrinks:
        clipped = (z - tau).relu_()
        excess = clipped.sum(dim=-1, keepdim=True) - 1
        size = clipped.sign_().sum(dim=-1, keepdim=True)
        tau = torch.maximum(tau, tau + excess / size.clamp(min=1))
        shrinks = last_size is None or bool((size < last_size).any())
        last_size = size
    return tau


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
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        wide = torch.promote_types(q.dtype, torch.float32)
        return (scale * q.to(wide)) @ k.to(wide).mT

    def attend(self, call: Call) -> Tensor:
        k, v = call.k, call.v

        def block(rows: Tensor, start: int) -> Tensor:
            visible = call.pairs_of(rows, start)
            A = project_on_simplex(masked_logits(self.logits(rows, k), visible))
            return A.to(v.dtype) @ v

        return map_query_blocks(block, call.q)

    def coefficients(self, call: Call) -> Tensor:
        z = subtract_largest(masked_logits(self.logits(call.q, call.k), call.pairs()))
        return (z - sorted_threshold(z)).relu().to(call.q.dtype)

    def extra_repr(self) -> str:
        return "scale=head_dim ** -0.5" if self.scale is None else f"scale={self.scale:.4g}"
