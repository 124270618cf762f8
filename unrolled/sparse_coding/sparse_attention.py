"""Sparse attention: the code of each query in the keys, by unrolled ISTA iterations."""

from collections.abc import Callable
from functools import partial
from typing import Literal

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
    query_offset,
)
from .code_blocks import ista_attention
from .iterations import ista_step, support_step
from .step_lengths import curvature, safe_step

Step = Literal["safe", "support"]


class SparseCoding(Operator):
    """Sparse attention: code each query sparsely in the keys, combine the values alike.

    `n_iter` ISTA iterations from zero on ::

        C* = argmin_C |q - C k|_F^2 + lam |C|_1,      output C v

    Rows are separate problems: masked keys are absent from a row's problem, and a causal mask gives
    each token the problem over its own prefix. Codes are signed and need not sum to one. Queries
    are taken in blocks, recomputed in the backward pass; only masks that differ from query to query
    cost an n_keys x n_keys matrix, for the step lengths. bfloat16 and float16 iterate in float32.
    The gradient of `forward` is not differentiable again; that of `matrix` is.

    Parameters
    ----------
    lam : float
        Penalty > 0 on the scale above. A code is zero iff ``lam >= 2 max_j |q . k_j|``. The papers
        give no default.
    n_iter : int, default=5
        Number of iterations, >= 0. A plain attribute: it may be changed later.
    relative_step : float, default=1.0
        Step length in units of the safe step ``1 / |K^T K|_F``; above ``|K^T K|_F / |K|_2^2`` the
        iteration may diverge. With ``step="support"`` it must be 1.
    step : {"safe", "support"}, default="safe"
        "support" gives each query the step ``1 / |K_S|_2^2`` of the keys K_S that its code uses,
        unless that would add a key to them, and else ``1 / |K|_2^2``. The objective never
        increases. It iterates in float64, as the choice is not continuous, and costs an eigenvalue
        problem of size head_dim for each query and iteration. Gradients flow through both step
        lengths, as subgradients where largest singular values tie, and not through the choice.
    zero_diagonal : bool, default=False
        Exclude key i from the code of query i: self-expression, for keys that contain the query.
    nonnegative : bool, default=False
        Codes >= 0.
    num_heads : int, optional
        One `lam` and `relative_step` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` and, with the safe step, `relative_step` (their logarithms).

    Raises
    ------
    ValueError
        If a number is out of range, or a mask holds a finite bias.

    References
    ----------
    EQUATIONS SE-12, SE-15 to SE-18, FF-9, LS-1, LS-3.

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
        step: Step = "safe",
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if step not in ("safe", "support"):
            raise ValueError(f'step: must be "safe" or "support", got {step!r}')
        if step == "support" and relative_step != 1:
            raise ValueError(f"relative_step: must be 1 with step='support', got {relative_step!r}")
        self.step: Step = step
        self.lam, self.relative_step = (
            Positive(
                value,
                name=name,
                num_heads=num_heads,
                learnable=learnable and (name == "lam" or step == "safe"),
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
        # Exported programs would lose the gradients of code that works in place.
        if self.step == "support" or self.n_iter == 0 or torch.compiler.is_exporting():
            return self._attend_step_by_step(q, k, v, mask, is_causal)
        wide = self._wide(q)
        keys, visible = k.to(wide), self._visible(mask, q, k, is_causal=False)
        if visible is not None and visible.shape[-2] == 1:
            # A zero key has a zero code, and adds nothing to the step length.
            keys, visible = torch.where(visible.mT, keys, 0), None
        if is_causal and visible is not None:
            visible, is_causal = visible & causal_mask(q, k), False
        step = safe_step(keys, visible, is_causal)
        step = step[..., query_offset(q, k) :, :] if is_causal else step
        out = ista_attention(
            q.to(wide),
            keys,
            v.to(wide),
            lam=self.lam(),
            step=self.relative_step() * step,
            n_iter=self.n_iter,
            nonnegative=self.nonnegative,
            zero_diagonal=self.zero_diagonal,
            visible=visible,
            is_causal=is_causal,
        )
        return out.to(q.dtype)

    def coefficients(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        iterate = self.iteration(q, k, mask, is_causal)
        codes = torch.zeros_like(q @ k.mT, dtype=self._wide(q))
        for _ in range(self.n_iter):
            codes = iterate(codes)
        return codes.to(q.dtype)

    def iteration(
        self, q: Tensor, k: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Callable[[Tensor], Tensor]:
        """The map of codes that is iterated, from zero codes.

        Parameters
        ----------
        q, k, mask, is_causal
            As in `forward`.

        Returns
        -------
        callable
            Takes and returns codes of shape (..., n_queries, n_keys), in float64 with the step
            "support" and in at least float32 without. Differentiable in them, q, k and the
            parameters. Each row of the result depends on that row of the codes alone.

        Examples
        --------
        >>> import torch
        >>> from twinsolve.unrolled import SparseCoding
        >>> iterate = SparseCoding(2.0).iteration(torch.tensor([[3.0, 0.5]]), torch.eye(2))
        >>> iterate(torch.tensor([[2.0, 0.0]]))
        tensor([[2., 0.]])
        """
        return self._map(q, k, self._visible(mask, q, k, is_causal), 0)

    def _attend_step_by_step(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        visible = self._visible(mask, q, k, is_causal)

        def block(rows: Tensor, start: int) -> Tensor:
            iterate = self._map(rows, k, visible, start)
            codes = torch.zeros_like(rows @ k.mT, dtype=self._wide(q))
            for _ in range(self.n_iter):
                codes = iterate(codes)
            return (codes @ v.to(codes.dtype)).to(q.dtype)

        return map_query_blocks(block, q)

    def _map(
        self, q: Tensor, k: Tensor, visible: Tensor | None, start: int
    ) -> Callable[[Tensor], Tensor]:
        """The iteration of the rows from `start` on."""
        wide = self._wide(q)
        q, k, lam = q.to(wide), k.to(wide), self.lam().to(wide)
        if visible is not None and visible.shape[-2] > 1:
            visible = visible[..., start : start + q.shape[-2], :]
        allowed = self._allowed(visible, start, q, k)
        given = {"q": q, "k": k, "lam": lam, "nonnegative": self.nonnegative, "allowed": allowed}
        if self.step == "safe":
            step = (self.relative_step() * safe_step(k, visible)).to(wide)
            return partial(ista_step, **given, step=step)
        whole = curvature(k, k.new_ones(1, k.shape[-2]) if visible is None else visible)
        return partial(support_step, **given, whole=torch.where(whole > 0, whole, 1))

    def _wide(self, q: Tensor) -> torch.dtype:
        wide = torch.float64 if self.step == "support" else torch.float32
        return torch.promote_types(q.dtype, wide)

    def _visible(self, mask: Tensor | None, q: Tensor, k: Tensor, is_causal: bool) -> Tensor | None:
        visible = None if mask is None else boolean_mask(mask, k.shape[-2], "SparseCoding")
        return combine_masks(visible, causal_mask(q, k)) if is_causal else visible

    def _allowed(self, visible: Tensor | None, start: int, q: Tensor, k: Tensor) -> Tensor | None:
        if not self.zero_diagonal:
            return visible
        own = torch.arange(start, start + q.shape[-2], device=q.device)
        others = own[:, None] != torch.arange(k.shape[-2], device=q.device)
        return others if visible is None else visible & others

    def extra_repr(self) -> str:
        return (
            f"n_iter={self.n_iter}, zero_diagonal={self.zero_diagonal}, "
            f"nonnegative={self.nonnegative}, step={self.step}"
        )
