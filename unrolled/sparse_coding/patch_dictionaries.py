"""Dictionaries of patches that layers start at, in float64."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_PHOTOGRAPHS = Path(__file__).with_name("photograph_dictionary.npz")


def cosine_dictionary(patch_size: int, n_frequencies: int, channels: int = 1) -> Tensor:
    """Overcomplete DCT dictionary, that of `twinsolve.solvers.sparse_coding.dct_dictionary`.

    Returns
    -------
    Tensor of shape (channels * (n_frequencies^2 - 1), channels * patch_size^2)

    Examples
    --------
    >>> from twinsolve.unrolled.sparse_coding.patch_dictionaries import cosine_dictionary
    >>> cosine_dictionary(8, 11).shape
    torch.Size([120, 64])
    """
    place = torch.arange(patch_size, dtype=torch.float64) + 0.5
    frequency = torch.arange(n_frequencies, dtype=torch.float64)
    waves = torch.cos(torch.pi / n_frequencies * torch.outer(frequency, place))
    waves[1:] -= waves[1:].mean(dim=1, keepdim=True)
    return _in_every_channel(torch.kron(waves, waves)[1:], channels)


def photograph_dictionary(channels: int = 1) -> Tensor:
    """K-SVD dictionary of 128 unit atoms for 8 x 8 patches of photographs without their means.

    Learned by `twinsolve.solvers.ksvd` (``n_nonzero=6, n_iter=15, random_state=0``) from 15,512
    patches of 380 grey photographs without noise, the first of the 400 of 180 x 180 pixels that
    denoisers are often trained on. Of several channels, each has these atoms for itself.

    Returns
    -------
    Tensor of shape (128 * channels, 64 * channels)

    References
    ----------
    Aharon, Elad and Bruckstein (2006); EQUATIONS IF-KSVD.

    Examples
    --------
    >>> from twinsolve.unrolled.sparse_coding.patch_dictionaries import photograph_dictionary
    >>> photograph_dictionary().shape
    torch.Size([128, 64])
    """
    with np.load(_PHOTOGRAPHS) as arrays:
        return _in_every_channel(torch.from_numpy(arrays["dictionary"]).double(), channels)


def _in_every_channel(atoms: Tensor, channels: int) -> Tensor:
    """Of unit norm, and for each channel by itself."""
    atoms = atoms / torch.linalg.vector_norm(atoms, dim=1, keepdim=True)
    return torch.kron(torch.eye(channels, dtype=atoms.dtype), atoms)
