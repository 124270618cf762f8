"""Local linear attention: affine fits at the queries, exact or by a probe from the tokens."""

from typing import Literal

import torch
from torch import Tensor

from ..attention import Call, Operator, check_positive, map_query_blocks
from ..kernel_smoothing.logits import block_softmax

Probe = Literal["learned", "exact"]


class LocalLinear(Operator):
    """Softmax attention less a probe times the covariance of keys and values: local linear fits.

    ::

        p_i = softmax(scale q_i k^T),   m_i = p_i k
        o_i = p_i v - r_i Cov_{p_i}(k, v) = sum_j p_ij (1 + r_i.(m_i - k_j)) v_j

    With ``probe="exact"``, ``r_i = (m_i - q_i) (Cov_{p_i}(k, k) + reg tr(Cov_{p_i}(k, k)) I)^-1``:
    o_i is the value at q_i of the affine function that minimises

    ::

        sum_j p_ij |v_j - a - (k_j - q_i) B|^2 + reg tr(Cov_{p_i}(k, k)) |B|_F^2

    which is `twinsolve.solvers.kernel_smoothing.local_linear_regression` with a bandwidth of
    ``scale ** -0.5`` if all keys have equal norm. Where the keys with weight are one point up to
    rounding, or their covariance underflows, there is no slope. It takes ``O(n_queries n_keys
    d^2)`` operations, and d numbers for each pair of a block. With ``probe="learned"``, as in
    Parallax, the tokens of the queries give r through a projection of the shell, with r = 0 at
    first, where the layer is `Softmax`; it costs twice as much. Blocks of queries are recomputed in
    the backward pass.

    Rows sum to one, and have negative entries.

    Parameters
    ----------
    probe : {"learned", "exact"}, default="learned"
    reg : float, default=0.01
        > 0; ridge penalty of the exact slope, relative to the spread of the keys.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.

    Raises
    ------
    ValueError
        If `probe` is neither of these, or a number is not positive.

    References
    ----------
    Cleveland (1979); EQUATIONS TR-9.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.online_regression import LocalLinear
    >>> line = torch.tensor([[-1.0], [0.0], [1.0]])
    >>> fit = LocalLinear("exact", reg=1e-6)
    >>> fit(torch.tensor([[0.5], [3.0]]), line, 2 * line).round(decimals=3)
    tensor([[1.],
            [6.]])
    """

    row_stochastic = True
    additive_masks = True

    def __init__(
        self, probe: Probe = "learned", *, reg: float = 0.01, scale: float | None = None
    ) -> None:
        super().__init__()
        if probe not in ("learned", "exact"):
            raise ValueError(f"probe: must be 'learned' or 'exact', got {probe!r}")
        self.probe, self.reg = probe, check_positive(reg, "reg")
        self.scale = None if scale is None else check_positive(scale, "scale")
        gates: dict[str, Literal["token", "feature"]] = {"probe": "feature"}
        self.query_gates = gates if probe == "learned" else {}

    def attend(self, call: Call) -> Tensor:
        def block(rows: Tensor, start: int) -> Tensor:
            A = self._weights(call, rows, start)
            return (A @ call.v.to(A.dtype)).to(call.v.dtype)

        return map_query_blocks(block, call.q)

    def coefficients(self, call: Call) -> Tensor:
        return self._weights(call, call.q, 0).to(call.q.dtype)

    def _weights(self, call: Call, rows: Tensor, start: int) -> Tensor:
        """Return rows of the matrix for the queries `rows`, of which the first is query `start`."""
        wide = torch.promote_types(rows.dtype, torch.float32)
        q, k = rows.to(wide), call.k.to(wide)
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        p = block_softmax((scale * q) @ k.mT, call.pairs_of(rows, start))
        if self.probe == "exact":
            return p * (1 - _along_exact_probe(p, q, k, self.reg))
        if call.context is None or call.context.query_gates is None:
            return p
        r = call.context.query_gates.to(wide)[..., start : start + rows.shape[-2], :]
        along = r @ k.mT
        return p * (1 + (p * along).sum(dim=-1, keepdim=True) - along)

    def extra_repr(self) -> str:
        scale = "head_dim ** -0.5" if self.scale is None else f"{self.scale:.4g}"
        return f"probe={self.probe!r}, reg={self.reg:.4g}, scale={scale}"


def _along_exact_probe(p: Tensor, q: Tensor, k: Tensor, reg: float) -> Tensor:
    """Return ``r_i.(k_j - m_i)`` for the exact probe, of shape (..., n_queries, n_keys).

    Keys are taken relative to the heaviest one of each query, so that nothing cancels far from the
    origin, or where the other weights are tiny.
    """
    heaviest = p.detach().argmax(dim=-1, keepdim=True).expand(*q.shape)
    origin = k.detach().gather(-2, heaviest)
    x = k[..., None, :, :] - origin[..., None, :]
    mean = p[..., None, :] @ x
    offset, x = origin + mean[..., 0, :] - q, x - mean
    spread = (p[..., None] * x).mT @ x
    total = spread.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None]
    flat = _are_one_point(p, x, k) | (total <= torch.finfo(k.dtype).tiny / torch.finfo(k.dtype).eps)
    identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    A = torch.where(flat[..., None], identity, spread + reg * total[..., None] * identity)
    r = torch.linalg.solve(A, offset.masked_fill(flat, 0))
    return (x @ r[..., None])[..., 0]


def _are_one_point(p: Tensor, x: Tensor, k: Tensor) -> Tensor:
    """Whether keys with weight, at x from their mean, differ by rounding: (..., n_queries, 1)."""
    p, x, k = p.detach(), x.detach(), k.detach()
    span, largest = (
        torch.where(p > 0, y, 0).amax(dim=-1, keepdim=True)
        for y in (x.square().sum(dim=-1), k.square().sum(dim=-1)[..., None, :])
    )
    return span <= (8 * torch.finfo(k.dtype).eps) ** 2 * largest
