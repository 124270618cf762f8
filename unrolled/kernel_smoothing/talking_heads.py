"""Talking heads: logits mixed over heads before the softmax, and weights behind it."""

import torch
from torch import Tensor, nn

from ..attention import Call, Operator, check_count, hidden_by, map_query_blocks, masked_softmax


class TalkingHeads(Operator):
    """Talking-heads attention: heads mix their logits before the softmax and their weights after.

    ::

        S_g = q_g k_g^T / sqrt(head_dim),       A_g = softmax(sum_f P_fg S_f)
        M_h = sum_g W_gh A_g,                   output M_h v_h

    With both mixes the identity, as at the start, it is scaled dot-product attention. The logits of
    a head are dot products of all heads' features side by side, the queries' weighted by ``P_fg``.
    A_g is thus kernel regression on all features, and the output a combination of such regressions.
    Entries of M may be negative, and its rows need not sum to one.

    A pair that a head's mask hides adds nothing to the logits through that head, and has no weight
    in it. An additive mask adds to the mixed logits. There are no biases: that of a head's logits
    would leave its softmax as it is, and that of its weights would weigh hidden keys.

    A fused kernel holds one head at a time and cannot mix them. Maps are therefore made explicitly,
    in float32 at least, in blocks of queries that are recomputed in the backward pass: quadratic
    time, linear memory.

    Parameters
    ----------
    num_heads : int
        >= 1.

    Attributes
    ----------
    mix_logits, mix_weights : nn.Parameter of shape (num_heads, num_heads)
        P and W, the identity at the start. Rows are the heads that speak.

    Raises
    ------
    ValueError
        If `num_heads` is not a whole number >= 1 or not that of q.

    References
    ----------
    Shazeer et al., "Talking-heads attention" (2020); Touvron et al. (2021), whose CaiT has it;
    EQUATIONS QK-heads.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.kernel_smoothing import Softmax, TalkingHeads
    >>> q = torch.randn(1, 2, 5, 8)
    >>> torch.allclose(TalkingHeads(2)(q, q, q), Softmax()(q, q, q), atol=1e-6)
    True
    """

    additive_masks = True

    def __init__(
        self,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = check_count(num_heads, "num_heads", 1)
        shape = (num_heads, num_heads)
        self.mix_logits = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.mix_weights = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return both mixes to the identity."""
        nn.init.eye_(self.mix_logits)
        nn.init.eye_(self.mix_weights)

    def attend(self, call: Call) -> Tensor:
        k, v = call.k, call.v

        def block(rows: Tensor, start: int) -> Tensor:
            return self._maps(rows, k, call.pairs_of(rows, start)).to(v.dtype) @ v

        return map_query_blocks(block, call.q)

    def coefficients(self, call: Call) -> Tensor:
        return self._maps(call.q, call.k, call.pairs())

    def _maps(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        heads = q.shape[-3] if q.ndim > 2 else 1
        if q.ndim < 3 or heads != self.num_heads:
            raise ValueError(f"num_heads: TalkingHeads has {self.num_heads}, but q has {heads}")
        wide = torch.promote_types(q.dtype, torch.float32)
        S = (q.shape[-1] ** -0.5 * q.to(wide)) @ k.to(wide).mT
        if mask is None:
            return _mix(self.mix_weights, _mix(self.mix_logits, S).softmax(dim=-1))
        hidden = hidden_by(mask)
        A = masked_softmax(_mix(self.mix_logits, S.masked_fill(hidden, 0)), mask)
        return _mix(self.mix_weights, A).masked_fill(hidden, 0)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"


def _mix(weights: Tensor, maps: Tensor) -> Tensor:
    """``sum_g weights_gh maps_g`` of maps (..., heads, n_queries, n_keys)."""
    mixed = weights.to(maps.dtype).mT @ maps.flatten(-2)
    return mixed.unflatten(-1, maps.shape[-2:])
