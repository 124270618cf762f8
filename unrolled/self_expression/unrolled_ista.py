"""Unrolled self-expression: ISTA iterations with learned steps and penalties on features."""

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Positive, check_count, check_positive, map_query_blocks, without_autocast
from ..sparse_coding import (
    SparsePenalty,
    at_iteration,
    lam_max_of,
    positive_per_iteration,
    proximal_step,
    repeated,
    safe_step,
)
from .keys import check_pair, own_keys


class UnrolledSelfExpression(nn.Module):
    """Sparse self-expression by unrolled ISTA iterations with learned steps and penalties.

    With features ``Z = features(X)``, iteration t from ``C = 0`` is ::

        C <- S_{s_t lam_t / 2}( C + s_t (Z - C Z) Z^T ),     then diag(C) <- 0

    with ``s_t = step_t / |Z^T Z|_F``. At the initial parameters this is ISTA on ::

        min_{diag(C) = 0}  |Z - C Z|_F^2 + lam |C|_1

    and, if `relative`, on that with ``lam_i = lam 2 max_{j != i} |z_i . z_j|`` for row i, in units
    of the penalty that makes the row zero.

    Steps are relative to the safe step and penalties are numbers, so that a layer trained on some
    points can be used on any others. Learned steps are longer than the longest that is sure to
    converge, and may diverge, above all for keys with fewer large singular values than those of
    training: compare `objective` with ``|z|^2``, its value at zero coefficients. To code other
    points in given ones use ``forward(queries, keys)``, which excludes no diagonal. Rows are taken
    in blocks, recomputed in the backward pass, so that beside the coefficients memory is
    O(block * n_keys).

    Parameters
    ----------
    n_iter : int
        Number of iterations >= 1, with parameters of their own. The attribute may be changed later:
        fewer stop early, more repeat the last one's parameters.
    lam : float
        Penalty > 0 on the scale above, of every iteration at first, and always that of `objective`.
        Row i is zero iff ``lam >= 2 max_{j != i} |z_i . z_j|``, or ``lam >= 1`` if `relative`.
        The papers give no default.
    relative : bool, default=False
        Penalties of each row are relative to the one that makes it zero, as in elastic net
        subspace clustering, whose gamma is ``1 / lam``.
    relative_step : float, default=1.0
        Steps at first, relative to the safe step. ``|Z^T Z|_F / |Z|_2^2`` is the longest that is
        sure to converge.
    features : nn.Module, optional
        Feature map of points (..., n, d) to (..., n, e). None is the identity.

    Attributes
    ----------
    step, lam : ModuleList of Positive
        ``step[t]()`` and ``lam[t]()``.

    Raises
    ------
    ValueError
        If an argument is out of range, or queries and keys differ in width.

    References
    ----------
    EQUATIONS SE-12, SE-15, SE-15L, LS-3, CL-1 (`relative`); the printed iteration
    has faults E3-d to E3-g.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import UnrolledSelfExpression
    >>> X = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    >>> UnrolledSelfExpression(200, lam=0.5)(X).detach().round(decimals=2)
    tensor([[0.0000, 0.4400, 0.0000],
            [1.7500, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """

    def __init__(
        self,
        n_iter: int,
        lam: float,
        *,
        relative: bool = False,
        relative_step: float = 1.0,
        features: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.n_iter = check_count(n_iter, "n_iter", 1)
        self.penalty = check_positive(lam, "lam")
        self.relative = relative
        self.features = nn.Identity() if features is None else features
        self.step = positive_per_iteration(relative_step, n_iter, "step", **factory)
        self.lam = positive_per_iteration(lam, n_iter, "lam", **factory)

    def reset_parameters(self) -> None:
        """Return steps and penalties to their values at construction; features stay."""
        for value in (*self.step, *self.lam):
            assert isinstance(value, Positive)
            value.reset_parameters()

    def forward(
        self, queries: Tensor, keys: Tensor | None = None, *, own: Tensor | None = None
    ) -> Tensor:
        """Coefficients of each query in the keys.

        Parameters
        ----------
        queries : Tensor of shape (..., n_queries, d)
        keys : Tensor of shape (..., n_keys, d), optional
            None takes the queries themselves, each without itself.
        own : Tensor of int of shape (n_queries,), optional
            For queries that are a batch of the keys: the index of each query among the keys. Its
            code leaves this key out.

        Returns
        -------
        Tensor of shape (..., n_queries, n_keys)
            bfloat16 and float16 iterate in float32.
        """
        q, k, own = self._map_features(queries, keys, own)
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        with without_autocast(q):
            unit = safe_step(k).to(wide)
            steps, penalties = (
                [at_iteration(values, t).to(wide) for t in range(self.n_iter)]
                for values in (self.step, self.lam)
            )

            def block(rows: Tensor, start: int) -> Tensor:
                hidden = own_keys(own, start, rows, k)
                products = rows @ k.mT
                scale = self._penalty_scale(products, hidden)

                def move(codes: Tensor, t: int) -> Tensor:
                    pull = (rows - codes @ k) @ k.mT if t else products
                    penalty = SparsePenalty(scale * penalties[t], hidden=hidden)
                    return proximal_step(codes, pull, unit * steps[t], penalty)

                return repeated(move, torch.zeros_like(products), range(self.n_iter)).to(dtype)

            return map_query_blocks(block, q)

    def objective(
        self,
        queries: Tensor,
        coefficients: Tensor,
        keys: Tensor | None = None,
        *,
        own: Tensor | None = None,
    ) -> Tensor:
        """``|z - c Z|^2 + lam |c|_1`` of each row, at the penalty given at construction.

        A loss for the steps and penalties; features that are trained on it alone collapse to zero.

        Parameters
        ----------
        queries : Tensor of shape (..., n_queries, d)
        coefficients : Tensor of shape (..., n_queries, n_keys)
        keys : Tensor of shape (..., n_keys, d), optional
        own : Tensor of int of shape (n_queries,), optional

        Returns
        -------
        Tensor of shape (..., n_queries)
        """
        q, k, own = self._map_features(queries, keys, own)
        penalty: Any = self.penalty
        if self.relative:
            scale = self._penalty_scale(q @ k.mT, own_keys(own, 0, q, k))
            penalty = penalty * scale.squeeze(-1)
        residual = q - coefficients @ k
        return residual.square().sum(-1) + penalty * coefficients.abs().sum(-1)

    def _penalty_scale(self, products: Tensor, hidden: Tensor | None) -> Any:
        """Return the unit of each row's penalty: twice its largest product, or 1 if absolute."""
        return lam_max_of(products, hidden) if self.relative else 1.0

    def _map_features(
        self, queries: Tensor, keys: Tensor | None, own: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return features of queries and keys, and the index of each query's own key, if any."""
        check_pair(queries, keys)
        if own is not None and (keys is None or own.shape != queries.shape[-2:-1]):
            raise ValueError(
                f"own: must be of shape ({queries.shape[-2]},) and needs keys, got shape "
                f"{tuple(own.shape)} {'without' if keys is None else 'with'} keys"
            )
        q = self.features(queries)
        if not q.is_floating_point():
            raise ValueError(f"queries: must have features of a floating dtype, got {q.dtype}")
        if keys is None:
            return q, q, torch.arange(q.shape[-2], device=q.device)
        return q, self.features(keys), own

    def extra_repr(self) -> str:
        return f"n_iter={self.n_iter}, lam={self.penalty:.4g}, relative={self.relative}"
