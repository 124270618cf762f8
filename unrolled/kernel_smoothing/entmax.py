"""Entmax attention: between softmax and sparsemax, at an order that may be learned."""

import math
from typing import Any

import torch
from torch import Tensor

from ..attention import (
    Call,
    Operator,
    Positive,
    check_positive,
    has_no_values,
    has_static_value,
    is_transformed,
    map_query_blocks,
)
from ..attention.inputs import broadcasts_to
from .logits import masked_logits
from .simplex import subtract_largest

_MOST_STEPS = 100
_STEPS_OF_TRACING = 40  # enough for 2^32 keys
_STEPS_TO_ROUNDING = 8  # once the sum of a row is below 2
_SERIES = [1 / math.factorial(n) for n in range(2, 20)]  # to a rounding of float64 up to 1


def entmax_weights(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """Entmax of each row: softmax at alpha = 1, the projection on the simplex at alpha = 2.

    ::

        p = argmax_p p.z + sum_j (p_j - p_j^alpha) / (alpha (alpha - 1))  for p >= 0, sum_j p_j = 1
          = (1 + (alpha - 1) (z - c))_+^(1 / (alpha - 1)),   at alpha = 1  exp(z - c)

    with c such that the entries sum to one; Newton steps from the largest logit approach it from
    below. Nothing cancels as alpha tends to 1. For alpha > 1, entries that are ``1 / (alpha - 1)``
    or more below the largest are exactly zero.

    With ``s = p^(2 - alpha)`` on the support and 0 elsewhere, the derivative in z is ``diag(s) -
    s^T s / sum(s)``. That in alpha is ``sum(b) s / sum(s) - b`` with ``e = alpha - 1``, ``l = log
    p`` and ``b = (s - p (1 - e l)) / e^2``, at alpha = 1 ``p l^2 / 2``. Second derivatives are
    those of these formulas, right wherever no entry just enters the support.
    `twinsolve.unrolled.solved.solved_entmax` has a certificate, and is neither compiled nor traced.

    Parameters
    ----------
    logits : Tensor of shape (..., n)
        -inf excludes an entry.
    alpha : float or Tensor that broadcasts to (..., 1)
        From 1 to 2.

    Returns
    -------
    Tensor of shape (..., n)
        Computed in float32 at least. Zeros in rows of -inf alone.

    Raises
    ------
    ValueError
        If logits are integers, or an alpha does not fit or is out of range. Compiled code does not
        look at the range.

    References
    ----------
    Peters, Niculae and Martins, "Sparse sequence-to-sequence models" (2019); Correia, Niculae and
    Martins, "Adaptively sparse transformers" (2019); EQUATIONS EN-1, EN-3.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import entmax_weights
    >>> entmax_weights(torch.tensor([1.0, 0.0, -2.0]), 1.5)
    tensor([0.8307, 0.1693, 0.0000])
    """
    if not logits.is_floating_point():
        raise ValueError(f"logits: must be floating point, got {logits.dtype}")
    centred = subtract_largest(logits)
    order = torch.as_tensor(alpha, dtype=centred.dtype, device=centred.device)
    wanted = (*logits.shape[:-1], 1)
    if not broadcasts_to(order.shape, wanted):
        raise ValueError(f"alpha: must broadcast to {wanted}, got shape {tuple(order.shape)}")
    readable = not (has_no_values(order) or is_transformed())
    if readable and not bool(((order >= 1) & (order <= 2)).all()):
        raise ValueError(f"alpha: must be from 1 to 2, got {order.detach().flatten().tolist()}")
    if logits.shape[-1] == 0:
        return logits
    order = order.expand(*centred.shape[:-1], 1)
    p: Tensor = _Entmax.apply(centred, order, readable and not has_no_values(centred))
    return p.to(logits.dtype)


class _Entmax(torch.autograd.Function):
    """Entmax of rows whose largest entry is 0, with its gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, alpha: Tensor, readable: bool) -> Tensor:
        excess, c = alpha - 1, torch.zeros_like(alpha)
        for _ in range(_MOST_STEPS if readable else _steps_of(z.shape[-1])):
            log_p = _log_entmax(z, excess, c)
            p = log_p.exp()
            slope = _powers(p, log_p, excess).sum(dim=-1, keepdim=True)
            rise = (p.sum(dim=-1, keepdim=True) - 1) / slope.clamp(min=1)
            c = c + rise.clamp(min=0)
            if readable and not bool((rise > 16 * torch.finfo(z.dtype).eps).any()):
                break
        p = _log_entmax(z, excess, c).exp()
        return p / p.sum(dim=-1, keepdim=True).clamp(min=0.5)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, alpha = ctx.saved_tensors
        log_p, excess = torch.where(p > 0, p, 1).log(), alpha - 1
        s = _powers(p, log_p, excess)
        total = s.sum(dim=-1, keepdim=True).clamp(min=0.5)
        mean = (s * gradient).sum(dim=-1, keepdim=True) / total
        of_alpha = None
        if ctx.needs_input_grad[1]:
            b = _bend(p, log_p, s, excess)
            of_alpha = (b * (mean - gradient)).sum(dim=-1, keepdim=True)
        return s * (gradient - mean), of_alpha, None


def _steps_of(n: int) -> int:
    """Return enough Newton steps: the sum of n entries falls by a factor of e in each at least."""
    if not has_static_value(n):
        return _STEPS_OF_TRACING
    return int(math.log(n)) + _STEPS_TO_ROUNDING


def _log_entmax(z: Tensor, excess: Tensor, c: Tensor) -> Tensor:
    """Return the logarithm of ``(1 + excess (z - c))_+^(1 / excess)``."""
    y = z - c
    powers = torch.log1p((excess * y).clamp(min=-1)) / excess.masked_fill(excess == 0, 1)
    return torch.where(excess > 0, powers, y)


def _powers(p: Tensor, log_p: Tensor, excess: Tensor) -> Tensor:
    """Return ``p^(2 - alpha)`` on the support, and 0 off it."""
    inside = p > 0
    return torch.where(inside, ((1 - excess) * torch.where(inside, log_p, 0)).exp(), 0)


def _bend(p: Tensor, log_p: Tensor, s: Tensor, excess: Tensor) -> Tensor:
    """Return the b of `entmax_weights`, by a series where its terms would cancel."""
    x = -excess * log_p
    small = x < 1
    series = torch.zeros_like(x)
    for factor in reversed(_SERIES):
        series = series * torch.where(small, x, 0) + factor
    divisor = excess.masked_fill(excess == 0, 1).square()
    return torch.where(small, p * log_p.square() * series, (s - p - p * x) / divisor)


class Entmax(Operator):
    """Attention with the entmax of the logits, between softmax and sparsemax.

    ::

        A_i = argmax_p p.z_i + sum_j (p_j - p_j^alpha) / (alpha (alpha - 1)),   z_i = scale q_i k^T

    over the simplex: softmax at alpha = 1, `Sparsemax` at alpha = 2. Above 1 most coefficients are
    exactly zero. A learned alpha is ``1 + t / (1 + t)``, strictly between 1 and 2, with t > 0
    stored as its logarithm. Queries are taken in blocks, recomputed in the backward pass, so that
    memory is linear in the number of tokens. A row without visible keys gives zeros.

    Parameters
    ----------
    alpha : float, default=1.5
        From 1 to 2; if learnable, its start, strictly between.
    scale : float, optional
        > 0. None is ``head_dim ** -0.5``.
    num_heads : int, optional
        Learn one alpha a head; None with ``learnable=True`` learns a single one.
    learnable : bool, default=False

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    See `entmax_weights`; EQUATIONS EN-1 to EN-3.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import Entmax
    >>> q, k = torch.tensor([[1.0]]), torch.tensor([[2.0], [1.0], [-1.0]])
    >>> Entmax(1.5, scale=1.0).matrix(q, k)
    tensor([[0.8307, 0.1693, 0.0000]])
    """

    row_stochastic = True
    nonnegative = True
    additive_masks = True

    def __init__(
        self,
        alpha: float = 1.5,
        *,
        scale: float | None = None,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(alpha, "alpha")
        if not 1 <= alpha <= 2 or (learnable and alpha in (1, 2)):
            allowed = "strictly between 1 and 2 where it is learned" if learnable else "from 1 to 2"
            raise ValueError(f"alpha: must be {allowed}, got {alpha:g}")
        self.alpha = float(alpha)
        self.scale = None if scale is None else check_positive(scale, "scale")
        odds = (self.alpha - 1) / (2 - self.alpha) if learnable else 1.0
        self.odds = Positive(
            odds, name="odds", num_heads=num_heads, learnable=learnable, device=device, dtype=dtype
        )

    def order(self) -> float | Tensor:
        """Return alpha, of shape () or (num_heads, 1, 1) if it is learned."""
        if self.odds.log is None:
            return self.alpha
        # In 16 bits alpha would have three digits.
        wide = torch.promote_types(self.odds.log.dtype, torch.float32)
        return 1 + self.odds.log.to(wide).sigmoid()

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """Logits of shape (..., n_queries, n_keys), in float32 at least."""
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        wide = torch.promote_types(q.dtype, torch.float32)
        return (scale * q.to(wide)) @ k.to(wide).mT

    def attend(self, call: Call) -> Tensor:
        k, v, alpha = call.k, call.v, self.order()

        def block(rows: Tensor, start: int) -> Tensor:
            logits = masked_logits(self.logits(rows, k), call.pairs_of(rows, start))
            return entmax_weights(logits, alpha).to(v.dtype) @ v

        return map_query_blocks(block, call.q)

    def coefficients(self, call: Call) -> Tensor:
        logits = masked_logits(self.logits(call.q, call.k), call.pairs())
        return entmax_weights(logits, self.order()).to(call.q.dtype)

    def extra_repr(self) -> str:
        scale = "head_dim ** -0.5" if self.scale is None else f"{self.scale:.4g}"
        return f"alpha={self.alpha:.4g}, scale={scale}"
