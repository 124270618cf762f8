"""Denoising by sparse codes of overlapping patches: ISTA with parameters for each iteration."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...attention import check_count, check_positive
from ...sparse_coding.coding_step import CodingStep, GroupCodingStep
from ...sparse_coding.patches import (
    Similar,
    average_patches,
    check_patched,
    cosine_dictionary,
    patch_rows,
    split_means,
)


class PatchCodingDenoiser(nn.Module):
    """Denoise images by unrolled ISTA on the codes of all overlapping patches.

    Let y be a patch of the image minus the mean m of each of its channels. K steps give its code ::

        c <- S_{t_k}( c + s_k (y - c D_k) A_k^T ),     c = 0 at first

    and each pixel is the mean of ``m + c W`` over the patches that contain it. At first ``A_k = D_k
    = W`` is an overcomplete DCT dictionary D, ``s_k = 1 / |D|_2^2`` and ``t_k = s_k lam / 2``, so
    that these are K iterations of ISTA on ``|Y - C D|_F^2 + lam |C|_1``, as in
    `twinsolve.solvers.denoise_ista`. Patches lie within the image; nothing is padded. Memory is
    linear in pixels: `n_atoms` numbers each. In training, bfloat16 autocast is several times as
    fast.

    Parameters
    ----------
    n_layers : int, default=6
        K >= 1.
    sigma : float, default=25/255
        Noise level in grey levels that `lam` is for, > 0.
    lam : float, optional
        Penalty > 0 at first; None is ``3 sigma``.
    patch_size : int, default=8
        Side of the patches, >= 2; images are at least as large.
    n_frequencies : int, default=11
        Number of cosines along each axis: there are ``channels (n_frequencies^2 - 1)`` atoms.
    channels : int, default=1
        Number of channels of the images.

    Attributes
    ----------
    layers : ModuleList of CodingStep
    dictionary : Parameter of shape (n_atoms, channels * patch_size^2)
        W, with which patches are reconstructed.

    Raises
    ------
    ValueError
        If an argument is out of range, or images have other channels or are smaller than a patch.

    References
    ----------
    Gregor and LeCun (2010), Simon and Elad (2019), Lecouat, Ponce and Mairal (2020); EQUATIONS
    SE-15, SE-17, IF-KSVD.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import PatchCodingDenoiser
    >>> network = PatchCodingDenoiser(2, patch_size=4, n_frequencies=6)
    >>> network(torch.rand(1, 1, 16, 20)).shape
    torch.Size([1, 1, 16, 20])
    """

    step_class: ClassVar[type[CodingStep]] = CodingStep

    def __init__(
        self,
        n_layers: int = 6,
        *,
        sigma: float = 25 / 255,
        lam: float | None = None,
        patch_size: int = 8,
        n_frequencies: int = 11,
        channels: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.n_layers = check_count(n_layers, "n_layers", 1)
        self.sigma = check_positive(sigma, "sigma")
        self.lam = 3 * self.sigma if lam is None else check_positive(lam, "lam")
        self.patch_size = check_count(patch_size, "patch_size", 2)
        self.n_frequencies = check_count(n_frequencies, "n_frequencies", patch_size)
        self.channels = check_count(channels, "channels", 1)
        device = torch.get_default_device() if device is None else device
        with torch.device("cpu"):  # a number is read from it
            atoms = cosine_dictionary(patch_size, n_frequencies, channels)
        step = float(torch.linalg.matrix_norm(atoms, 2)) ** -2
        D = atoms.to(device, dtype or torch.get_default_dtype())
        self.layers = nn.ModuleList(
            self.step_class(D, self.lam, step, from_zero=k == 0) for k in range(n_layers)
        )
        self.dictionary = nn.Parameter(D.clone())

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        check_patched(noisy, self.channels, self.patch_size)
        signals, means = split_means(patch_rows(noisy, self.patch_size), self.channels)
        others, codes, unit = self.others(noisy), None, signals.new_empty(0)
        for layer in self.layers:
            assert isinstance(layer, CodingStep)
            codes, unit = layer(signals, *others, codes, unit), layer.threshold()
        assert codes is not None
        rows = codes @ (unit[:, None] * self.dictionary).to(codes.dtype)
        return average_patches(means + rows, noisy.shape)

    @property
    def margin(self) -> int:
        """Largest distance along an axis, in pixels, at which an input pixel affects an output."""
        return self.patch_size - 1

    def others(self, noisy: Tensor) -> tuple[Any, ...]:
        """Return the arguments of the layers besides signals and codes."""
        return ()

    def extra_repr(self) -> str:
        return (
            f"n_layers={self.n_layers}, sigma={self.sigma:.4g}, lam={self.lam:.4g}, "
            f"patch_size={self.patch_size}, n_frequencies={self.n_frequencies}, "
            f"channels={self.channels}"
        )


class GroupCodingDenoiser(PatchCodingDenoiser):
    """`PatchCodingDenoiser` whose thresholds attend to the codes of similar patches.

    How far each layer shrinks an atom in a patch depends on the atom's mean energy over the patches
    of the noisy image that are closest to that patch in a window: see `GroupCodingStep`. These
    patches are found once. At first the weights of the means are zero, so that the iterations are
    those of `PatchCodingDenoiser` and of `twinsolve.solvers.denoise_ista`.

    Parameters
    ----------
    n_layers : int, default=6
    n_similar : int, default=8
        Number of patches in the mean, the patch itself among them, >= 1; fewer where an image has
        fewer.
    window : int, default=5
        Largest distance between them along an axis, in pixels, >= 0.
    sigma, lam, patch_size, n_frequencies, channels
        Those of `PatchCodingDenoiser`.

    Raises
    ------
    ValueError
        As `PatchCodingDenoiser`.

    References
    ----------
    Lecouat, Ponce and Mairal (2020); EQUATIONS SE-15, SE-17, IF-KSVD.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.unrolled.models.denoisers import GroupCodingDenoiser, PatchCodingDenoiser
    >>> settings, noisy = {"patch_size": 4, "n_frequencies": 6}, torch.rand(1, 1, 16, 20)
    >>> grouped, apart = (
    ...     network(2, **settings)(noisy) for network in (GroupCodingDenoiser, PatchCodingDenoiser))
    >>> torch.allclose(grouped, apart, atol=1e-6)
    True
    """

    step_class = GroupCodingStep

    def __init__(
        self,
        n_layers: int = 6,
        *,
        n_similar: int = 8,
        window: int = 5,
        sigma: float = 25 / 255,
        lam: float | None = None,
        patch_size: int = 8,
        n_frequencies: int = 11,
        channels: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            n_layers,
            sigma=sigma,
            lam=lam,
            patch_size=patch_size,
            n_frequencies=n_frequencies,
            channels=channels,
            device=device,
            dtype=dtype,
        )
        self.n_similar = check_count(n_similar, "n_similar", 1)
        self.window = check_count(window, "window", 0)

    @property
    def margin(self) -> int:
        """Largest distance along an axis, in pixels, at which an input pixel affects an output."""
        return super().margin + self.n_layers * self.window

    def others(self, noisy: Tensor) -> tuple[Any, ...]:
        """Return the patches similar to each."""
        return (Similar.around(noisy, self.patch_size, self.window, self.n_similar),)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n_similar={self.n_similar}, window={self.window}"
