"""Low-rank attention: the spectral filter of nuclear-norm self-expression."""

from typing import Any

import torch
from torch import Tensor

from ..attention import Context, Operator, Positive
from .key_products import key_products, scaled_penalty, visible_keys


class LowRank(Operator):
    """Low-rank attention: nuclear-norm self-expression as a filter of the keys' spectrum.

    ::

        C = q R diag(h(s) / s) U^T,    h(s) = max(0, 1 - lam / (2 s^2)),    k = U diag(s) R^T

    and output ``C v``. At q = k this is the minimiser of ``|k - C k|_F^2 + lam |C|_*``, in which
    directions with ``s > sqrt(lam / 2)`` are active; for other queries it is a filter and minimises
    nothing. Computed in float64 from the eigenvectors of ``k^T k`` or ``k k^T``, whichever is
    smaller; gradients are exact at equal singular values too, but not differentiable again. All
    keys are coupled, so that masks may only hide whole keys: these are as if absent.

    Parameters
    ----------
    lam : float
        Penalty > 0. The papers give no default.
    relative : bool, default=False
        The penalty is ``2 lam s_1^2``, s_1 the largest singular value of the visible keys, so that
        directions with ``s^2 > lam s_1^2`` are active, and none at 1, whatever the size and number
        of the keys: a fixed penalty means nothing across heads and depths. Gradients flow through
        s_1.
    num_heads : int, optional
        One `lam` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, or a mask is causal, differs between queries or is a bias.

    References
    ----------
    EQUATIONS QK-low rank, SE-LRR, FF-12. The paper prints ``max(s - lam, 0)`` in place of h
    (erratum E3-k/l), and threshold lam for sqrt(lam / 2).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import LowRank
    >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> LowRank(1.0).matrix(x, x)
    tensor([[0.8750, 0.0000],
            [0.0000, 0.5000]])
    """

    causal = False
    pair_masks = False

    def __init__(
        self,
        lam: float,
        *,
        relative: bool = False,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.lam = Positive(
            lam, name="lam", num_heads=num_heads, learnable=learnable, device=device, dtype=dtype
        )
        self.relative = relative

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        k = visible_keys(k, mask, "LowRank").to(wide)
        if k.shape[-2] < k.shape[-1]:
            k = k.double()
            left, right = q.double() @ k.mT, self._filter(k @ k.mT) @ v.double()
        else:
            gram, moments = key_products(k, v.to(wide))
            left, right = q, self._filter(gram) @ moments
        return (left.to(wide) @ right.to(wide)).to(q.dtype)

    def coefficients(
        self,
        q: Tensor,
        k: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        k = visible_keys(k, mask, "LowRank").double()
        return (q.double() @ self._filter(k.mT @ k) @ k.mT).to(q.dtype)

    def _filter(self, gram: Tensor) -> Tensor:
        lam = scaled_penalty(self.lam().to(gram), gram, self.relative)
        threshold = (lam if self.relative else lam / 2).expand(*gram.shape[:-2], 1, 1)
        return _SpectralFilter.apply(gram, threshold)[0]

    def extra_repr(self) -> str:
        return f"relative={self.relative}"


class _SpectralFilter(torch.autograd.Function):
    """``g(G)`` of a positive semidefinite G, ``g(w) = max(0, w - t) / w^2``.

    With h of singular values, ``h(s) / s^2 = g(s^2)`` at ``t = lam / 2``. The derivative holds the
    divided differences of g (Daleckii and Krein); those between active eigenvalues are written
    without a difference, which leaves nothing to divide by where eigenvalues are equal.
    """

    @staticmethod
    def forward(gram, threshold):  # type: ignore[no-untyped-def]
        w, R = torch.linalg.eigh(gram)
        scaled = _filtered(w, threshold.squeeze(-1))
        return (R * scaled[..., None, :]) @ R.mT, w, R

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        _, w, R = output
        ctx.mark_non_differentiable(w, R)
        ctx.save_for_backward(w, R, inputs[1])

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx, grad, *_):  # type: ignore[no-untyped-def]
        w, R, threshold = ctx.saved_tensors
        inner = R.mT @ grad @ R
        active = w > threshold.squeeze(-1)
        weight = torch.where(active, w, 1).pow(-2) * active
        by_threshold = -(inner.diagonal(dim1=-2, dim2=-1) * weight).sum(dim=-1)[..., None, None]
        return R @ (_divided_differences(w, threshold) * inner) @ R.mT, by_threshold


def _filtered(w: Tensor, threshold: Tensor) -> Tensor:
    active = w > threshold
    return torch.where(active, w - threshold, 0) / torch.where(active, w, 1).square()


def _divided_differences(w: Tensor, threshold: Tensor) -> Tensor:
    """``(g(w_i) - g(w_j)) / (w_i - w_j)``, and ``g'(w_i)`` where they are equal."""
    g, active = _filtered(w, threshold.squeeze(-1)), w > threshold.squeeze(-1)
    rows, columns = active[..., :, None], active[..., None, :]
    gap = torch.where(rows == columns, 1, w[..., :, None] - w[..., None, :])
    mixed = (g[..., :, None] - g[..., None, :]) / gap
    inverse = torch.where(active, w, 1).reciprocal()
    a, b = inverse[..., :, None], inverse[..., None, :]
    return torch.where(rows & columns, a * b * (threshold * (a + b) - 1), mixed * (rows ^ columns))
