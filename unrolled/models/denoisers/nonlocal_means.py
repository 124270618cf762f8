"""Denoising by unrolled non-local means, on the patches of the estimate of the layer before."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...attention import check_count, check_positive
from ...image_filters import EmbeddedMeans


class NonLocalMeansStep(nn.Module):
    """One step of boosted non-local means with fidelity to the noisy image.

    ::

        u+ = (1 - lam) (tau A_u (y + rho u) - (tau rho + tau - 1) u) + lam y

    with A_u the `EmbeddedMeans` of the estimate u. It is SOS boosting. For ``tau = 1, rho = -1`` it
    is L2 boosting, whose second step is twicing; for ``tau = 1, rho = 0`` it is non-local means of
    y with the weights of u. At first ``lam = 0``.

    Parameters
    ----------
    h : float
        Decay at first, > 0.
    noise : float
        Noise level at first, >= 0, that distances in u are corrected for.
    tau, rho : float, default=1.0, 0.0
        Values at first.
    **settings
        Those of `EmbeddedMeans`.

    Attributes
    ----------
    means : EmbeddedMeans
    tau, rho, lam : Parameter of shape ()

    References
    ----------
    Romano and Elad (2015); EQUATIONS IF-14w, IF-TW.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers.nonlocal_means import NonLocalMeansStep
    >>> noisy = torch.rand(1, 1, 9, 9)
    >>> step = NonLocalMeansStep(0.1, 0.05)
    >>> torch.equal(step(noisy, noisy), step.means(noisy))
    True
    """

    def __init__(
        self,
        h: float,
        noise: float,
        *,
        tau: float = 1.0,
        rho: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **settings: int | str,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.means = EmbeddedMeans(h, noise=noise, **settings, **factory)  # type: ignore[arg-type]
        self.tau = nn.Parameter(torch.full((), tau, **factory))  # type: ignore[arg-type]
        self.rho = nn.Parameter(torch.full((), rho, **factory))  # type: ignore[arg-type]
        self.lam = nn.Parameter(torch.zeros((), **factory))  # type: ignore[arg-type]

    def forward(self, u: Tensor, noisy: Tensor) -> Tensor:
        """Take one step from u, of shape (batch, channels, height, width)."""
        tau, rho, lam = self.tau, self.rho, self.lam
        smoothed = self.means(u, noisy + rho * u)
        boosted = tau * smoothed - (tau * rho + tau - 1) * u
        return (1 - lam) * boosted + lam * noisy


class NonLocalMeansDenoiser(nn.Module):
    """Denoise images by non-local means that searches in the estimate of the layer before.

    See `NonLocalMeansStep` for a layer. At the start the first is
    `twinsolve.solvers.nonlocal_means`, and the others are steps of L2 boosting with the weights of
    the estimate ::

        u_1 = A(y) y,     u_{k+1} = u_k + tau A(u_k) (y - u_k)

    Parameters
    ----------
    n_layers : int, default=3
        K >= 1.
    sigma : float, default=25/255
        Noise level in grey levels that the decays are for, > 0.
    h : float, default=0.9
        Decay of the first layer at first, in noise levels, > 0.
    h_later : float, default=0.5
        Decay of the other layers at first, in noise levels, > 0.
    noise_later : float, default=0.3
        Noise level of the guides of the other layers at first, over that of the images, >= 0.
    tau : float, default=0.2
        Step of boosting at first.
    patch_size : int, default=7
        In pixels.
    patch_distance : int, default=6
        Half width of the search window.
    patch_weights : {"uniform", "gaussian"}, default="gaussian"
        Weights of the pixels of a patch at first.
    channels : int, default=1
        Number of channels of the images.

    Attributes
    ----------
    layers : ModuleList of NonLocalMeansStep
    rate_multipliers : dict
        Learning rates of scalar parameters, relative to that of embeddings.

    Raises
    ------
    ValueError
        If an argument is out of range, or images have other channels or are smaller than half a
        patch.

    References
    ----------
    Buades, Coll and Morel (2005); EQUATIONS SE-8, IF-14w, IF-TW.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import NonLocalMeansDenoiser
    >>> NonLocalMeansDenoiser(2)(torch.rand(1, 1, 16, 20)).shape
    torch.Size([1, 1, 16, 20])
    """

    rate_multipliers: ClassVar[dict[str, float]] = dict.fromkeys(
        ("*.tau", "*.rho", "*.lam", "*.noise", "*.h.log"), 10.0
    )

    def __init__(
        self,
        n_layers: int = 3,
        *,
        sigma: float = 25 / 255,
        h: float = 0.9,
        h_later: float = 0.5,
        noise_later: float = 0.3,
        tau: float = 0.2,
        patch_size: int = 7,
        patch_distance: int = 6,
        patch_weights: str = "gaussian",
        channels: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.n_layers = check_count(n_layers, "n_layers", 1)
        self.sigma = check_positive(sigma, "sigma")
        self.h = check_positive(h, "h")
        self.h_later = check_positive(h_later, "h_later")
        self.tau = check_positive(tau, "tau", allow_zero=True)
        self.noise_later = check_positive(noise_later, "noise_later", allow_zero=True)
        self.patch_size = patch_size
        self.patch_distance = patch_distance
        self.patch_weights = patch_weights
        self.channels = channels
        self.layers = nn.ModuleList(
            NonLocalMeansStep(
                self.sigma * (self.h if k == 0 else self.h_later),
                self.sigma * (1.0 if k == 0 else self.noise_later),
                tau=1.0 if k == 0 else self.tau,
                rho=0.0 if k == 0 else -1.0,
                patch_size=patch_size,
                patch_distance=patch_distance,
                patch_weights=patch_weights,
                channels=channels,
                device=device,
                dtype=dtype,
            )
            for k in range(n_layers)
        )

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        u = noisy
        for layer in self.layers:
            u = layer(u, noisy)
        return u

    @property
    def margin(self) -> int:
        """Largest distance along an axis, in pixels, at which an input pixel affects an output."""
        return self.n_layers * (self.patch_distance + self.patch_size // 2)

    def extra_repr(self) -> str:
        return (
            f"n_layers={self.n_layers}, sigma={self.sigma:.4g}, h={self.h:.4g}, "
            f"h_later={self.h_later:.4g}, noise_later={self.noise_later:.4g}, tau={self.tau:.4g}"
        )
