"""Ridge attention: each query regressed on the keys with a squared penalty, in closed form."""

import warnings
from typing import Any

import torch
from torch import Tensor

from ..attention import Call, Operator, Positive
from ..attention.tracing import has_no_values, is_transformed
from .keys import key_products, scaled_penalty, visible_keys

_ALONE = 1e-8  # 1 - h_i at which the rounding of float64 is 1e-8 of what a key adds
_SINGULAR = 1e-11  # ratio of pivots at which it is 1e-5 of the coefficients


class Ridge(Operator):
    """Ridge attention: least squares regression of each query on the keys.

    ::

        C* = argmin_C |q - C k|_F^2 + lam |C|_F^2 = q (k^T k + lam I)^-1 k^T,      output C v

    At q = k it is least squares self-expression. With `zero_diagonal` query i is regressed on the
    keys other than i, leave-one-out ridge: for ``M = (k^T k + lam I)^-1``, ``a_i = q_i M k_i^T``
    and the leverage ``h_i = k_i M k_i^T`` ::

        c_i v = q_i M k^T v + a_i / (1 - h_i) (k_i M k^T v - v_i)

    The linear systems have the size of head_dim or of the number of keys, whichever is smaller.
    They are formed and factored in float64 whatever the inputs are. All keys are coupled, so that
    masks may only hide whole keys: these are as if absent.

    Parameters
    ----------
    lam : float
        Penalty > 0. The papers give no default.
    relative : bool, default=False
        The penalty is ``lam s_1^2``, s_1 the largest singular value of the visible keys. Queries
        then shrink by ``1 / (1 + lam)`` in its direction, whatever the size and number of the keys;
        a fixed penalty cannot be compared across heads and depths. Gradients flow through s_1.
    zero_diagonal : bool, default=False
        Exclude key i from the regression of query i; needs as many queries as keys.
    num_heads : int, optional
        One `lam` a head instead of one for all.
    learnable : bool, default=False
        Train `lam` (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, or a mask is causal, differs between queries or is a bias. If
        lam is below the rounding of ``k^T k``.

    Warns
    -----
    UserWarning
        With `zero_diagonal`, if ``1 - h_i < 1e-8`` for a key: it is nearly alone in its direction,
        and the penalty is so small that rounding reaches ``2e-16 / (1 - h_i)`` of the output. Also
        if lam is below about 1e-11 of ``|k|^2`` and keys depend on each other.
        `least_squares_self_expression` solves this. Compiled and transformed calls do not warn.

    References
    ----------
    EQUATIONS QK-ridge, SE-LSR, SE-LSRd, FF-10, FF-10d. The closed form that the paper prints for
    self-expression is that without the zero diagonal (erratum E3-j).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import Ridge
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> Ridge(5.0).matrix(x, x)
    tensor([[0.1000, 0.2000],
            [0.2000, 0.4000]])
    >>> Ridge(1.0, zero_diagonal=True).matrix(x, x)
    tensor([[0.0000, 0.4000],
            [1.0000, 0.0000]])
    """

    causal = False
    pair_masks = False

    def __init__(
        self,
        lam: float,
        *,
        relative: bool = False,
        zero_diagonal: bool = False,
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
        self.zero_diagonal = zero_diagonal
        self.square_only = zero_diagonal

    def attend(self, call: Call) -> Tensor:
        q, k, v, mask, *_ = call
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if k.shape[-2] < k.shape[-1]:
            C = self._coefficients(call)
            return (C.to(wide) @ v.to(wide)).to(dtype)
        q, k, v = q.to(wide), visible_keys(k, mask, "Ridge").to(wide), v.to(wide)
        gram, moments = key_products(k, v)
        lam = scaled_penalty(self.lam(), gram, self.relative)
        factor = _factor(gram, lam)
        weights = torch.cholesky_solve(moments, factor)
        out = q @ weights.to(wide)
        if self.zero_diagonal:
            out = out + _leave_out(q, k, v, weights, factor, lam.to(wide))
        return out.to(dtype)

    def coefficients(self, call: Call) -> Tensor:
        return self._coefficients(call).to(call.q.dtype)

    def _coefficients(self, call: Call) -> Tensor:
        """Return ``C = q k^T P`` with ``P = (k k^T + lam I)^-1``.

        With `zero_diagonal` it is ``C - diag(C_ii / P_ii) P``: each query is regressed on the other
        keys.
        """
        q, k = call.q.double(), visible_keys(call.k, call.mask, "Ridge").double()
        gram = k @ k.mT
        lam = scaled_penalty(self.lam(), gram, self.relative)
        factor = _factor(gram, lam)
        if not self.zero_diagonal:
            return torch.cholesky_solve(k @ q.mT, factor).mT
        P = torch.cholesky_inverse(factor)
        C = q @ k.mT @ P
        ratio = C.diagonal(dim1=-2, dim2=-1) / P.diagonal(dim1=-2, dim2=-1)
        _warn_if_alone(lam * P.diagonal(dim1=-2, dim2=-1)[..., None])
        diagonal = torch.eye(k.shape[-2], dtype=torch.bool, device=k.device)
        return (C - ratio[..., None] * P).masked_fill(diagonal, 0)

    def extra_repr(self) -> str:
        return f"zero_diagonal={self.zero_diagonal}, relative={self.relative}"


def _factor(gram: Tensor, lam: Tensor) -> Tensor:
    """Return the Cholesky factor of ``gram + lam I``; say where lam is near its rounding."""
    matrix = gram + lam * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    if has_no_values(matrix) or is_transformed():
        return torch.linalg.cholesky(matrix)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed.any()):
        raise ValueError(
            "lam: is below the rounding of the keys' products, or these are no numbers; a larger "
            "penalty helps, or least_squares_self_expression"
        )
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square()
    if pivots.numel() and bool((pivots.amin(dim=-1) < _SINGULAR * pivots.amax(dim=-1)).any()):
        warnings.warn(
            "Ridge: keys depend on each other, and the penalty is so small that rounding is a "
            "visible part of the coefficients; increase lam",
            stacklevel=2,
        )
    return factor


