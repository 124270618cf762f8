"""Sparse attention: the code of each query in the keys, by unrolled ISTA iterations."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..attention import (
    Call,
    Operator,
    Positive,
    causal_mask,
    check_count,
    combine_masks,
    has_no_values,
    is_transformed,
    map_query_blocks,
    mask_rows,
    query_offset,
)
from .code_blocks import ista_attention
from .iterations import (
    SparsePenalty,
    at_iteration,
    curvature,
    lam_max,
    positive_per_iteration,
    proximal_map,
    repeated,
    safe_step,
    strongest_key,
    support_step,
)

Step = Literal["safe", "support"]


class SparseCoding(Operator):
    """Sparse attention: code each query sparsely in the keys, and apply the codes to the values.

    `n_iter` ISTA iterations from ``C = 0`` on ::

        C* = argmin_C |q - C k|_F^2 + lam |C|_1,      output C v

    Rows are separate problems: masked keys are absent from a row's problem, and a causal mask gives
    each token the problem over its own prefix. Codes are signed and need not sum to one. Queries
    are taken in blocks, recomputed in the backward pass; only masks that differ from query to query
    cost an n_keys x n_keys matrix, for the step lengths. bfloat16 and float16 iterate in float32.
    Second derivatives and the transforms of ``torch.func`` hold the codes of all iterations.

    Parameters
    ----------
    lam : float
        Penalty > 0 on the scale above. A signed code is zero iff ``lam >= 2 max_j |q . k_j|``. The
        papers give no default.
    relative : bool, default=False
        The penalty of row i is ``lam lam_max_i``, ``lam_max_i = 2 max_j |q_i . k_j|`` over the keys
        that the row may use. Then ``lam = 1`` makes the row zero whatever the sizes of queries and
        keys; a fixed penalty cannot be compared across heads and depths. Gradients flow through
        lam_max_i, by the key that attains it (the first, if several do). On digits, in four layers
        of width 32, 92, 80, 59, 45 and 26 % of the entries are not zero after five iterations at
        0.05, 0.1, 0.2, 0.3 and 0.5, trained or not, and 99 % at an absolute penalty of 0.1.
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
    per_iteration : bool, default=False
        Train separate ones for each of the `n_iter` iterations: then `lam` and `relative_step` are
        lists of `Positive`, of which the last serves all further iterations. Training then holds
        the codes of a block of queries once for every iteration.

    Raises
    ------
    ValueError
        If a number is out of range, `per_iteration` comes without `learnable` or with the step
        "support", or a mask holds a finite bias.

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
        relative: bool = False,
        n_iter: int = 5,
        relative_step: float = 1.0,
        zero_diagonal: bool = False,
        nonnegative: bool = False,
        step: Step = "safe",
        num_heads: int | None = None,
        learnable: bool = False,
        per_iteration: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if step not in ("safe", "support"):
            raise ValueError(f'step: must be "safe" or "support", got {step!r}')
        if step == "support" and relative_step != 1:
            raise ValueError(f"relative_step: must be 1 with step='support', got {relative_step!r}")
        if per_iteration and (step == "support" or not learnable):
            raise ValueError(
                'per_iteration: needs learnable=True and step="safe", got '
                f"learnable={learnable!r} and step={step!r}"
            )
        self.step: Step = step
        self.n_iter = check_count(n_iter, "n_iter", 1 if per_iteration else 0)
        self.relative = relative
        self.per_iteration = per_iteration
        factory: dict[str, Any] = {"num_heads": num_heads, "device": device, "dtype": dtype}
        self.lam, self.relative_step = (
            positive_per_iteration(value, n_iter, name, **factory)
            if per_iteration
            else Positive(
                value,
                name=name,
                learnable=learnable and (name == "lam" or step == "safe"),
                **factory,
            )
            for name, value in (("lam", lam), ("relative_step", relative_step))
        )
        self.zero_diagonal = zero_diagonal
        self.nonnegative = nonnegative
        self.square_only = zero_diagonal

    def attend(self, call: Call) -> Tensor:
        q, k, v, _, is_causal, _ = call
        # What works in place can be neither traced nor transformed.
        needs_graph = has_no_values(q) or is_transformed()
        if self.step == "support" or self.per_iteration or self.n_iter == 0 or needs_graph:
            return self._attend_step_by_step(call)
        wide = self._widen(q)
        keys, visible = k.to(wide), call.hiding("SparseCoding").mask
        if visible is not None and visible.shape[-2] == 1:
            # A zero key has a zero code, and adds nothing to the step length.
            keys, visible = torch.where(visible.mT, keys, 0), None
        if is_causal and visible is not None:
            visible, is_causal = visible & causal_mask(q, k), False
        lam = self.penalties(q.to(wide), keys, visible, is_causal)
        step = safe_step(keys, visible, is_causal)
        step = step[..., query_offset(q, k) :, :] if is_causal else step
        out = ista_attention(
            q.to(wide),
            keys,
            v.to(wide),
            lam=lam,
            step=at_iteration(self.relative_step, 0) * step,
            n_iter=self.n_iter,
            nonnegative=self.nonnegative,
            zero_diagonal=self.zero_diagonal,
            visible=visible,
            is_causal=is_causal,
        )
        return out.to(q.dtype)

    def coefficients(self, call: Call) -> Tensor:
        zero = torch.zeros_like(call.q @ call.k.mT, dtype=self._widen(call.q))
        return repeated(self.iteration(call), zero, range(self.n_iter)).to(call.q.dtype)

    def iteration(self, call: Call) -> Callable[..., Tensor]:
        """Return the map of codes that the layer iterates, from zero codes on.

        Parameters
        ----------
        call : Call
            Its values are not read.

        Returns
        -------
        callable
            ``iterate(codes, t=0)`` takes and returns codes of shape (..., n_queries, n_keys), in
            float64 with the step "support" and in at least float32 without, with the parameters
            of iteration t. Differentiable in them, q, k and the parameters. Each row of the result
            depends on that row of the codes alone.

        Examples
        --------
        >>> import torch
        >>> from twinsolve.unrolled import Call, SparseCoding
        >>> call = Call(torch.tensor([[3.0, 0.5]]), torch.eye(2), torch.eye(2))
        >>> iterate = SparseCoding(2.0).iteration(call)
        >>> iterate(torch.tensor([[2.0, 0.0]]))
        tensor([[2., 0.]])
        """
        lam, relative_step = self._list_parameters()
        visible = call.hiding("SparseCoding").pairs()
        return self._make_map(call.q, call.k, lam, relative_step, visible, 0)

    def _attend_step_by_step(self, call: Call) -> Tensor:
        """Attend by blocks of queries whose codes are iterated explicitly."""
        q, k, v, *_ = call
        visible = call.hiding("SparseCoding").pairs()
        lam, relative_step = self._list_parameters()

        def block(rows: Tensor, start: int) -> Tensor:
            iterate = self._make_map(rows, k, lam, relative_step, visible, start)
            zero = torch.zeros_like(rows @ k.mT, dtype=self._widen(q))
            codes = repeated(iterate, zero, range(self.n_iter))
            return (codes @ v.to(codes.dtype)).to(q.dtype)

        return map_query_blocks(block, q)

    def _list_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return penalties and relative steps by iteration; later iterations use the last."""
        lam, relative_step = (
            [numbers()] if isinstance(numbers, Positive) else [number() for number in numbers]
            for numbers in (self.lam, self.relative_step)
        )
        return lam, relative_step

    def _make_map(
        self,
        q: Tensor,
        k: Tensor,
        lam: list[Tensor],
        relative_step: list[Tensor],
        visible: Tensor | None,
        start: int,
    ) -> Callable[..., Tensor]:
        """Return the map of `iteration` for a block q of the queries, from row `start` on."""
        wide = self._widen(q)
        q, k = q.to(wide), k.to(wide)
        seen = mask_rows(visible, q, start)
        allowed = self._find_allowed(seen, start, q, k)
        scale = lam_max(q, k, strongest_key(q, k, allowed)) if self.relative else 1.0
        hidden = None if allowed is None else ~allowed
        if self.step == "safe":
            unit = safe_step(k, seen)
        else:
            whole = curvature(k, k.new_ones(1, k.shape[-2]) if seen is None else seen)
            whole = torch.where(whole > 0, whole, 1)

        def iterate(codes: Tensor, t: int = 0) -> Tensor:
            penalties = scale * lam[min(t, len(lam) - 1)].to(wide)
            penalty = SparsePenalty(penalties, nonnegative=self.nonnegative, hidden=hidden)
            move = proximal_map(q, k, penalty)
            if self.step == "support":
                return support_step(codes, move, curvature(k, codes != 0), whole)
            return move(codes, (relative_step[min(t, len(lam) - 1)] * unit).to(wide))

        return iterate

    def penalties(
        self, q: Tensor, k: Tensor, visible: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Penalties of the rows in the first iteration, broadcastable to (..., n_queries, 1).

        Parameters
        ----------
        q : Tensor of shape (..., n_queries, d)
        k : Tensor of shape (..., n_keys, d)
        visible : bool Tensor broadcastable to (..., n_queries, n_keys), optional
            True for the keys that a row may use.
        is_causal : bool, default=False
            Row i may use the keys 0 to ``n_keys - n_queries + i``.

        Examples
        --------
        >>> import torch
        >>> from twinsolve.unrolled import SparseCoding
        >>> SparseCoding(0.5, relative=True).penalties(torch.tensor([[3.0, 0.5]]), torch.eye(2))
        tensor([[3.]])
        """
        lam = at_iteration(self.lam, 0).to(q.dtype)
        return lam * self._lam_max(q, k, visible, is_causal) if self.relative else lam

    def _lam_max(self, q: Tensor, k: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        """Return `lam_max` of every query, over the keys that it may use."""

        def strongest(rows: Tensor, start: int) -> Tensor:
            allowed = self._find_allowed(mask_rows(visible, rows, start), start, rows, k)
            if is_causal:
                first = start + query_offset(q, k)
                query_index = torch.arange(first, first + rows.shape[-2], device=q.device)
                earlier = query_index[:, None] >= torch.arange(k.shape[-2], device=q.device)
                allowed = combine_masks(allowed, earlier)
            return strongest_key(rows, k, allowed)

        with torch.no_grad():
            strongest_of_all = map_query_blocks(strongest, q)
        return lam_max(q, k, strongest_of_all)

    def _widen(self, q: Tensor) -> torch.dtype:
        wide = torch.float64 if self.step == "support" else torch.float32
        return torch.promote_types(q.dtype, wide)

    def _find_allowed(
        self, visible: Tensor | None, start: int, q: Tensor, k: Tensor
    ) -> Tensor | None:
        """Return a mask of the keys that each query may use; None allows all keys."""
        if not self.zero_diagonal:
            return visible
        query_index = torch.arange(start, start + q.shape[-2], device=q.device)
        off_diagonal = query_index[:, None] != torch.arange(k.shape[-2], device=q.device)
        return off_diagonal if visible is None else visible & off_diagonal

    def extra_repr(self) -> str:
        return (
            f"n_iter={self.n_iter}, zero_diagonal={self.zero_diagonal}, "
            f"nonnegative={self.nonnegative}, step={self.step}, relative={self.relative}"
        )
