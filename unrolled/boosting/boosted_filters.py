"""Boosting of an image layer: what it left over is smoothed again, or its result strengthened."""

import torch
from torch import Tensor, nn

from ..attention import Positive, check_count, check_positive


class BoostedFilter(nn.Module):
    """Boost a layer that averages pixels, with the weights A of the noisy image y throughout.

    ::

        u_0 = 0,     u_{k+1} = tau A (y + rho u_k) - (tau rho + tau - 1) u_k

    ``rho = -1`` is L2 boosting, ``u_{k+1} = u_k + tau A (y - u_k)``, of which two iterations with
    ``tau = 1`` are twicing, ``(2 A - A^2) y``; ``rho >= 0`` is SOS boosting, which strengthens the
    signal, operates the filter and subtracts the estimate.

    Parameters
    ----------
    base : nn.Module
        ``base(guide, values)`` averages values with weights of the guide: `BilateralFilter`,
        `EmbeddedMeans`, `NonLocalMeansAttention`.
    n_iter : int, default=2
        Applications of the base.
    rho : float, default=-1.0
        -1, or at least 0.
    tau : float, default=1.0
        Step, > 0, at first.

    Attributes
    ----------
    tau : Positive

    Raises
    ------
    ValueError
        If a number is out of range.

    References
    ----------
    Bühlmann and Yu (2003); Romano and Elad (2015); EQUATIONS IF-TW.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.boosting import BoostedFilter
    >>> from twinsolve.unrolled.image_filters import BilateralFilter
    >>> base, noisy = BilateralFilter(), torch.rand(1, 1, 8, 8)
    >>> once = base(noisy)
    >>> torch.allclose(BoostedFilter(base)(noisy), once + base(noisy, noisy - once))
    True
    """

    def __init__(
        self,
        base: nn.Module,
        n_iter: int = 2,
        *,
        rho: float = -1.0,
        tau: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.n_iter = check_count(n_iter, "n_iter", 1)
        if rho != -1 and not 0 <= rho < float("inf"):
            raise ValueError(f"rho: must be -1 or at least 0, got {rho!r}")
        self.rho = float(rho)
        start = check_positive(tau, "tau")
        self.tau = Positive(start, name="tau", learnable=True, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Return tau to its value at construction; the base stays as it is."""
        self.tau.reset_parameters()

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        rho, tau = self.rho, self.tau().to(noisy.dtype)
        u = tau * self.base(noisy, noisy)
        for _ in range(self.n_iter - 1):
            u = tau * self.base(noisy, noisy + rho * u) - (tau * rho + tau - 1) * u
        return u

    def extra_repr(self) -> str:
        return f"n_iter={self.n_iter}, rho={self.rho:.4g}"