def _leave_out(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, factor: Tensor, lam: Tensor
) -> Tensor:
    """Return ``a_i / (1 - h_i) (k_i M k^T v - v_i)``, what leaving out key i adds to output i."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False).mT
    whitened, one_minus_h, excess = _Leverage.apply(k, v, inverse, weights)
    _warn_if_alone(one_minus_h)
    a = (q @ inverse.to(q.dtype) * whitened).sum(dim=-1, keepdim=True)
    # 1 - h_i is never under its value for a key alone, where rounding may leave it at zero.
    least = lam / (lam + k.square().sum(dim=-1, keepdim=True))
    return a / torch.maximum(one_minus_h, least) * excess


def _warn_if_alone(one_minus_h: Tensor) -> None:
    """Warn if rounding is a large part of some ``1 - h_i``, of shape (..., 1)."""
    if has_no_values(one_minus_h) or is_transformed() or not one_minus_h.numel():
        return
    smallest = float(one_minus_h.detach().min())
    if smallest < _ALONE:
        warnings.warn(
            f"Ridge: a key is alone in its direction, 1 - h_i = {smallest:.2g}, so that rounding "
            "is a large part of its query's output; increase lam",
            stacklevel=2,
        )


class _Leverage(torch.autograd.Function):
    """``t = k L^-T``, ``1 - |t_i|^2`` and ``k W - v`` for the W of ridge regression.

    ``W = M k^T v`` and ``M = (L L^T)^-1``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(k, v, inverse, weights):  # type: ignore[no-untyped-def]
        wide_keys = k.double()
        whitened = wide_keys @ inverse
        one_minus_h = 1 - whitened.square().sum(dim=-1, keepdim=True)
        return tuple(x.to(k.dtype) for x in (whitened, one_minus_h, wide_keys @ weights - v))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        k, v, inverse, weights = inputs
        ctx.shape = v.shape
        ctx.save_for_backward(k, inverse, weights, output[0])

    @staticmethod
    def backward(ctx, by_whitened, by_rest, by_excess):  # type: ignore[no-untyped-def]
        k, inverse, weights, whitened = ctx.saved_tensors
        by_whitened = by_whitened - 2 * by_rest * whitened
        by_k = by_whitened @ inverse.to(k.dtype).mT + by_excess @ weights.to(k.dtype).mT
        gradients = (by_k, -by_excess, (k.mT @ by_whitened).to(inverse.dtype))
        shapes = (k.shape, ctx.shape, inverse.shape)
        gradients = tuple(x.sum_to_size(n) for x, n in zip(gradients, shapes, strict=True))
        return *gradients, (k.mT @ by_excess).to(weights.dtype).sum_to_size(weights.shape)
