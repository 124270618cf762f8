"""Attention by the Laplace kernel in tiles, with distances from products in float64."""

from typing import Any

import torch
from torch import Tensor

from ..attention import blocks_serve, drop_hidden, is_one_of_many, query_offset
from ..attention.masks import masked_softmax
from ..attention.precision import unlowered
from ..attention.tiles import Scratch, Tile, flatten_heads, flatten_mask, hide_, split_tiles
from .logits import distances, key_nearest_zero

_LOG2_E = 1.4426950408889634  # exp2 is faster than exp, many times where it gives zeros
_LARGEST = 2.0**8  # of centred tokens over the bandwidth: logits are then off by 1e-5 at most


def laplace_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bandwidth: Tensor,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor | None:
    """Attention with logits ``-|q_i - k_j| / bandwidth`` in float32, or None.

    Distances come from products in float64 of tokens relative to a centre. They are off by ``1e-8
    |x|`` where tokens x coincide and by ``1e-16 |x|^2 / r`` at distance r: less than in float32
    where none is far from the centre. None says that some are, or that gradients are needed that
    `_LaplaceAttention` lacks.
    """
    if q.dtype != torch.float32 or not blocks_serve(q, mask):
        return None
    centre = key_nearest_zero(k, mask).double()
    rows, keys = _features(q, centre), drop_hidden(_features(k, centre), mask)
    reach = max(x[..., -1].max().item() for x in (rows, keys))
    if not reach <= (_LARGEST * bandwidth.detach().min().item()) ** 2:
        return None
    batch = q.shape[:-2]
    inverse = flatten_heads((1 / bandwidth).expand(*batch, 1, 1))
    inputs = (flatten_heads(x) for x in (q, k, v.float()))
    offset = query_offset(q, k) if is_causal else None
    out: Tensor = _LaplaceAttention.apply(
        *inputs,
        inverse,
        flatten_heads(rows),
        flatten_heads(keys),
        flatten_mask(mask, batch),
        offset,
    )[0]
    return out.view(*q.shape[:-1], v.shape[-1]).to(v.dtype)


def _features(x: Tensor, centre: Tensor) -> Tensor:
    """Return ``(c, 1, |c|^2)`` of tokens c relative to a centre, in float64."""
    features = centre.new_ones(*x.shape[:-1], x.shape[-1] + 2)
    torch.sub(x.detach(), centre, out=features[..., :-2])
    features[..., -1] = features[..., :-2].norm(dim=-1).square_()
    return features


class _LaplaceAttention(torch.autograd.Function):
    """The output for ``inverse = 1 / bandwidth``, and each row's sum as a logarithm to base 2."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        inverse: Tensor,
        rows: Tensor,
        keys: Tensor,
        mask: Tensor | None,
        offset: int | None,
    ) -> tuple[Tensor, Tensor]:
        out, log_sums = v.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(*q.shape[:2], 1)
        measure, scale = _Measure(rows, keys), -_LOG2_E * inverse
        for tile in split_tiles(q, k, offset):
            S = measure(tile).mul_(scale[tile.heads])
            hide_(S, tile, mask, offset, _LOG2_E)
            largest = S.amax(dim=-1, keepdim=True)
            largest.masked_fill_(largest == -torch.inf, 0)
            total = S.sub_(largest).exp2_().sum(dim=-1, keepdim=True)
            total.masked_fill_(total == 0, 1)
            tile.of(out).copy_(torch.bmm(S, tile.keys(v)).div_(total))
            tile.of(log_sums).copy_(largest + total.log2_())
        return out, log_sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.offset = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @unlowered
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, inverse, rows, keys, mask, out, log_sums = ctx.saved_tensors
        offset = ctx.offset
        if is_one_of_many(gradient):
            create_graph, inputs = torch.is_grad_enabled(), (q, k, v, inverse)
            with torch.enable_grad():
                inputs = tuple(x if x.requires_grad else x.clone().requires_grad_() for x in inputs)
                explicit = _attend_explicitly(*inputs, mask, offset)
                found = torch.autograd.grad(explicit, inputs, gradient, create_graph=create_graph)
            return *found, None, None, None, None
        shift, dv = -(gradient * out).sum(dim=-1, keepdim=True), torch.zeros_like(v)
        d_inverse = torch.zeros_like(inverse)
        measure, scale = _Measure(rows, keys), -_LOG2_E * inverse
        of_rows, of_keys = torch.empty_like(rows), torch.zeros_like(keys)
        logits, pulls = Scratch(), Scratch()
        for tile in split_tiles(q, k, offset):
            G, V, r = tile.of(gradient), tile.keys(v), measure(tile)
            S = torch.mul(r, scale[tile.heads], out=logits.like(r))
            P = hide_(S, tile, mask, offset, _LOG2_E).sub_(tile.of(log_sums)).exp2_()
            tile.keys(dv).baddbmm_(P.mT, G)
            dS = pulls.products(G, V).add_(tile.of(shift)).mul_(P)
            if ctx.needs_input_grad[3]:
                d_inverse[tile.heads] -= torch.mul(dS, r, out=P).sum(dim=(-2, -1), keepdim=True)
            if bool(r.amin() == 0):
                r.masked_fill_(r == 0, torch.inf)
            W = measure.squares.empty(rows, *r.shape).copy_(dS.div_(r))
            tile.of(of_rows).copy_(torch.bmm(W, tile.keys(keys)))
            tile.keys(of_keys).baddbmm_(W.mT, tile.of(rows))
        dq, dk = (inverse * _pull(s, x) for s, x in ((of_rows, rows), (of_keys, keys)))
        return dq.to(q.dtype), dk.to(k.dtype), dv, d_inverse, None, None, None, None


def _pull(sums: Tensor, features: Tensor) -> Tensor:
    """Return ``sum_j w_ij (y_j - x_i)`` from the sums of the features of y and those of x."""
    return sums[..., :-2] - sums[..., -2:-1] * features[..., :-2]


class _Measure:
    """Distances of the queries and keys of a tile, by one product of features in float64.

    The distances of the next tile overwrite those of the last.
    """

    def __init__(self, rows: Tensor, keys: Tensor) -> None:
        self.rows, self.keys = rows, torch.cat([-2 * keys[..., :-2], keys[..., [-1, -2]]], dim=-1)
        self.squares, self.distances = Scratch(), Scratch()

    def __call__(self, tile: Tile) -> Tensor:
        squares = self.squares.products(tile.of(self.rows), tile.keys(self.keys))
        narrow = self.distances.empty(squares.new_empty(0, dtype=torch.float32), *squares.shape)
        return narrow.copy_(squares).clamp_(min=0).sqrt_()


def _attend_explicitly(
    q: Tensor, k: Tensor, v: Tensor, inverse: Tensor, mask: Tensor | None, offset: int | None
) -> Tensor:
    """The output of `_LaplaceAttention` by the whole matrix, from differences."""
    whole = Tile(slice(None), slice(0, q.shape[1]), k.shape[1])
    logits = hide_(distances(q, k) * -inverse, whole, mask, offset)
    return masked_softmax(logits, None) @ v
