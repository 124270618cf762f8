"""Unrolled ISTA times values, in blocks of codes, which are not stored for the backward pass."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention import is_one_of_many, query_offset, vjp
from ..attention.tiles import Scratch, Tile, flatten_heads, flatten_mask, split_tiles
from .iterations import SparsePenalty, proximal_map, repeated


def ista_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor | float,
    step: Tensor | float,
    n_iter: int,
    nonnegative: bool = False,
    zero_diagonal: bool = False,
    visible: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``C v`` of `n_iter` ISTA iterations on ``|q - C k|_F^2 + lam |C|_1`` from ``C = 0``.

    ``C <- S_{step lam / 2}( C + step (q - C k) k^T )``, then zero where a key is absent: a fused
    form of `proximal_map`.

    Only the codes of one block of rows are in memory at a time. The forward pass stores the
    residuals ``q - C k`` of all iterations, and the backward pass recomputes the codes of a block
    from them. Where the gradient is itself differentiated, or batched, the codes of all iterations
    are stored.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    v : Tensor of shape (..., n_keys, e)
    lam, step : float or Tensor broadcastable to (..., n_queries, 1)
        Positive.
    n_iter : int
        At least 1.
    nonnegative : bool, default=False
    zero_diagonal : bool, default=False
        Key i is absent from the code of query i.
    visible : bool Tensor broadcastable to (..., n_queries, n_keys), optional
        Keys where it is False are absent from a row's problem. `step` has to allow for that.
    is_causal : bool, default=False
        Query i sees the keys 0 to ``n_keys - n_queries + i``.

    Returns
    -------
    Tensor of shape (..., n_queries, e)

    References
    ----------
    EQUATIONS SE-18, FF-9.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.sparse_coding import ista_attention
    >>> q, k = torch.tensor([[3.0, 0.5]]), torch.eye(2)
    >>> ista_attention(q, k, k, lam=2.0, step=1.0, n_iter=1)
    tensor([[2., 0.]])
    """
    batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    row = (*batch, q.shape[-2], 1)
    lam, step = (
        torch.as_tensor(x, dtype=q.dtype).to(q.device, non_blocking=True) for x in (lam, step)
    )
    inputs = [flatten_heads(x.expand(*batch, *x.shape[-2:])) for x in (q, k, v)]
    rows = [flatten_heads(x.expand(row)) for x in (2 / lam, step * lam / 2)]
    hidden = flatten_mask(None if visible is None else ~visible, batch)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *rows))
    offset = query_offset(q, k) if is_causal else None
    settings = _Settings(n_iter, nonnegative, zero_diagonal, offset, trained)
    out, _ = _SparseAttention.apply(*inputs, *rows, hidden, settings)
    return out.view(*batch, *out.shape[-2:])


class _Settings(NamedTuple):
    """Settings of `ista_attention`; `offset` is that of causal queries, None without causality."""

    n_iter: int
    nonnegative: bool
    zero_diagonal: bool
    offset: int | None  # index of the first query among the keys if causal, else None
    trained: bool


def _shrink_(z: Tensor, nonnegative: bool) -> Tensor:
    """Soft threshold at 1, in place."""
    if nonnegative:
        return z.sub_(1).clamp_(min=0)
    return torch.ops.aten.softshrink.out(z, 1.0, out=z)


def _restrict_(codes: Tensor, block: Tile, hidden: Tensor | None, settings: _Settings) -> None:
    """Set the codes of keys that a row may not use to zero, in place."""
    start = block.rows.start
    if hidden is not None:
        codes.masked_fill_(block.pairs(hidden), 0)
    if settings.offset is not None:
        codes.tril_(start + settings.offset)
    if settings.zero_diagonal and start < block.n_keys:
        codes.diagonal(offset=start, dim1=-2, dim2=-1).zero_()


