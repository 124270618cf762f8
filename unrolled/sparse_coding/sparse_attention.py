"""Sparse attention: the code of each query in the keys, by unrolled ISTA iterations."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..attention import (
    Context,
    Operator,
    Positive,
    boolean_mask,
    causal_mask,
    check_count,
    combine_masks,
    map_query_blocks,
)


def soft_threshold(z: Tensor, threshold: Tensor | float) -> Tensor:
    """``S_t(z) = sign(z) max(|z| - t, 0)``, the proximal operator of ``t |.|_1``."""
    return z.sign() * (z.abs() - threshold).clamp(min=0)


def safe_step(k: Tensor, visible: Tensor | None = None) -> Tensor:
    """Step ``1 / |K^T K|_F``, never longer than ``1 / |K|_2^2`` and differentiable everywhere.

    Parameters
    ----------
    k : Tensor of shape (..., n_keys, d)
    visible : bool Tensor broadcastable to (..., n_queries, n_keys), optional
        Each query's step is that of the keys it sees, so that hidden ones do not leak through it.
        If that differs from query to query, an n_keys x n_keys matrix is built.

    Returns
    -------
    Tensor of shape (..., 1 or n_queries, 1)
        In float64, in which fourth powers of keys do not overflow; 1 where the keys are all zero or
        none is visible.

    References
    ----------
    EQUATIONS LS-3.
    """
    k = k.double()
    if visible is not None:
        k = torch.where(visible.any(dim=-2)[..., None], k, 0)
    if visible is None or visible.shape[-2] == 1:
        squared = (k.mT @ k).square().sum(dim=(-2, -1))[..., None, None]
    else:
        # |K_i^T K_i|_F^2 = sum_jl m_ij m_il (k_j.k_l)^2 for the keys that query i sees.
        seen = visible.double()
        squared = ((seen @ (k @ k.mT).square()) * seen).sum(dim=-1, keepdim=True)
    zero = squared == 0
    return torch.where(zero, 1, torch.where(zero, 1, squared).rsqrt())


def ista_codes(
    q: Tensor,
    k: Tensor,
    *,
    lam: Tensor | float,
    step: Tensor | float,
    n_iter: int,
    nonnegative: bool = False,
    allowed: Tensor | None = None,
) -> Tensor:
    """Run `n_iter` ISTA iterations on ``min_C |q - C k|_F^2 + lam |C|_1`` from ``C = 0``.

    ``C <- S_{step lam / 2}( C + step (q - C k) k^T )``; entries that are not allowed are set to
    zero after each step, which is exact for the problem in which they are absent.

    Parameters
    ----------
    q : Tensor of shape (..., n_queries, d)
    k : Tensor of shape (..., n_keys, d)
    lam, step : float or Tensor broadcastable to (..., n_queries, 1)
    n_iter : int
    nonnegative : bool, default=False
        One-sided threshold: the problem with ``C >= 0``.
    allowed : bool Tensor broadcastable to (..., n_queries, n_keys), optional

    Returns
    -------
    Tensor of shape (..., n_queries, n_keys)

    References
    ----------
    EQUATIONS SE-15, SE-15n, SE-18 and FF-9 (the order ``(C k) k^T``); the printed iterations have
    faults E3-d to E3-h.
    """
    codes = None
    threshold = step * lam / 2
    for _ in range(n_iter):
        z = step * q @ k.mT if codes is None else codes + step * ((q - codes @ k) @ k.mT)
        codes = (z - threshold).clamp(min=0) if nonnegative else soft_threshold(z, threshold)
        if allowed is not None:
            codes = codes.masked_fill(~allowed, 0)
    return torch.zeros_like(q @ k.mT) if codes is None else codes


class SparseCoding(Operator):
    """Sparse attention: code each query sparsely in the keys, combine the values alike.

    `n_iter` ISTA iterations from zero on ::

        C* = argmin_C |q - C k|_F^2 + lam |C|_1,      output C v

    Rows are separate problems: masked keys are absent from a row's problem, and a causal mask gives
    each token the problem over its own prefix. Codes are signed and need not sum to one. Queries
    are taken in blocks, recomputed in the backward pass; only masks that differ from query to query
    cost an n_keys x n_keys matrix, for the step lengths. bfloat16 and float16 iterate in float32.

    Parameters
    ----------
    lam : float
        Penalty > 0 on the scale above. A code is zero iff ``lam >= 2 max_j |q . k_j|``. The papers
        give no default.
    n_iter : int, default=5
        Number of iterations, >= 0. A plain attribute: it may be changed later.
    relative_step : float, default=1.0
        Step length in units of the safe step ``1 / |K^T K|_F``; above ``|K^T K|_F / |K|_2^2`` the
        iteration may diverge.
    zero_diagonal : bool, default=False
        Exclude key i from the code of query i: self-expression, for keys that contain the query.
    nonnegative : bool, default=False
        Codes >= 0.
    num_heads : int, optional
        One `lam` and `relative_step` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` and `relative_step` (their logarithms).

    Raises
    ------
    ValueError
        If a number is out of range, or a mask holds a finite bias.

    References
    ----------
    EQUATIONS SE-12, SE-15 to SE-18, FF-9, LS-3.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import SparseCoding
    >>> q = torch.tensor([[3.0, 0.5]])
    >>> SparseCoding(2.0, n_iter=50).matrix(q, torch.eye(2)).round(decimals=3)
    tensor([[2., 0.]])
    """

    def __init__(
        self,
        lam: float,
        *,
        n_iter: int = 5,
        relative_step: float = 1.0,
        zero_diagonal: bool = False,
        nonnegative: bool = False,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.lam, self.relative_step = (
            Positive(
                value,
                name=name,
                num_heads=num_heads,
                learnable=learnable,
                device=device,
                dtype=dtype,
            )
            for name, value in (("lam", lam), ("relative_step", relative_step))
        )
        self.n_iter = check_count(n_iter, "n_iter", 0)
        self.zero_diagonal = zero_diagonal
        self.nonnegative = nonnegative
        self.square_only = zero_diagonal

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        return self._attend(q, k, v, mask, is_causal)

    def coefficients(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        return self._attend(q, k, None, mask, is_causal)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        visible = None if mask is None else boolean_mask(mask, k.shape[-2], "SparseCoding")
        if is_causal:
            visible = combine_masks(visible, causal_mask(q, k))
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        step = (self.relative_step() * safe_step(k, visible)).to(wide)
        lam = self.lam().to(wide)

        def block(rows: Tensor, start: int) -> Tensor:
            codes = ista_codes(
                rows,
                k,
                lam=lam,
                step=_rows(step, start, rows),
                n_iter=self.n_iter,
                nonnegative=self.nonnegative,
                allowed=self._allowed(visible, start, rows, k),
            )
            return codes.to(dtype) if v is None else codes.to(dtype) @ v

        return map_query_blocks(block, q)

    def iteration(
        self, q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Callable[[Tensor], Tensor]:
        """One ISTA iteration on the codes of all queries, in float32 or wider; it starts at zero.

        Of checked inputs; `n_iter` is not read.
        """
        visible = None if mask is None else boolean_mask(mask, k.shape[-2], "SparseCoding")
        if is_causal:
            visible = combine_masks(visible, causal_mask(q, k))
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        step = (self.relative_step() * safe_step(k, visible)).to(wide)
        threshold = step * self.lam().to(wide) / 2
        allowed = self._allowed(visible, 0, q, k)

        def iterate(codes: Tensor) -> Tensor:
            z = codes + step * ((q - codes @ k) @ k.mT)
            z = (z - threshold).clamp(min=0) if self.nonnegative else soft_threshold(z, threshold)
            return z if allowed is None else z.masked_fill(~allowed, 0)

        return iterate

    def _allowed(
        self, visible: Tensor | None, start: int, rows: Tensor, k: Tensor
    ) -> Tensor | None:
        allowed = None if visible is None else _rows(visible, start, rows)
        if not self.zero_diagonal:
            return allowed
        own = torch.arange(start, start + rows.shape[-2], device=rows.device)
        others = own[:, None] != torch.arange(k.shape[-2], device=rows.device)
        return others if allowed is None else allowed & others

    def extra_repr(self) -> str:
        return (
            f"n_iter={self.n_iter}, zero_diagonal={self.zero_diagonal}, "
            f"nonnegative={self.nonnegative}"
        )


def _rows(x: Tensor, start: int, rows: Tensor) -> Tensor:
    """The rows of x that belong to a block of queries; x may have a single row for all."""
    return x if x.shape[-2] == 1 else x[..., start : start + rows.shape[-2], :]
