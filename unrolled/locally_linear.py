"""Masked affine attention: reconstruct each query from its nearest keys by weights of sum one."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import (
    Call,
    Operator,
    blocks_serve,
    check_count,
    check_positive,
    combine_masks,
    has_static_value,
    is_one_of_many,
    map_query_blocks,
    mask_rows,
    vjp,
)
from .attention.precision import unlowered
from .attention.tiles import Scratch, flatten_heads, flatten_mask, hide_, split_tiles
from .block_size import block_size
from .kernel_smoothing import distances

_ROWS = 256


def affine_weights(
    q: Tensor, k: Tensor, *, n_neighbors: int, reg: float, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nearest keys of each query and the affine weights that reconstruct it from them.

    Row i minimises ``|q_i - sum_a c_a k_a|^2 + reg tr(g) |c|^2`` with ``sum_a c_a = 1`` over its
    `n_neighbors` nearest allowed keys, of equally distant ones the first, with
    ``g_ab = (k_a - q_i) . (k_b - q_i)``. Distances and weights are computed in float64 whatever the
    input: near ties between neighbours and local systems of condition up to ``1 / reg`` do not
    survive float32.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    n_neighbors : int
    reg : float
    allowed : bool Tensor broadcastable to (..., n_queries, n_keys), optional
        With fewer allowed keys than `n_neighbors`, those are used. Other weights are zero.

    Returns
    -------
    weights : Tensor of shape (..., n_queries, n_neighbors)
        In the dtype of q; zeros for a query without allowed keys.
    indices : Tensor of int64, of the same shape
        The nearest keys, in the order of the weights.

    References
    ----------
    EQUATIONS SE-9, QK-LLE.
    """
    dtype, q, k = q.dtype, q.double(), k.double()
    with torch.no_grad():
        key_distances = distances(q, k)
        if allowed is not None:
            key_distances = key_distances.masked_fill(~allowed, torch.inf)
        if not has_static_value(k.shape[-2]) or k.shape[-2] < n_neighbors:
            key_distances = F.pad(key_distances, (0, n_neighbors), value=torch.inf)
        indices = _find_nearest(key_distances, n_neighbors)
        valid = key_distances.gather(-1, indices) < torch.inf
        indices = indices.clamp(max=k.shape[-2] - 1)
    differences = (_gather_rows(k, indices) - q[..., None, :]) * valid[..., None]
    solution = torch.linalg.solve(_local_system(differences, valid, reg), valid.to(q.dtype)) * valid
    return (solution / _total(solution, valid)).to(dtype), indices


def _local_system(differences: Tensor, valid: Tensor, reg: float) -> Tensor:
    """Return ``g + reg tr(g) I`` of the differences, which are 0 for absent keys."""
    gram = differences @ differences.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    ridge = torch.where(trace > 0, reg * trace, 1.0)[..., None] + (~valid).to(gram.dtype)
    return gram + torch.diag_embed(ridge)


def _total(solution: Tensor, valid: Tensor) -> Tensor:
    """Return the sum of the solution of each query, 1 for a query without allowed keys."""
    total = solution.sum(dim=-1, keepdim=True)
    return torch.where(valid.any(dim=-1, keepdim=True), total, 1.0)


def _find_nearest(distances: Tensor, n_neighbors: int) -> Tensor:
    """Return the indices of each row's smallest distances, ascending; of equal ones the first."""
    kth = distances.topk(n_neighbors, dim=-1, largest=False).values[..., -1:]
    is_closer, is_tied = distances < kth, distances == kth
    n_tied = n_neighbors - is_closer.sum(dim=-1, keepdim=True)
    chosen = is_closer | (is_tied & (is_tied.cumsum(dim=-1) <= n_tied))
    return chosen.to(torch.uint8).topk(n_neighbors, dim=-1).indices.sort(dim=-1).values


