"""Attention by position alone: the Gaussian filter."""

import torch
from torch import Tensor

from ..attention import Context, Positive, SoftmaxSmoother, check_count, query_offset
from .gaussian import gaussian_attention


class SpatialGaussian(SoftmaxSmoother):
    """Gaussian smoothing by the distance of tokens on a grid, whatever their content.

    ``A_ij = exp(-|p_i - p_j|^2 / (2 s^2)) / sum_l exp(-|p_i - p_l|^2 / (2 s^2))``, the bilateral
    filter in the limit of infinite range width. Positions are those of the token index on the grid,
    ``p_t = (t // width, t % width)``; queries and keys are ignored, and an `Attention` shell
    projects none, but fewer queries than keys are the last tokens. One call of fused attention on
    the positions, in float32 at least.

    Parameters
    ----------
    bandwidth : float
        s > 0, in steps of the grid.
    width : int, default=1
        Number of columns of the grid, on which tokens lie row by row; the last row may be
        incomplete. 1 is a sequence.
    num_heads : int, optional
        One bandwidth a head instead of one for all.
    learnable : bool, default=False
        Train the bandwidth (its logarithm).

    Raises
    ------
    ValueError
        If a number is out of range, or there are more queries than keys.

    References
    ----------
    EQUATIONS QK-local, IF-13 with ``h_p^2 = 2 s^2`` and ``h_y`` infinite.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled import SpatialGaussian
    >>> q = torch.randn(3, 2)
    >>> SpatialGaussian(1.0).matrix(q, q)[1]
    tensor([0.2741, 0.4519, 0.2741])
    """

    reads = ("v",)

    def __init__(
        self,
        bandwidth: float,
        *,
        width: int = 1,
        num_heads: int | None = None,
        learnable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.width = check_count(width, "width", 1)
        self.positional = "relative" if width == 1 else "absolute"
        self.bandwidth = Positive(
            bandwidth,
            name="bandwidth",
            num_heads=num_heads,
            learnable=learnable,
            device=device,
            dtype=dtype,
        )

    def positions(self, k: Tensor) -> Tensor:
        """Row and column of each token, of shape (..., n_keys, 2)."""
        tokens = torch.arange(k.shape[-2], device=k.device)
        grid = torch.stack([tokens // self.width, tokens % self.width], dim=-1)
        wide = torch.promote_types(k.dtype, torch.float32)
        return grid.to(wide).expand(*k.shape[:-1], 2)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        context: Context | None,
    ) -> Tensor:
        p = self.positions(k)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(p.dtype)
        smoothed = gaussian_attention(
            p[..., query_offset(q, k) :, :],
            p,
            v.to(p.dtype),
            bandwidth=self.bandwidth().to(p.dtype),
            mask=mask,
            is_causal=is_causal,
        )
        return smoothed.to(v.dtype)

    def logits(self, q: Tensor, k: Tensor, context: Context | None) -> Tensor:
        p = self.positions(k)
        own = p[..., query_offset(q, k) :, :]
        squares = (own[..., :, None, :] - p[..., None, :, :]).square().sum(dim=-1)
        return -squares / (2 * self.bandwidth().to(p.dtype) ** 2)

    def extra_repr(self) -> str:
        return f"width={self.width}"
