"""Trained nonlinear reaction diffusion, started at gradient steps on a classical energy."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from ...attention import check_count, check_positive
from ...nonlocal_energy import FilterDiffusion, NonlocalFilterDiffusion
from ...nonlocal_energy.filter_banks import check_images
from ...sparse_coding.patches import Similar


class FilterDiffusionDenoiser(nn.Module):
    """Denoise by a few steps of diffusion, each with filters and influence functions of its own.

    ``u_0 = f`` and ``u_{k+1} = FilterDiffusion_k(u_k, f)``. At the start all steps are gradient
    steps, in the metric of `FilterDiffusion`, on one convex energy ::

        sum over windows w of  sum_i huber(<d_i, u_w>) + lam/2 |u_w - f_w|^2

    with the filters d_i of the discrete cosine transform and the Huber function of slope
    ``threshold * sigma``; the first is soft thresholding of all windows in the transform.

    Parameters
    ----------
    sigma : float, default=25/255
        Noise level in grey levels that the network is for, > 0.
    n_layers : int, default=5
        Number of steps, >= 1.
    filter_size : int, default=7
        Side of the windows, >= 2; each step has ``filter_size**2 - 1`` filters.
    threshold : float, default=0.3
        Threshold at the start, in noise levels.
    lam : float, default=0.1
        Weight of the fidelity at the start, >= 0.

    Raises
    ------
    ValueError
        If a number is out of range, or images have not four dimensions or are smaller than a
        window.

    References
    ----------
    Chen and Pock, "Trainable nonlinear reaction diffusion" (2017); EQUATIONS FE-1, FE-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import FilterDiffusionDenoiser
    >>> FilterDiffusionDenoiser(n_layers=2)(torch.rand(1, 1, 24, 24)).shape
    torch.Size([1, 1, 24, 24])
    """

    step_class: type[FilterDiffusion] = FilterDiffusion

    def __init__(
        self,
        *,
        sigma: float = 25 / 255,
        n_layers: int = 5,
        filter_size: int = 7,
        threshold: float = 0.3,
        lam: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.sigma = check_positive(sigma, "sigma")
        self.n_layers = check_count(n_layers, "n_layers", 1)
        self.filter_size = filter_size
        self.threshold = check_positive(threshold, "threshold")
        self.lam = lam
        self.steps = nn.ModuleList(
            self.step_class(
                self.threshold * self.sigma,
                lam=lam,
                filter_size=filter_size,
                device=device,
                dtype=dtype,
            )
            for _ in range(self.n_layers)
        )

    def reset_parameters(self) -> None:
        """Return to the steps on the classical energy."""
        for step in self._run_steps():
            step.reset_parameters()

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        u, others = noisy, self.others(noisy)
        for step in self.steps:
            u = step(u, noisy, *others)
        return u

    @property
    def margin(self) -> int:
        """Largest distance along an axis, in pixels, at which an input pixel affects an output."""
        return self.n_layers * (self.filter_size - 1)

    def others(self, noisy: Tensor) -> tuple[Any, ...]:
        """Return the arguments of the steps besides the images."""
        return ()

    def _run_steps(self) -> list[FilterDiffusion]:
        return [cast(FilterDiffusion, step) for step in self.steps]

    def extra_repr(self) -> str:
        return (
            f"sigma={self.sigma:.4g}, n_layers={self.n_layers}, filter_size={self.filter_size}, "
            f"threshold={self.threshold:.4g}, lam={self.lam:.4g}"
        )


class NonlocalFilterDiffusionDenoiser(FilterDiffusionDenoiser):
    """`FilterDiffusionDenoiser` whose filters respond to similar windows as well.

    Each filter responds to a learned mixture of a window and the mean of the windows of the noisy
    image that are closest to it: see `NonlocalFilterDiffusion`. These are found once. At first the
    mixture is the window alone, so that the steps are those of `FilterDiffusionDenoiser`.

    Parameters
    ----------
    n_similar : int, default=8
        Number of windows in the mean, the window itself among them, >= 1; fewer where an image has
        fewer.
    window : int, default=5
        Largest distance between them along an axis, in pixels, >= 0.
    sigma, n_layers, filter_size, threshold, lam
        Those of `FilterDiffusionDenoiser`.

    Raises
    ------
    ValueError
        As `FilterDiffusionDenoiser`.

    References
    ----------
    Qiao et al., "TNLRD: trainable nonlinear reaction diffusion with nonlocal self-similarity"
    (2017); EQUATIONS FE-1, FE-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import (
    ...     FilterDiffusionDenoiser, NonlocalFilterDiffusionDenoiser)
    >>> local, similar = FilterDiffusionDenoiser(), NonlocalFilterDiffusionDenoiser()
    >>> noisy = torch.rand(1, 1, 24, 24)
    >>> torch.allclose(similar(noisy), local(noisy), atol=1e-6)
    True
    """

    step_class = NonlocalFilterDiffusion

    def __init__(
        self,
        *,
        n_similar: int = 8,
        window: int = 5,
        sigma: float = 25 / 255,
        n_layers: int = 5,
        filter_size: int = 7,
        threshold: float = 0.3,
        lam: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            sigma=sigma,
            n_layers=n_layers,
            filter_size=filter_size,
            threshold=threshold,
            lam=lam,
            device=device,
            dtype=dtype,
        )
        self.n_similar = check_count(n_similar, "n_similar", 1)
        self.window = check_count(window, "window", 0)

    @property
    def margin(self) -> int:
        """Largest distance along an axis, in pixels, at which an input pixel affects an output."""
        return super().margin + 2 * self.n_layers * self.window

    def others(self, noisy: Tensor) -> tuple[Any, ...]:
        """Return the windows similar to each, within each channel."""
        check_images(noisy, "u", self.filter_size)
        planes = noisy.flatten(0, 1)[:, None]
        return (Similar.around(planes, self.filter_size, self.window, self.n_similar),)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n_similar={self.n_similar}, window={self.window}"
