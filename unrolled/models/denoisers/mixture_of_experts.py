"""Denoising by sparse mixtures of experts on overlapping patches: unrolled matching pursuit."""

import torch
from torch import Tensor, nn

from ...attention import check_count, check_positive
from ...sparse_coding.coding_step import PursuitStep
from ...sparse_coding.patches import (
    average_patches,
    check_patched,
    patch_rows,
    photograph_dictionary,
    split_means,
)

_PATCH_SIZE = 8


class MixtureOfExpertsDenoiser(nn.Module):
    """Denoise images by mixtures of experts that take one atom after the other from each patch.

    The first residual is a patch minus the mean of each of its channels. Each of the K layers sends
    the residual to one of its experts, an atom with a signed code, and subtracts this part: see
    `PursuitStep`. A pixel of the output is the mean of all subtracted parts, with the patch's mean,
    over the patches that contain it. At first all atoms are those of a K-SVD dictionary of
    photographs, and the layers are K steps of matching pursuit with a soft threshold, as in
    `twinsolve.solvers.sparse_coding.denoise_matching`. The router's choice need not be that of
    orthogonal matching pursuit, as the paper conjectures: `codes` shows it.

    Parameters
    ----------
    n_layers : int, default=6
        K >= 1, the most atoms of a patch.
    sigma : float, default=25/255
        Noise level in grey levels that `threshold` is for, > 0.
    threshold : float, optional
        Threshold of each layer at first, > 0; None is ``2 sigma``.
    channels : int, default=1
        Number of channels of the images.

    Attributes
    ----------
    layers : ModuleList of PursuitStep
    patch_size : int
        That of the dictionary, 8.

    Raises
    ------
    ValueError
        If an argument is out of range, or images have other channels or are smaller than a patch.

    References
    ----------
    Revisiting Transformers with Insights from Image Filtering; EQUATIONS IF-32, IF-33, IF-KSVD.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import MixtureOfExpertsDenoiser
    >>> MixtureOfExpertsDenoiser(2)(torch.rand(1, 1, 16, 20)).shape
    torch.Size([1, 1, 16, 20])
    """

    def __init__(
        self,
        n_layers: int = 6,
        *,
        sigma: float = 25 / 255,
        threshold: float | None = None,
        channels: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.n_layers = check_count(n_layers, "n_layers", 1)
        self.sigma = check_positive(sigma, "sigma")
        threshold = 2 * self.sigma if threshold is None else threshold
        self.threshold = check_positive(threshold, "threshold")
        self.channels = check_count(channels, "channels", 1)
        self.patch_size = _PATCH_SIZE
        device = torch.get_default_device() if device is None else device
        with torch.device("cpu"):  # it is read from a file
            D = photograph_dictionary(channels)
        D = D.to(device, dtype or torch.get_default_dtype())
        self.layers = nn.ModuleList(PursuitStep(D, self.threshold) for _ in range(n_layers))

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width).

        Images of bfloat16 and float16 are computed in float32, as rounding would choose other
        atoms.
        """
        signals, means = self._patches(noisy)
        residual = signals
        for layer in self.layers:
            residual, _, _ = layer(residual)
        return average_patches(means + signals - residual, noisy.shape).to(noisy.dtype)

    @property
    def margin(self) -> int:
        """Largest distance along an axis, in pixels, at which an input pixel affects an output."""
        return self.patch_size - 1

    def codes(self, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """Return the atoms that routers choose, and their codes, each (n_patches, n_layers)."""
        residual, _ = self._patches(noisy)
        by_layer = []
        for layer in self.layers:
            residual, atoms, codes = layer(residual)
            by_layer.append((atoms, codes))
        atoms, codes = (torch.stack(columns, dim=1) for columns in zip(*by_layer, strict=True))
        return atoms, codes

    def _patches(self, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """Return the patches without their means, and the means, in float32 at least."""
        check_patched(noisy, self.channels, self.patch_size)
        wide = noisy.to(torch.promote_types(noisy.dtype, torch.float32))
        return split_means(patch_rows(wide, self.patch_size), self.channels)

    def extra_repr(self) -> str:
        return (
            f"n_layers={self.n_layers}, sigma={self.sigma:.4g}, threshold={self.threshold:.4g}, "
            f"channels={self.channels}"
        )