class _SparseAttention(torch.autograd.Function):
    """The output ``C v`` by ISTA on ``B = C / t``, so that the threshold of all rows is 1.

    The inputs m and t are ``2 / lam`` and the threshold ``step lam / 2`` of each row. The second
    output holds the residuals ``q - C k`` of all iterations, for the backward pass.
    """

    @staticmethod
    def forward(q, k, v, m, t, hidden, settings):  # type: ignore[no-untyped-def]
        out = q.new_empty(*q.shape[:2], v.shape[-1])
        residuals = q.new_empty(settings.n_iter if settings.trained else 0, *q.shape)
        scratch = Scratch()
        with torch.autocast(q.device.type, enabled=False):
            for block in split_tiles(q, k, settings.offset):
                Q, M, T, R = (block.of(x) for x in (q, m, t, residuals))
                K = block.keys(k)
                B, residual = scratch.products(Q * M, K), Q
                for i in range(settings.n_iter):
                    if i:
                        residual = torch.addcmul(Q, torch.bmm(B, K), T, value=-1)
                        B.baddbmm_(residual * M, K.mT)
                    if settings.trained:
                        R[i] = residual
                    _shrink_(B, settings.nonnegative)
                    _restrict_(B, block, hidden, settings)
                block.of(out).copy_(torch.bmm(B, block.keys(v)).mul_(T))
        return out, residuals

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, hidden, ctx.settings = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, hidden, *output)

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[no-untyped-def]
        q, k, v, m, t, hidden, out, residuals = ctx.saved_tensors
        if is_one_of_many(grad):
            with torch.autocast(q.device.type, enabled=False):
                output = _iterate_explicitly(q, k, hidden, ctx.settings)
                return *vjp(output, (q, k, v, m, t), grad), None, None
        gradients = _Gradients(
            torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v),
            torch.zeros_like(m), (grad * out).sum(dim=-1, keepdim=True) / t,
        )  # fmt: skip
        scratches = [Scratch() for _ in range(ctx.settings.n_iter)]
        pulls = Scratch()
        with torch.autocast(q.device.type, enabled=False):
            for block in split_tiles(q, k, ctx.settings.offset):
                Q, M, T, G, R = (block.of(x) for x in (q, m, t, grad, residuals))
                K, V = block.keys(k), block.keys(v)
                codes = _recompute_codes(R, K, M, block, hidden, ctx.settings, scratches)
                gradients.add_block(block, Q, K, M, T, R, codes, pulls.products(G * T, V))
                block.keys(gradients.v).baddbmm_(codes[-1].mT, G * T)
        return *gradients, None, None


def _iterate_explicitly(
    q: Tensor, k: Tensor, hidden: Tensor | None, settings: _Settings
) -> Callable[..., Tensor]:
    """Return the function of q, k, v, ``m = 2 / lam`` and ``t = step lam / 2`` without blocks."""
    allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    allowed = allowed if settings.offset is None else allowed.tril(settings.offset)
    if settings.zero_diagonal:
        allowed = allowed ^ torch.eye(*allowed.shape, dtype=torch.bool, device=q.device)
    absent = ~allowed if hidden is None else ~allowed | hidden

    def output(q: Tensor, k: Tensor, v: Tensor, m: Tensor, t: Tensor) -> Tensor:
        penalty = SparsePenalty(2 / m, nonnegative=settings.nonnegative, hidden=absent)
        steps = [t * m] * settings.n_iter
        return repeated(proximal_map(q, k, penalty), torch.zeros_like(q @ k.mT), steps) @ v

    return output


def _recompute_codes(
    R: Tensor,
    K: Tensor,
    M: Tensor,
    block: Tile,
    hidden: Tensor | None,
    settings: _Settings,
    scratches: list[Scratch],
) -> list[Tensor]:
    """Return a block's codes of all iterations, by one product each from their residuals."""
    codes = [scratches[0].products(R[0] * M, K)]
    for i in range(settings.n_iter):
        if i:
            out = scratches[i].like(codes[-1])
            codes.append(torch.baddbmm(codes[-1], R[i] * M, K.mT, out=out))
        _shrink_(codes[-1], settings.nonnegative)
        _restrict_(codes[-1], block, hidden, settings)
    return codes


class _Gradients(NamedTuple):
    """Gradients with respect to the inputs of `_SparseAttention`, added block by block."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    t: Tensor

    def add_block(
        self,
        block: Tile,
        Q: Tensor,
        K: Tensor,
        M: Tensor,
        T: Tensor,
        R: Tensor,
        codes: list[Tensor],
        dB: Tensor,
    ) -> None:
        """Go back through a block's iterations from dB, the gradient of its last codes.

        Q, M and T are the block's rows of q, m and t, K its keys, and R holds ``q - C k`` of each
        iteration. The gradient of v is added elsewhere.
        """
        gq, gm, gt = (block.of(x) for x in (self.q, self.m, self.t))
        gk = block.keys(self.k)
        for i in reversed(range(len(codes))):
            # The gradient is zero where the code is: hidden, or under the threshold.
            torch.ops.aten.softshrink_backward.grad_input(dB, codes[i], 0.0, grad_input=dB)
            D = torch.bmm(dB, K)
            gk.baddbmm_(dB.mT, R[i] * M)
            gq.addcmul_(D, M)
            gm.add_((D * R[i]).sum(dim=-1, keepdim=True))
            if i:
                gt.sub_((D * (Q - R[i])).sum(dim=-1, keepdim=True) * M / T)
                D.mul_(M * T)
                gk.baddbmm_(codes[i - 1].mT, D, alpha=-1)
                dB.baddbmm_(D, K.mT, alpha=-1)
