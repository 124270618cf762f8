"""A gradient step on the nonlocal energy of images, with weights of a window."""

import torch
from torch import Tensor, nn

from ..attention import Positive, check_positive


class NonlocalEnergyStep(nn.Module):
    """One step down the regularised nonlocal energy of images, at each pixel by its degree.

    ::

        E(u) = 1/4 sum_ij K_ij |u_i - u_j|^2 + lam/2 sum_i d_i |u_i - f_i|^2,     d_i = sum_j K_ij
        u+ = u - s D^-1 grad E(u) = u + s (A u - u + lam (f - u)),     A = D^-1 K

    with the symmetric weights K of an image layer, those of a window: the step of NeuTRENO on
    pixels. From ``u = f`` with ``s = 1`` it is the layer itself.

    Parameters
    ----------
    base : nn.Module
        ``base(guide, values)`` averages values with weights of the guide: `BilateralFilter`,
        `EmbeddedMeans`, `NonLocalMeansAttention`.
    lam : float, default=0.1
        Weight of the fidelity, > 0, at first.
    step : float, default=1.0
        s, > 0, at first. The energy falls for ``s (2 + lam) <= 2``.

    Attributes
    ----------
    lam, step : Positive

    Raises
    ------
    ValueError
        If a number is not positive; when called, if shapes differ.

    References
    ----------
    EQUATIONS NT-10, NT-22.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.image_filters import BilateralFilter
    >>> from twinsolve.unrolled.nonlocal_energy import NonlocalEnergyStep
    >>> base, noisy = BilateralFilter(), torch.rand(1, 1, 8, 8)
    >>> torch.allclose(NonlocalEnergyStep(base)(noisy, noisy), base(noisy))
    True
    """

    def __init__(
        self,
        base: nn.Module,
        lam: float = 0.1,
        *,
        step: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.lam, self.step = (
            Positive(
                check_positive(start, name), name=name, learnable=True, device=device, dtype=dtype
            )
            for name, start in (("lam", lam), ("step", step))
        )

    def reset_parameters(self) -> None:
        """Return lam and the step to their values at construction; the base stays as it is."""
        for own in (self.lam, self.step):
            own.reset_parameters()

    def forward(self, u: Tensor, f: Tensor) -> Tensor:
        """Step from u, for noisy images f, whose weights these are.

        Both are of shape (batch, channels, height, width).
        """
        if f.shape != u.shape:
            raise ValueError(f"f: must be of the shape of u, got {(*f.shape,)} and {(*u.shape,)}")
        lam, step = (own().to(u.dtype) for own in (self.lam, self.step))
        return u + step * (self.base(f, u) - u + lam * (f - u))
