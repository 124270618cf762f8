"""Sparse coding of the overlapping patches of an image, as an image layer."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..attention import Positive, check_count, check_positive, own_copy
from .iterations import SparsePenalty, proximal_map, repeated
from .learned_ista import place_of
from .patches import average_patches, check_patched, patch_rows, split_means


class PatchSparseCoding(nn.Module):
    """Denoise images by ISTA on the codes of all overlapping patches, and average the patches.

    The rows of Y are the patches minus the mean m of each of their channels. The iteration ::

        C <- S_{s lam_j / 2}( C + s (Y - C D) D^T ),     C = 0 at first

    is repeated, with one dictionary D, step length s and penalties lam_j of atoms. Each pixel of
    the output is the mean of ``m + C D`` over the patches that contain it; nothing is padded. At
    the initial parameters it is `twinsolve.solvers.sparse_coding.denoise_ista`.

    Parameters
    ----------
    dictionary : array-like of shape (n_atoms, channels * patch_size^2)
        Such as `dct_dictionary` or that of `ksvd`.
    lam : float
        Penalty > 0 of all atoms at first, in grey levels.
    n_iter : int, default=1
    channels : int, default=1

    Attributes
    ----------
    dictionary : Parameter of shape (n_atoms, channels * patch_size^2)
    step : Positive
        ``1 / |D|_2^2`` at first.
    log_lam : Parameter of shape (n_atoms,)
        The logarithms of lam_j.

    Raises
    ------
    ValueError
        If an argument is out of range, or images have other channels or are smaller than a patch.

    References
    ----------
    Elad and Aharon (2006); EQUATIONS SE-15, IF-KSVD.

    Examples
    --------
    >>> import torch
    >>> from twinsolve.solvers.sparse_coding import dct_dictionary
    >>> from twinsolve.unrolled.sparse_coding import PatchSparseCoding
    >>> layer = PatchSparseCoding(dct_dictionary(4, 6), lam=0.3, dtype=torch.float32)
    >>> layer(torch.rand(1, 1, 16, 20)).shape
    torch.Size([1, 1, 16, 20])
    """

    def __init__(
        self,
        dictionary: ArrayLike | Tensor,
        lam: float,
        n_iter: int = 1,
        *,
        channels: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        device = place_of(dictionary) if device is None else device
        with torch.device("cpu"):  # a number is read from it
            D = own_copy(dictionary, dtype)
        self.lam = check_positive(lam, "lam")
        self.n_iter = check_count(n_iter, "n_iter", 1)
        self.channels = check_count(channels, "channels", 1)
        self.patch_size = round((D.shape[-1] / channels) ** 0.5)
        if D.ndim != 2 or channels * self.patch_size**2 != D.shape[1] or not D.is_floating_point():
            raise ValueError(
                f"dictionary: must be floating point, of shape (n_atoms, {channels} * "
                f"patch_size^2), got {D.dtype} {tuple(D.shape)}"
            )
        step = float(torch.linalg.matrix_norm(D.double(), 2)) ** -2
        D = D.to(device)
        self.dictionary = nn.Parameter(D)
        self.step = Positive(step, name="step", learnable=True, device=D.device, dtype=D.dtype)
        self.log_lam = nn.Parameter(D.new_full((len(D),), self.lam).log())

    def forward(self, images: Tensor) -> Tensor:
        """Denoise images of shape (batch, channels, height, width)."""
        check_patched(images, self.channels, self.patch_size)
        signals, means = split_means(patch_rows(images, self.patch_size), self.channels)
        D = self.dictionary.to(images.dtype)
        move = proximal_map(signals, D, SparsePenalty(self.log_lam.exp().to(images.dtype)))
        zero = signals.new_zeros(len(signals), len(D))
        codes = repeated(move, zero, [self.step().to(images.dtype)] * self.n_iter)
        return average_patches(means + codes @ D, images.shape)

    def extra_repr(self) -> str:
        return f"lam={self.lam:.4g}, n_iter={self.n_iter}, channels={self.channels}"
