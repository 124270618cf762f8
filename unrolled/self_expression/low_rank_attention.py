"""Low-rank attention: the spectral filter of nuclear-norm self-expression."""

from typing import Any

import torch
from torch import Tensor

from ..attention import Call, Operator, Positive, once_in
from .keys import key_products, scaled_penalty, visible_keys


class LowRank(Operator):
    """Low-rank attention: nuclear-norm self-expression as a filter of the keys' spectrum.

    ::

        C = q R diag(h(s) / s) U^T,    h(s) = max(0, 1 - lam / (2 s^2)),    k = U diag(s) R^T

    and output ``C v``. At q = k this is the minimiser of ``|k - C k|_F^2 + lam |C|_*``, in which
    directions with ``s > sqrt(lam / 2)`` are active; for other queries it is a filter and minimises
    nothing. Computed in float64 from the eigenvectors of ``k^T k`` or ``k k^T``, whichever is
    smaller; first and second derivatives are exact at equal singular values too, third ones are
    refused. All keys are coupled, so that masks may only hide whole keys: these are as if absent.

    Parameters
    ----------
    lam : float
        Penalty > 0. The papers give no default.
    relative : bool, default=False
        The penalty is ``2 lam s_1^2``, s_1 the largest singular value of the visible keys. Then
        directions with ``s^2 > lam s_1^2`` are active, and none at ``lam = 1``, whatever the size
        and number of the keys; a fixed penalty cannot be compared across heads and depths.
        Gradients flow through s_1.
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

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, *_ = call
        wide = torch.promote_types(q.dtype, torch.float32)
        k = visible_keys(k, mask, "LowRank").to(wide)
        if k.shape[-2] < k.shape[-1]:
            k = k.double()
            left, right = q.double() @ k.mT, self._filter_gram(k @ k.mT) @ v.double()
        else:
            gram, moments = key_products(k, v.to(wide))
            left, right = q, self._filter_gram(gram) @ moments
        return (left.to(wide) @ right.to(wide)).to(q.dtype)

    def coefficients(self, call: Call) -> Tensor:
        q, k = call.q, visible_keys(call.k, call.mask, "LowRank").double()
        return (q.double() @ self._filter_gram(k.mT @ k) @ k.mT).to(q.dtype)

    def _filter_gram(self, gram: Tensor) -> Tensor:
        """Apply the spectral filter at the penalty in use to a Gram matrix."""
        lam = scaled_penalty(self.lam().to(gram), gram, self.relative)
        threshold = (lam if self.relative else lam / 2).expand(*gram.shape[:-2], 1, 1)
        return _SpectralFilter.apply(gram, threshold)[0]

    def extra_repr(self) -> str:
        return f"relative={self.relative}"


class _SpectralFilter(torch.autograd.Function):
    """``g(G)`` of a positive semidefinite G, ``g(w) = max(0, w - t) / w^2``.

    With h of singular values, ``h(s) / s^2 = g(s^2)`` at ``t = lam / 2``. Derivatives in G hold the
    divided differences of g (Daleckii and Krein), that in t those of ``m(w) = 1 / w^2`` for
    ``w > t``, as ``dg/dt = -m``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gram: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, R = torch.linalg.eigh(gram)
        g = _Filter(w, threshold).values()
        return (R * g[..., None, :]) @ R.mT, w, R

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        _, w, R = output
        ctx.mark_non_differentiable(w, R)
        ctx.save_for_backward(*inputs, w, R)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
        return _FilterGradient.apply(gradient, *ctx.saved_tensors)