def _find_nearest_by_products(
    q: Tensor, k: Tensor, n_neighbors: int, allowed: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return the nearest keys, ascending, and whether they are allowed, if products settle them.

    ``2 q_i . k_j - |k_j|^2`` orders the keys of a query as distances do. None says that in some
    row the last neighbour and the next key are closer than rounding: ties are to be seen exactly.
    """
    squares = k.square().sum(dim=-1)
    largest = q.square().sum(dim=-1) + 2 * squares.amax(dim=-1, keepdim=True)
    rounding = 4 * (q.shape[-1] + 4) * torch.finfo(q.dtype).eps * largest
    indices = torch.empty(*q.shape[:2], n_neighbors, dtype=torch.int64)
    valid, scratch, doubled = torch.empty_like(indices, dtype=torch.bool), Scratch(), 2 * q
    for tile in split_tiles(q, k, None):
        nearness = scratch.products(tile.of(doubled), tile.keys(k))
        nearness.sub_(tile.keys(squares)[:, None])
        nearness = hide_(nearness, tile, allowed, None)
        best, index = nearness.topk(n_neighbors + 1, dim=-1)
        last, next_one = best[..., -2:].unbind(dim=-1)
        settled = (last - next_one > rounding[tile.heads, tile.rows]) | (last == -torch.inf)
        if not bool(settled.all()):
            return None
        tile.of(indices).copy_(index[..., :-1])
        tile.of(valid).copy_(best[..., :-1] > -torch.inf)
    indices, order = indices.sort(dim=-1)
    return indices, valid.gather(-1, order)


class _LocallyLinear(torch.autograd.Function):
    """The values of the nearest keys by affine weights, and the local solutions and factors.

    All heads are one: q is (queries, d), k and v are (keys, width), and `indices` are of all keys.
    """

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, indices: Tensor, valid: Tensor, reg: float
    ) -> tuple[Tensor, ...]:
        solutions = torch.empty(indices.shape, dtype=torch.float64)
        factors = solutions.new_empty(*indices.shape, indices.shape[-1])
        pivots, keys = torch.empty(indices.shape, dtype=torch.int32), k.double()
        for rows in _split_rows(len(q)):
            part = valid[rows]
            system = _local_system(_differences(q, keys, indices, valid, rows), part, reg)
            factors[rows], pivots[rows] = factor = torch.linalg.lu_factor(system)
            ones = part.double()[..., None]
            solutions[rows] = torch.linalg.lu_solve(*factor, ones).squeeze(-1) * part
        weights = (solutions / _total(solutions, valid)).to(v.dtype)
        out = F.embedding_bag(indices, v, per_sample_weights=weights, mode="sum")
        return out, solutions, factors, pivots

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.reg = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    @unlowered
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, indices, valid, solutions, factors, pivots = ctx.saved_tensors
        reg = ctx.reg
        if is_one_of_many(gradient):

            def output(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                differences = (k.double()[indices] - q.double()[:, None]) * valid[..., None]
                system = _local_system(differences, valid, reg)
                solution = torch.linalg.solve(system, valid.double()) * valid
                weights = (solution / _total(solution, valid)).to(v.dtype)
                return (weights[:, None] @ v[indices]).squeeze(-2)

            return *vjp(output, (q, k, v), gradient), None, None, None
        keys, dq, dv = k.double(), torch.empty_like(q), torch.zeros_like(v)
        dk, totals = torch.zeros_like(keys), _total(solutions, valid)
        for rows in _split_rows(len(q)):
            index, part, s, total = indices[rows], valid[rows], solutions[rows], totals[rows]
            G, weights = gradient[rows], s / total
            values = v.index_select(0, index.flatten()).view(*index.shape, -1)
            d_weights = torch.bmm(G[:, None], values.mT).squeeze(1).double()
            ds = (d_weights - (d_weights * weights).sum(-1, keepdim=True)) / total * part
            D = _differences(q, keys, indices, valid, rows)
            y = torch.linalg.lu_solve(factors[rows], pivots[rows], ds[..., None]).squeeze(-1)
            # The system has the gradient -y s^T, its ridge that of the trace, 0 for a trace of 0.
            of_trace = -2 * reg * (y * s).sum(-1)
            pulls = torch.stack([s, y], dim=1) @ D
            dD = D.mul_(of_trace[:, None, None])
            dD.baddbmm_(torch.stack([y, s], dim=-1), pulls, alpha=-1)
            dq[rows] = -dD.sum(dim=1)
            dk.index_add_(0, index.flatten(), dD.flatten(0, 1))
            spread = weights.to(v.dtype)[..., None] * G[:, None]
            dv.index_add_(0, index.flatten(), spread.flatten(0, 1))
        return dq, dk.to(k.dtype), dv, None, None, None


def _differences(q: Tensor, keys: Tensor, indices: Tensor, valid: Tensor, rows: slice) -> Tensor:
    """Return ``k_a - q_i`` of some queries and their nearest keys, 0 for absent keys."""
    index, part = indices[rows], valid[rows]
    nearest = keys.index_select(0, index.flatten()).view(*index.shape, -1)
    nearest.sub_(q[rows, None].to(keys.dtype))
    return nearest if bool(part.all()) else nearest.mul_(part[..., None])


def _split_rows(n: int) -> list[slice]:
    size = block_size(_ROWS)
    return [slice(at, at + size) for at in range(0, n, size)]


def _gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of x (..., n, d) at indices (..., m, a), without expanding x over m."""
    batch, (n, d) = indices.shape[:-2], x.shape[-2:]
    x = x.expand(*batch, n, d)
    offsets = torch.arange(math.prod(batch), device=x.device) * n
    return x.reshape(-1, d)[indices + offsets.reshape(*batch, 1, 1)]  # (..., m, a, d)


class LocallyLinear(Operator):
    """Masked affine attention: the weights of locally linear embedding, on queries and keys.

    ``output_i = sum_{a in N_i} c_ia v_a`` with N_i the `n_neighbors` nearest visible keys and c_i
    the weights of sum one that best reconstruct q_i from them (see `affine_weights`). Weights are
    signed; the output does not change under rotation, scaling and translation of q and k together.
    The choice of neighbours is piecewise constant: gradients flow through the weights alone.

    Parameters
    ----------
    n_neighbors : int
        >= 1; where fewer keys are visible, those are used.
    reg : float, default=1e-3
        Regularisation > 0 relative to the trace of the local Gram matrix, as in scikit-learn.
    zero_diagonal : bool, default=False
        Exclude key i from the neighbours of query i, for keys that contain the query.

    Raises
    ------
    ValueError
        If a number is out of range, or a mask holds a bias.

    References
    ----------
    Roweis and Saul (2000); EQUATIONS SE-9, QK-LLE.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import LocallyLinear
    >>> q, k = torch.tensor([[1.0]]), torch.tensor([[0.0], [2.0], [9.0]])
    >>> LocallyLinear(2).matrix(q, k)
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    row_stochastic = True

    def __init__(self, n_neighbors: int, *, reg: float = 1e-3, zero_diagonal: bool = False) -> None:
        super().__init__()
        self.n_neighbors = check_count(n_neighbors, "n_neighbors", 1)
        self.reg = check_positive(reg, "reg")
        self.zero_diagonal = zero_diagonal
        self.square_only = zero_diagonal

    def attend(self, call: Call) -> Tensor:
        return self._attend(call, call.v)

    def coefficients(self, call: Call) -> Tensor:
        return self._attend(call, None)

    def _attend(self, call: Call, v: Tensor | None) -> Tensor:
        k, n_keys = call.k, call.k.shape[-2]
        n_neighbors = self.n_neighbors
        if has_static_value(n_keys):
            n_neighbors = min(n_neighbors, n_keys)
        allowed = call.hiding("LocallyLinear").pairs()
        if self.zero_diagonal:
            off_diagonal = ~torch.eye(n_keys, dtype=torch.bool, device=k.device)
            allowed = combine_masks(allowed, off_diagonal)
        if v is not None and blocks_serve(call.q) and n_neighbors < n_keys:
            out = self._attend_fast(call.q, k, v, allowed)
            if out is not None:
                return out

        def block(rows: Tensor, start: int) -> Tensor:
            seen = mask_rows(allowed, rows, start)
            weights, indices = affine_weights(
                rows, k, n_neighbors=n_neighbors, reg=self.reg, allowed=seen
            )
            if v is None:
                zeros = weights.new_zeros(*weights.shape[:-1], n_keys)
                return zeros.scatter_add(-1, indices, weights)
            return (weights[..., None, :] @ _gather_rows(v, indices)).squeeze(-2)

        return map_query_blocks(block, call.q)

    def _attend_fast(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None
    ) -> Tensor | None:
        """Attend where products settle the nearest keys; else return None."""
        rows, keys = (flatten_heads(x.detach().double()) for x in (q, k))
        seen = flatten_mask(allowed, q.shape[:-2])
        found = _find_nearest_by_products(rows, keys, self.n_neighbors, seen)
        if found is None:
            return None
        indices, valid = found
        indices += k.shape[-2] * torch.arange(len(indices))[:, None, None]
        wide = torch.promote_types(v.dtype, torch.float32)
        out: Tensor = _LocallyLinear.apply(
            q.reshape(-1, q.shape[-1]), k.reshape(-1, k.shape[-1]),
            v.reshape(-1, v.shape[-1]).to(wide), indices.flatten(0, 1), valid.flatten(0, 1),
            self.reg,
        )[0]  # fmt: skip
        return out.view(*q.shape[:-1], v.shape[-1]).to(v.dtype)

    def extra_repr(self) -> str:
        return (
            f"n_neighbors={self.n_neighbors}, reg={self.reg:.4g}, "
            f"zero_diagonal={self.zero_diagonal}"
        )
