"""AttnScale: the high-pass part of attention, scaled."""

import warnings

import torch
from torch import Tensor, nn

from ..attention import Call, Correction, Operator, check_count, hidden_by
from .means import visible_mean


class AttnScale(Correction):
    """AttnScale: scale the high-pass part of an attention matrix by ``1 + omega``.

    ::

        A^ v = (1 + omega) A v - omega mean(v) = A (I + omega H) v,     H = I - 1 1^T / N

    ``1 1^T / N`` is the best filter inside A that lets only the mean pass; A^ keeps it and scales
    the rest. Rows of A^ sum to one, entries may be negative, and the eigenvalues of a square A^ are
    1 and ``(1 + omega) mu`` for every other eigenvalue mu of A. No N x N matrix is built where the
    base builds none.

    With a mask, the mean of a query is that of the values visible to it: under a causal mask the
    running mean. Rows still sum to one and hidden keys stay hidden, but ``A (I + omega H)`` is then
    only the form of each row over its own visible keys. A finite bias hides nothing, and keys that
    the base leaves out by itself count in the mean.

    Parameters
    ----------
    base : Operator
        The smoother. If it is not row stochastic the first form above still holds, but neither the
        second one nor the statement on rows; a warning says so.
    num_heads : int, optional
        Learn one omega a head instead of one for all.

    Attributes
    ----------
    omega : nn.Parameter of shape (num_heads, 1, 1) or ()
        Learned, of any sign; 0 at the start, which is the base itself.

    Raises
    ------
    ValueError
        If `base` is no `Operator`, or `num_heads` is not a whole number >= 1 or not that of q.

    References
    ----------
    Wang et al., "Anti-oversmoothing in deep vision transformers via the Fourier domain analysis"
    (2022); EQUATIONS AO-7 to AO-9, FF-1, FF-1c; the projector H is printed once without the 1/N
    (erratum E1-l).

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import AttnScale, Softmax
    >>> q = torch.randn(1, 2, 5, 8)
    >>> layer = AttnScale(Softmax(), num_heads=2)
    >>> bool((layer(q, q, q) == Softmax()(q, q, q)).all())
    True
    """

    def __init__(
        self,
        base: Operator,
        num_heads: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(base)
        self.nonnegative = False
        self.num_heads = None if num_heads is None else check_count(num_heads, "num_heads", 1)
        shape = () if num_heads is None else (num_heads, 1, 1)
        self.omega = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))
        if not base.row_stochastic:
            warnings.warn(
                f"AttnScale: {type(base).__name__} is not row stochastic: (1 + omega) A v - omega "
                "mean(v) holds, but it is not A (I + omega H) v, and rows do not sum to one",
                stacklevel=2,
            )

    def reset_parameters(self) -> None:
        """Return all parameters to their values at construction."""
        super().reset_parameters()
        nn.init.zeros_(self.omega)

    def attend(self, call: Call) -> Tensor:
        q, _, v, mask, is_causal, _ = call
        omega, smoothed = self._omega_for(q), call.output_of(self.base)
        mean = visible_mean(v, mask=mask, is_causal=is_causal, n_queries=q.shape[-2])
        return torch.addcmul(-omega * mean, 1 + omega, smoothed)

    def coefficients(self, call: Call) -> Tensor:
        A, pairs = call.matrix_of(self.base), call.pairs()
        visible = torch.ones(A.shape[-2:], dtype=torch.bool, device=A.device)
        if pairs is not None:
            visible = visible & ~hidden_by(pairs)
        uniform = visible.to(A.dtype) / visible.sum(dim=-1, keepdim=True).clamp(min=1)
        omega = self._omega_for(call.q)
        return (1 + omega) * A - omega * uniform

    def _omega_for(self, q: Tensor) -> Tensor:
        """Return omega in the dtype of q, after a check of the number of heads."""
        heads = q.shape[-3] if q.ndim > 2 else 1
        if self.num_heads not in (None, heads):
            raise ValueError(f"num_heads: AttnScale has {self.num_heads}, but q has {heads}")
        return self.omega.to(q.dtype)

    def extra_repr(self) -> str:
        if self.omega.is_meta:
            return f"num_heads={self.num_heads}"
        return "omega=" + ", ".join(f"{x:.4g}" for x in self.omega.flatten())