class _FilterGradient(torch.autograd.Function):
    """The backward pass of `_SpectralFilter`, which can be differentiated once more."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        gradient: Tensor, gram: Tensor, threshold: Tensor, w: Tensor, R: Tensor
    ) -> tuple[Tensor, Tensor]:
        g, inner = _Filter(w, threshold), R.mT @ gradient @ R
        by_threshold = -(inner.diagonal(dim1=-2, dim2=-1) * g.slopes()).sum(-1)
        return R @ (g.differences() * inner) @ R.mT, by_threshold[..., None, None]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_gram: Tensor, by_threshold: Tensor) -> Any:
        gradient, gram, threshold, w, R = ctx.saved_tensors
        g = _Filter(w, threshold)
        E, V = (R.mT @ x @ R for x in (gradient, by_gram))
        slopes, slope_ratios = g.slopes(), g.slope_differences()
        by_gradient = g.differences() * V - by_threshold * torch.diag_embed(slopes)
        ordered = torch.einsum("...ijk,...ij,...jk->...ik", g.second_differences(), E, V)
        by_G = ordered + torch.einsum("...ijk,...ij,...jk->...ik", g.second_differences(), V, E)
        by_G = by_G - by_threshold * slope_ratios * E
        by_t = -(slope_ratios * E * V).sum((-2, -1), keepdim=True)
        gradients = (R @ by_gradient @ R.mT, R @ by_G @ R.mT, by_t)
        message, saved = "LowRank: has no third derivative", (gradient, gram, threshold)
        return *(once_in(x, message, *saved) for x in gradients), None, None


class _Filter:
    """The function g of `_SpectralFilter` at eigenvalues w, with its divided differences.

    Between active eigenvalues they are written without a quotient of differences, so that equal
    eigenvalues do not divide by zero.
    """

    def __init__(self, w: Tensor, threshold: Tensor) -> None:
        self.w, self.t = w, threshold
        self.on = w > threshold.squeeze(-1)
        self.inverse = torch.where(self.on, w, 1).reciprocal()

    def values(self) -> Tensor:
        return torch.where(self.on, self.w - self.t.squeeze(-1), 0) * self.inverse.square()

    def slopes(self) -> Tensor:
        """Return ``m(w) = -dg/dt``."""
        return self.inverse.square() * self.on

    def differences(self) -> Tensor:
        """Return ``(g(w_i) - g(w_j)) / (w_i - w_j)``, and ``g'(w_i)`` where they are equal."""
        a, b = self.inverse[..., :, None], self.inverse[..., None, :]
        return self._weigh_pairs(a * b * (self.t * (a + b) - 1), self.values())

    def slope_differences(self) -> Tensor:
        """Return the divided differences of m, as in `differences`."""
        a, b = self.inverse[..., :, None], self.inverse[..., None, :]
        return self._weigh_pairs(-a * b * (a + b), self.slopes())

    def second_differences(self) -> Tensor:
        """Return ``(g[w_i, w_j] - g[w_j, w_k]) / (w_i - w_k)`` for all i, j and k, in any order."""
        first, w, on = self.differences(), self.w, self.on
        a, b, c = self._as_column(self.inverse)
        active = a * b * c * (1 - self.t[..., None] * (a + b + c))
        (wi, wj, wk), (i, j, k) = self._as_column(w), self._as_column(on)
        ij, jk, ik = first[..., :, :, None], first[..., None, :, :], first[..., :, None, :]
        outer = (ij - jk) / torch.where(i == k, 1, wi - wk)
        inner = (ij - ik) / torch.where(j == k, 1, wj - wk)
        return torch.where(i & j & k, active, torch.where(i == k, inner, outer) * (i | j | k))

    def _weigh_pairs(self, active: Tensor, values: Tensor) -> Tensor:
        """Return `active` for two active eigenvalues, else divided differences of `values`."""
        rows, columns = self.on[..., :, None], self.on[..., None, :]
        gap = torch.where(rows == columns, 1, self.w[..., :, None] - self.w[..., None, :])
        mixed = (values[..., :, None] - values[..., None, :]) / gap
        return torch.where(rows & columns, active, mixed * (rows ^ columns))

    @staticmethod
    def _as_column(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[..., :, None, None], x[..., None, :, None], x[..., None, None, :]
