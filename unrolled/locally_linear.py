"""Masked affine attention: reconstruct each query from its nearest keys by weights of sum one."""

import math

import torch
from torch import Tensor

from .attention import (
    Call,
    Operator,
    check_count,
    check_positive,
    combine_masks,
    has_static_value,
    map_query_blocks,
    mask_rows,
)
from .kernel_smoothing import distances


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
        With fewer allowed keys than `n_neighbors`, those are used.

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
        indices = _find_nearest(key_distances, n_neighbors)
        valid = key_distances.gather(-1, indices) < torch.inf
    differences = (_gather_rows(k, indices) - q[..., None, :]) * valid[..., None]
    gram = differences @ differences.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    ridge = torch.where(trace > 0, reg * trace, 1.0)[..., None] + (~valid).to(q.dtype)
    solution = torch.linalg.solve(gram + torch.diag_embed(ridge), valid.to(q.dtype))
    solution = solution * valid
    total = solution.sum(dim=-1, keepdim=True)
    weights = solution / torch.where(valid.any(dim=-1, keepdim=True), total, 1.0)
    return weights.to(dtype), indices


def _find_nearest(distances: Tensor, n_neighbors: int) -> Tensor:
    """Return the indices of each row's smallest distances, ascending; of equal ones the first."""
    kth = distances.topk(n_neighbors, dim=-1, largest=False).values[..., -1:]
    is_closer, is_tied = distances < kth, distances == kth
    n_tied = n_neighbors - is_closer.sum(dim=-1, keepdim=True)
    chosen = is_closer | (is_tied & (is_tied.cumsum(dim=-1) <= n_tied))
    return chosen.to(torch.uint8).topk(n_neighbors, dim=-1).indices.sort(dim=-1).values


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

        def block(rows: Tensor, start: int) -> Tensor:
            seen = mask_rows(allowed, rows, start)
            weights, indices = affine_weights(
                rows, k, n_neighbors=n_neighbors, reg=self.reg, allowed=seen
            )
            if v is None:
                zeros = weights.new_zeros(*weights.shape[:-1], n_keys)
                return zeros.scatter(-1, indices, weights)
            return (weights[..., None, :] @ _gather_rows(v, indices)).squeeze(-2)

        return map_query_blocks(block, call.q)

    def extra_repr(self) -> str:
        return (
            f"n_neighbors={self.n_neighbors}, reg={self.reg:.4g}, "
            f"zero_diagonal={self.zero_diagonal}"
        )
