"""Two-layer wavelet scattering of images, small and deterministic."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import fft, fft2, fftfreq, ifft2
from sklearn.utils import gen_batches

from .features import channels_first

_BATCH = 16
_ALIASES = 3
_WRAPS = 8


def scattering_features(images: ArrayLike, *, scales: int = 3, angles: int = 8) -> np.ndarray:
    """Local averages of images, of their wavelet moduli, and of the wavelet moduli of the moduli.

    With the low-pass ``phi_J``, wavelets ``psi_(j, theta)``, cyclic convolutions ``*``, x an image
    and

    - ``S_0 = x * phi_J``,
    - ``S_1(j, theta) = |x * psi_(j, theta)| * phi_J``,
    - ``S_2(j, theta, j', theta') = ||x * psi_(j, theta)| * psi_(j', theta')| * phi_J``, ``j < j'``,

    the features are S_0, S_1, S_2 at the centres of the blocks of ``2^J x 2^J`` pixels, times
    ``2^J``. The scales are ``j = 0, ..., J - 1``, the angles ``theta = pi l / L``,
    ``l = 0, ..., L - 1``. `phi_J` is the Gaussian of standard deviation ``0.8 2^J`` and sum 1. The
    wavelets are Morlet wavelets: a Gaussian of standard deviation ``0.8 2^j`` along theta and
    ``0.8 2^j L / 4`` across (round for L = 4), times ``exp(i xi t) - kappa``, where t is the
    coordinate along theta, ``xi = 3 pi / (4 2^j)``, and kappa makes the sum 0. All wavelets share
    one factor. It is the largest for which ``|phi_J|^2 + (|psi(w)|^2 + |psi(-w)|^2) / 2``, summed
    over scales and angles in the Fourier domain, is at most 1 at every w.

    The map has three consequences of this. It increases distances by at most 1 %, only through the
    aliasing of the sampled low-pass. It hardly changes when an image moves by less than ``2^J``
    pixels. If an image turns by 90 degrees, the maps turn and the angles shift by L / 2 (L even,
    square images).

    Parameters
    ----------
    images : array-like of shape (n_images, height, width) or (n_images, height, width, n_channels)
        Height and width must be multiples of ``2^J``. Images are periodic: opposite borders touch.
    scales : int, default=3
        Number J of scales.
    angles : int, default=8
        Number L of angles.

    Returns
    -------
    ndarray of shape (n_images, n_channels * n_maps * (height / 2^J) * (width / 2^J))
        Features are sorted by channel, map, row and column. There are
        ``n_maps = 1 + J L + J (J - 1) L^2 / 2`` maps: S_0, then S_1 by (j, theta), then S_2 by
        (j, j', theta, theta'). float32 for float32 input, else float64. Images are processed a few
        at a time: memory beyond the result does not grow with their number.

    Raises
    ------
    ValueError
        If images are not finite or have another shape, or ``2^J`` does not divide their sides.

    References
    ----------
    Bruna and Mallat, "Invariant scattering convolution networks" (2013).

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.datasets import scattering_features
    >>> scattering_features(np.ones((2, 32, 32))).shape
    (2, 3472)
    """
    pixels = channels_first(images)
    shape = pixels.shape[2:]
    if scales < 1 or angles < 1 or any(side % 2**scales for side in shape):
        raise ValueError(
            "scales, angles: must be >= 1, and 2^scales must divide height and width, got "
            f"{scales} and {angles} for images of {shape[0]} x {shape[1]}"
        )
    bank = _filters(shape, scales, angles)
    bank = _Filters(*(array.astype(pixels.dtype) for array in bank))
    maps = pixels.reshape(-1, *shape)
    parts = [_scatter(maps[batch], bank) for batch in gen_batches(len(maps), _BATCH)]
    return np.concatenate(parts).reshape(len(pixels), -1)


class _Filters(NamedTuple):
    """Wavelets in the Fourier domain, real (J, L, height, width), and matrices of the low-pass."""

    wavelets: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _scatter(x: np.ndarray, bank: _Filters) -> np.ndarray:
    """Return the features S_0, S_1 and S_2 of each image."""
    first = _modulus(x[:, None, None], bank.wavelets)
    maps = [_local_means(x[:, None], bank), _local_means(first, bank)]
    for j in range(len(bank.wavelets) - 1):
        second = _modulus(first[:, j, None, :, None], bank.wavelets[j + 1 :, None])
        maps.append(_local_means(second, bank))
    return np.concatenate(maps, axis=1)


def _modulus(x: np.ndarray, wavelets: np.ndarray) -> np.ndarray:
    """Return the moduli ``|x * psi|`` of convolutions with wavelets."""
    z = ifft2(fft2(x) * wavelets, overwrite_x=True)
    return np.sqrt(z.real**2 + z.imag**2)


def _local_means(u: np.ndarray, bank: _Filters) -> np.ndarray:
    """Return ``u * phi_J`` at the centres of the blocks, times ``2^J``."""
    means = bank.rows @ (u @ bank.columns.T)
    return means.reshape(len(u), -1)


@lru_cache(maxsize=4)
def _filters(shape: tuple[int, int], scales: int, angles: int) -> _Filters:
    """Return all filters for images of `shape`, scaled by one factor so that no energy grows."""
    rows, columns = (_low_pass(side, scales) for side in shape)
    step = 2.0**scales
    # Any row holds the low-pass of one direction; the transform of both is a product.
    low = np.outer(*(np.abs(fft(matrix[0])) ** 2 for matrix in (rows, columns)))
    turns = math.pi * np.arange(angles) / angles
    wavelets = np.array(
        [[_morlet(shape, 2.0**j, theta, angles) for theta in turns] for j in range(scales)]
    )
    energy = (wavelets**2).sum(axis=(0, 1))
    energy = (energy + np.roll(energy[::-1, ::-1], 1, axis=(0, 1))) / 2
    energy[0, 0] = 1.0  # at frequency 0 the wavelets are zero and the low-pass is one
    low[0, 0] = 0.0
    factor = math.sqrt(((1 - low) / energy).min())
    return _Filters(factor * wavelets, math.sqrt(step) * rows, math.sqrt(step) * columns)


def _low_pass(side: int, scales: int) -> np.ndarray:
    """Return a matrix whose row b is the periodic Gaussian around the centre of block b."""
    step = 2**scales
    centres = np.arange(0, side, step) + (step - 1) / 2
    offsets = np.arange(side) - centres[:, None]
    wraps = side * np.arange(-_WRAPS * step // side - 1, _WRAPS * step // side + 2)
    weights = np.exp(-(((offsets[..., None] + wraps) / (0.8 * step)) ** 2) / 2).sum(axis=-1)
    return weights / weights.sum(axis=1, keepdims=True)


def _morlet(shape: tuple[int, int], scale: float, angle: float, angles: int) -> np.ndarray:
    """Return the Fourier transform of a Morlet wavelet, which is real."""
    aliases = 2 * math.pi * np.arange(-_ALIASES, _ALIASES + 1)
    y, x = (2 * math.pi * fftfreq(side)[:, None] + aliases for side in shape)
    y, x = y[:, None, :, None], x[None, :, None, :]
    along = x * math.cos(angle) + y * math.sin(angle)
    across = y * math.cos(angle) - x * math.sin(angle)
    wide = 0.8 * scale
    centre = 3 * math.pi / (4 * scale)

    def gaussian(shift: float) -> np.ndarray:
        exponent = (wide * (along - shift)) ** 2 + (wide * angles / 4 * across) ** 2
        return np.exp(-exponent / 2).sum(axis=(2, 3))

    wave, envelope = gaussian(centre), gaussian(0.0)
    return wave - wave[0, 0] / envelope[0, 0] * envelope
