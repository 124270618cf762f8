"""Re-attention: attention maps mixed over heads, a rival of AttnScale against oversmoothing."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Call, Operator, check_count, hidden_by, map_query_blocks, masked_softmax
from ..kernel_smoothing import Gaussian, Softmax, gaussian_logits

# A row depends on its query alone, not on index or context, so that blocks of rows can be made.
_ROWS_ALONE = (Gaussian, Softmax)


class ReAttention(Operator):
    """Re-attention: mix the attention maps of the heads, and normalise over heads.

    ::

        A'_h = Norm(M)_h,     M_h = sum_g Theta_gh A_g,     output A'_h v_h
        Norm(M)_h = gamma_h (M_h - mean_g M_g) / sqrt(var_g M_g + 1e-5) + beta_h

    Mean and variance are taken over the heads, for each pair of query and key by itself. The paper
    leaves Norm open. Statistics over samples and pairs, as in batch normalisation, would let a row
    depend on other samples and on pairs that it must not see. Hidden pairs are zero in A'. Rows do
    not sum to one and entries may be negative; where all heads agree, ``A' = beta``.

    Maps are made explicitly, in blocks of queries that are recomputed in the backward pass, so that
    memory stays linear in their number. The norm enlarges their rounding up to 1 / sqrt(1e-5), some
    300 times, where heads agree. Maps of float32 are therefore made, mixed and normalised in
    float64, and those of bfloat16 and float16 in float32.

    Parameters
    ----------
    base : Operator
        `Softmax` or `Gaussian`, whose rows can be made block by block.
    num_heads : int

    Attributes
    ----------
    theta : nn.Parameter of shape (num_heads, num_heads)
        The identity at the start.
    norm : nn.LayerNorm
        Holds gamma and beta, 1 and 0 at the start.

    Raises
    ------
    ValueError
        If `base` is another operator, or `num_heads` is not a whole number >= 1 or not that of q.

    References
    ----------
    Zhou et al., "DeepViT: towards deeper vision transformer" (2021).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import ReAttention, Softmax
    >>> q = torch.randn(1, 2, 5, 8)
    >>> ReAttention(Softmax(), 2)(q, q, q).shape
    torch.Size([1, 2, 5, 8])
    """

    additive_masks = True

    def __init__(
        self,
        base: Operator,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if type(base) not in _ROWS_ALONE:
            raise ValueError(
                "base: must be Softmax() or Gaussian(), whose maps can be made in blocks of "
                f"queries, got {base!r}"
            )
        self.base = base
        self.num_heads = check_count(num_heads, "num_heads", 1)
        self.theta = nn.Parameter(torch.empty(num_heads, num_heads, device=device, dtype=dtype))
        self.norm = nn.LayerNorm(num_heads, device=device, dtype=dtype)
        nn.init.eye_(self.theta)

    def reset_parameters(self) -> None:
        """Return all parameters to their values at construction, those of the base too."""
        super().reset_parameters()
        nn.init.eye_(self.theta)
        self.norm.reset_parameters()

    def attend(self, call: Call) -> Tensor:
        out_type, call = call.v.dtype, _widen(call)
        mixing, attend = self._mixing_parameters(call.q), _maps_of(self.base, call)

        def block(rows: Tensor, start: int) -> Tensor:
            part = call.pairs_of(rows, start)
            maps = self._mix_heads(attend(rows, part), part, *mixing)
            return (maps.to(call.v.dtype) @ call.v).to(out_type)

        return map_query_blocks(block, call.q)

    def coefficients(self, call: Call) -> Tensor:
        call = _widen(call)
        mask, mixing = call.pairs(), self._mixing_parameters(call.q)
        return self._mix_heads(_maps_of(self.base, call)(call.q, mask), mask, *mixing)

    def _mixing_parameters(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return theta and the norm's weight and bias, in the dtype of q."""
        if q.ndim < 3 or q.shape[-3] != self.num_heads:
            heads = q.shape[-3] if q.ndim > 2 else 1
            raise ValueError(f"num_heads: ReAttention has {self.num_heads}, but q has {heads}")
        return self.theta.to(q.dtype), self.norm.weight.to(q.dtype), self.norm.bias.to(q.dtype)

    def _mix_heads(
        self, A: Tensor, mask: Tensor | None, theta: Tensor, gamma: Tensor, beta: Tensor
    ) -> Tensor:
        """Mix the maps of the heads by theta, and normalise over heads."""
        mixed = A.movedim(-3, -1) @ theta  # (..., n_queries, n_keys, heads)
        mixed = F.layer_norm(mixed, (self.num_heads,), gamma, beta, self.norm.eps).movedim(-1, -3)
        return mixed if mask is None else mixed.masked_fill(hidden_by(mask), 0)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"


def _widen(call: Call) -> Call:
    """Return the call with tokens and mask in twice the bits, values in float32 at least."""
    wide = torch.float32 if call.q.dtype.itemsize == 2 else torch.float64
    mask, v = call.mask, call.v
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(wide)
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    return call._replace(q=call.q.to(wide), k=call.k.to(wide), v=v, mask=mask)


def _maps_of(base: Operator, call: Call) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function of rows of queries and their mask: the maps of each head."""
    if not isinstance(base, Gaussian):
        return lambda rows, mask: base.matrix(rows, call.k, mask=mask)
    bandwidth = base.bandwidth_for(call.q)
    return lambda rows, mask: masked_softmax(gaussian_logits(rows, call.k, bandwidth), mask)
