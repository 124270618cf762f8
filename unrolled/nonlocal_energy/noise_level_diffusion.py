"""Diffusion by learned filters that follow the noise level of each image or pixel."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import check_positive
from ..sparse_coding.patches import patch_rows
from .filter_banks import filter_gradient, influence
from .filter_diffusion import KNOTS, FilterDiffusion

_N_POWERS = 2  # of the logarithm of the ratio, beyond the constant
_LOWEST, _HIGHEST = 0.2, 3.0  # ratios between which parameters vary


class NoiseLevelFilterDiffusion(FilterDiffusion):
    """One step of `FilterDiffusion` whose parameters are functions of the noise level.

    At r times the noise level of `threshold`, with ``t = log r`` ::

        thresholds   r threshold_i
        filters      k_i + t k'_i
        weights      weights_i + t weights'_i + t^2 weights''_i
        fidelity     lam + t lam' + t^2 lam''

    Below r = 0.2 and above r = 3, t is that of the end. At first the primed parameters are 0: r
    times the image at r times the noise gives r times the answer.

    Parameters
    ----------
    threshold, lam, filter_size
        Those of `FilterDiffusion`.

    Attributes
    ----------
    coefficient_slopes : Parameter of shape (n_filters, n_filters)
        k', in the transform.
    weight_slopes : Parameter of shape (2, n_filters, 5)
    lam_slopes : Parameter of shape (2,)

    Raises
    ------
    ValueError
        As `FilterDiffusion`.

    References
    ----------
    Chen and Pock, "Trainable nonlinear reaction diffusion" (2017); EQUATIONS FE-1, FE-2.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.nonlocal_energy import NoiseLevelFilterDiffusion
    >>> step, noisy = NoiseLevelFilterDiffusion(0.1, filter_size=3), torch.rand(2, 1, 9, 9)
    >>> of_each = step(noisy, noisy, torch.tensor([0.5, 2.0]))
    >>> torch.allclose(of_each[1:], step.at(2.0)(noisy[1:], noisy[1:]), atol=1e-6)
    True
    """

    def __init__(
        self,
        threshold: float,
        *,
        lam: float = 0.0,
        filter_size: int = 7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(threshold, lam=lam, filter_size=filter_size, device=device, dtype=dtype)
        self.coefficient_slopes = nn.Parameter(torch.zeros_like(self.coefficients))
        self.weight_slopes = nn.Parameter(self.weights.new_zeros(_N_POWERS, *self.weights.shape))
        self.lam_slopes = nn.Parameter(self.lam.new_zeros(_N_POWERS))

    def reset_parameters(self) -> None:
        """Return to thresholding in the discrete cosine transform at every noise level."""
        super().reset_parameters()
        if hasattr(self, "lam_slopes"):  # not yet when it is called by the base's constructor
            for slopes in (self.coefficient_slopes, self.weight_slopes, self.lam_slopes):
                nn.init.zeros_(slopes)

    def forward(self, u: Tensor, f: Tensor, ratio: Tensor) -> Tensor:  # type: ignore[override]
        """Take one step from u with noisy images f, both (batch, channels, height, width).

        `ratio` is r > 0: of shape (), of shape (batch,), or a map of the shape of `u`. A window of
        a map has the root of its mean square.
        """
        self._check(u, f)
        if ratio.ndim == u.ndim:
            return self._descend(u, f, self._gradient_by_map(u, ratio), self._lam(self._log(ratio)))
        if ratio.ndim == 0:
            return self._step_at(u, f, ratio)
        each = zip(u.split(1), f.split(1), ratio, strict=True)
        return torch.cat([self._step_at(*image) for image in each])

    def at(self, ratio: float) -> FilterDiffusion:
        """Return the step for one noise level, with parameters of its own."""
        r = self.lam.new_tensor(check_positive(ratio, "ratio"))
        t = self._log(r)
        step = FilterDiffusion(
            self.initial_threshold * ratio, lam=self.initial_lam, filter_size=self.filter_size
        ).to(self.lam)
        with torch.no_grad():
            step.coefficients.copy_(self.coefficients + t * self.coefficient_slopes)
            step.log_threshold.copy_(self.log_threshold + r.log())
            step.weights.copy_(self._weights(t))
            step.lam.copy_(self._lam(t))
        return step

    def _log(self, ratio: Tensor) -> Tensor:
        return ratio.log().clamp(math.log(_LOWEST), math.log(_HIGHEST))

    def _weights(self, t: Tensor) -> Tensor:
        return self.weights + t * self.weight_slopes[0] + t.square() * self.weight_slopes[1]

    def _lam(self, t: Tensor) -> Tensor:
        return self.lam + t * self.lam_slopes[0] + t.square() * self.lam_slopes[1]

    def _step_at(self, u: Tensor, f: Tensor, ratio: Tensor) -> Tensor:
        """Take a step at one ratio for all pixels."""
        t, threshold = self._log(ratio), ratio * self.log_threshold.exp()[:, None]
        filters = self._filters(self.coefficients + t * self.coefficient_slopes) / threshold
        weights = self._weights(t) * threshold.square()
        planes = u.flatten(0, 1)
        gradient = filter_gradient(planes, filters.to(u.dtype), weights.to(u.dtype), KNOTS)
        return self._descend(u, f, gradient.view_as(u), self._lam(t))

    def _gradient_by_map(self, u: Tensor, ratio: Tensor) -> Tensor:
        """Return the energy's gradient where each window has a ratio of its own.

        ``phi_i(z; r) = r phi_i(z / r; 1)`` at the weights of r.
        """
        planes, size = u.flatten(0, 1), self.filter_size
        r = F.avg_pool2d(ratio.flatten(0, 1).square(), size, stride=1).sqrt().reshape(-1, 1)
        t, threshold = self._log(r), self.log_threshold.exp()[:, None]
        filters, slopes = (
            (self._filters(x) / threshold).to(u.dtype)
            for x in (self.coefficients, self.coefficient_slopes)
        )
        windows = patch_rows(planes[:, None], size)
        z = (windows @ filters.mT + t * (windows @ slopes.mT)) / r
        phi: Any = 0.0
        for power, weights in enumerate((self.weights, *self.weight_slopes)):
            scaled = (weights * threshold.square()).to(u.dtype)
            phi = phi + t**power * influence(z, scaled, KNOTS)
        phi = r * phi
        found = (phi @ filters + (t * phi) @ slopes).unflatten(0, (len(planes), -1))
        return F.fold(found.mT, planes.shape[1:], size).view_as(u)
