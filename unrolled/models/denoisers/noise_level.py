"""A denoiser of all noise levels: it takes that of each image, or of each pixel."""

from typing import cast

import torch
from torch import Tensor

from ...attention.tracing import has_no_values
from ...nonlocal_energy import NoiseLevelFilterDiffusion
from .filter_diffusion import FilterDiffusionDenoiser


class NoiseLevelDiffusionDenoiser(FilterDiffusionDenoiser):
    """`FilterDiffusionDenoiser` of all noise levels: ``network(noisy, sigma)``.

    See `NoiseLevelFilterDiffusion` for a step. At the start it is `FilterDiffusionDenoiser` for
    each noise level. The parameters vary from a fifth to three times the `sigma` of the network, 5
    to 75 of 255 by default. Beyond, they are those of the end, with thresholds that grow with the
    noise.

    Parameters
    ----------
    sigma : float, default=25/255
        Noise level in grey levels of the parameters without slopes, > 0; also that of a call
        without one.
    n_layers, filter_size, threshold, lam
        Those of `FilterDiffusionDenoiser`.

    Raises
    ------
    ValueError
        As `FilterDiffusionDenoiser`; or by a call, if noise levels are not positive and finite or
        have another shape.

    References
    ----------
    Chen and Pock, "Trainable nonlinear reaction diffusion" (2017); EQUATIONS FE-1, FE-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import NoiseLevelDiffusionDenoiser
    >>> network, noisy = NoiseLevelDiffusionDenoiser(n_layers=2), torch.rand(2, 1, 24, 24)
    >>> network(noisy, 0.1).shape
    torch.Size([2, 1, 24, 24])
    >>> of_each, map_of_levels = torch.tensor([0.05, 0.2]), torch.full((24, 24), 0.1)
    >>> bool(torch.allclose(network(noisy, map_of_levels), network(noisy, 0.1), atol=1e-5))
    True
    >>> network(noisy, of_each).shape
    torch.Size([2, 1, 24, 24])
    """

    step_class = NoiseLevelFilterDiffusion

    def forward(self, noisy: Tensor, sigma: Tensor | float | None = None) -> Tensor:
        """Denoise images of shape (batch, channels, height, width).

        `sigma` is the noise level in grey levels: a number, one for each image in shape (batch,) or
        (batch, 1, 1, 1), or a map that broadcasts to the images and has their height and width.
        """
        ratio = self._ratio(noisy, self.sigma if sigma is None else sigma)
        u = noisy
        for step in self.steps:
            u = step(u, noisy, ratio)
        return u

    def at(self, sigma: float) -> FilterDiffusionDenoiser:
        """Return the network for one noise level, in grey levels, with parameters of its own."""
        network = FilterDiffusionDenoiser(
            sigma=sigma, n_layers=self.n_layers, filter_size=self.filter_size,
            threshold=self.threshold, lam=self.lam,
        )  # fmt: skip
        for place, step in enumerate(self._run_steps()):
            network.steps[place] = cast(NoiseLevelFilterDiffusion, step).at(sigma / self.sigma)
        return network.train(self.training)

    def _ratio(self, noisy: Tensor, sigma: Tensor | float) -> Tensor:
        """Return noise levels over that of the network: (), (batch,) or the shape of the images."""
        dtype = next(self.parameters()).dtype
        levels = torch.as_tensor(sigma, dtype=dtype, device=noisy.device)
        if not has_no_values(levels) and not bool((levels.isfinite() & (levels > 0)).all()):
            raise ValueError("sigma: noise levels must be finite and > 0")
        ratio, batch = levels / self.sigma, noisy.shape[:1]
        if ratio.numel() == 1:
            return ratio.reshape(())
        if ratio.shape in (batch, (*batch, 1, 1, 1)):
            return ratio.reshape(batch)
        if ratio.shape[-2:] != noisy.shape[-2:] or not _broadcasts(ratio, noisy):
            raise ValueError(
                f"sigma: must be a number, one for each of {len(noisy)} images, or a map of "
                f"{noisy.shape[-2]} x {noisy.shape[-1]} pixels, got shape {(*ratio.shape,)}"
            )
        return ratio.expand(noisy.shape).to(noisy.dtype)


def _broadcasts(levels: Tensor, noisy: Tensor) -> bool:
    sides = zip(levels.shape[::-1], noisy.shape[::-1], strict=False)
    return levels.ndim <= noisy.ndim and all(side in (1, whole) for side, whole in sides)
