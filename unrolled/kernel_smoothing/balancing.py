"""Doubly stochastic attention by Sinkhorn balancing."""

import torch
from torch import Tensor

from ..attention import (
    Call,
    Correction,
    Operator,
    SoftmaxSmoother,
    check_count,
    drop_hidden,
    padding_mask,
)


class Sinkhorn(Correction):
    """Sinkhorn balancing: scale the base's matrix until columns sum to one as well as rows.

    ::

        P_ij = exp(f_i + g_j) A_ij;    n_iter times:  g: columns sum to 1,  then f: rows sum to 1

    with A the base's matrix, or exp(logits). The limit is the doubly stochastic matrix nearest to
    it. Rows are balanced last: they sum to one exactly at any `n_iter`, columns in the limit. With
    0 iterations the operator is the base. A doubly stochastic matrix keeps the tokens' mean, so
    that filters of the mean, before and after attention, coincide.

    The n x n matrix is built, n_iter times in the backward pass. It is computed by logarithms, in
    float32 at least. Among the visible tokens the matrix is doubly stochastic. Rows of hidden
    queries weigh the visible keys, but do not count in the column sums. A causal mask is refused:
    the only causal doubly stochastic matrix is I.

    Parameters
    ----------
    base : Operator
        Its matrix must be nonnegative. Zeros in it stay zero; with them there may be no balanced
        matrix at all.
    n_iter : int, default=5
        Number of iterations, >= 0. A plain attribute: it may be changed later.

    Raises
    ------
    ValueError
        If the base's matrix may be negative or `n_iter` is no whole number >= 0; if queries and
        keys differ in number, or a mask does more than to hide whole keys.

    References
    ----------
    Sinkhorn and Knopp (1967); Sander, Ablin, Blondel and Peyre, "Sinkformers" (2022), which gives
    no default beyond a handful of iterations; EQUATIONS QK-Sinkhorn.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Gaussian, Sinkhorn
    >>> q = torch.randn(1, 2, 5, 8)
    >>> P = Sinkhorn(Gaussian(3.0), n_iter=50).matrix(q, q)
    >>> torch.allclose(P.sum(dim=-2), torch.ones(5), atol=1e-5)
    True
    """

    def __init__(self, base: Operator, *, n_iter: int = 5) -> None:
        super().__init__(base)
        if not base.nonnegative:
            raise ValueError(f"base: must have a nonnegative matrix, got {type(base).__name__}")
        self.n_iter = check_count(n_iter, "n_iter", 0)
        self.row_stochastic = True
        self.square_only = True
        self.causal = False
        self.pair_masks = False
        self.additive_masks = False

    def attend(self, call: Call) -> Tensor:
        return self.coefficients(call).to(call.v.dtype) @ drop_hidden(call.v, call.mask)

    def coefficients(self, call: Call) -> Tensor:
        k, mask = call.k, call.mask
        visible = None if mask is None else padding_mask(mask, k.shape[-2], "Sinkhorn")
        logits = self._logits(call._replace(k=drop_hidden(k, visible), mask=visible))
        # Each potential is added at once: in sums of two, large ones would cancel.
        logits = logits + _potential(logits, -1)
        for _ in range(self.n_iter):
            visible_rows = (
                logits if visible is None else logits.masked_fill(~visible.mT, _low(logits))
            )
            logits = logits + _potential(visible_rows, -2)
            logits = logits + _potential(logits, -1)
        return torch.exp(logits).to(call.q.dtype)

    def _logits(self, call: Call) -> Tensor:
        """Return the logarithms of the base's matrix, and a very low finite number for its zeros.

        Rows of a softmax are not normalised: balancing does that.
        """
        wide, visible = torch.promote_types(call.q.dtype, torch.float32), call.mask
        if isinstance(self.base, SoftmaxSmoother):
            logits = self.base.logits(call._replace(q=call.q.to(wide), k=call.k.to(wide)))
            return logits if visible is None else logits.masked_fill(~visible, _low(logits))
        A = call.matrix_of(self.base).to(wide)
        zero = A <= 0
        return A.masked_fill(zero, 1).log().masked_fill(zero, _low(A))

    def extra_repr(self) -> str:
        return f"n_iter={self.n_iter}"


def _low(x: Tensor) -> float:
    """Return a finite number to stand for log(0), so that gradients are finite."""
    return torch.finfo(x.dtype).min / 8


def _potential(logits: Tensor, dim: int) -> Tensor:
    """Return minus the logarithm of the sums along `dim`; 0 where all terms are zero."""
    total = torch.logsumexp(logits, dim=dim, keepdim=True)
    return torch.where(total > _low(logits) / 2, -total, 0)
