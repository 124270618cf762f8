"""Denoising by sparse codes of all overlapping patches: iterated, solved, or pursued."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..solution import Array
from .image_patches import denoise_patches
from .iterations import ista, repeated


class CodingParameters(NamedTuple):
    """Parameters of one iteration ``C <- S_t( C + s (Y - C D) A^T )``.

    Attributes
    ----------
    analysis, synthesis : ndarray of shape (n_atoms, n_features)
        A and D.
    step : float
        s.
    threshold : ndarray of shape (n_atoms,)
        t, for each atom.
    """

    analysis: Array
    synthesis: Array
    step: float
    threshold: Array


def coded_by(Y: Array, layers: Iterable[CodingParameters]) -> Array:
    """Codes of the rows of Y from zero, by one iteration of each of the layers.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding.patch_codes import CodingParameters, coded_by
    >>> layer = CodingParameters(np.eye(2), np.eye(2), 1.0, np.array([1.0, 0.1]))
    >>> coded_by(np.array([[3.0, 0.5]]), [layer])
    array([[2. , 0.4]])
    """
    layers = list(layers)

    def move(codes: Array, layer: CodingParameters) -> Array:
        residual = Y - codes @ layer.synthesis
        z = codes + layer.step * residual @ layer.analysis.T
        return np.sign(z) * np.maximum(np.abs(z) - layer.threshold, 0)

    *_, codes = repeated(move, np.zeros((len(Y), len(layers[0].analysis))), layers)
    return codes


def denoise_ista(
    image: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float,
    n_iter: int,
    step: float | None = None,
    channel_axis: int | None = None,
) -> Array:
    """Denoise an image by so many ISTA iterations on the codes of all overlapping patches.

    ``min_C |Y - C D|_F^2 + lam |C|_1`` with a row of Y for each patch without the means of its
    channels; see `ista` for the iteration and `denoise_patches` for the average.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels
    dictionary : array-like of shape (n_atoms, channels * patch_size^2)
    lam : float
        Penalty > 0, in grey levels.
    n_iter : int
    step : float, optional
        None is ``1 / |D|_2^2``.
    channel_axis : int, optional

    Returns
    -------
    ndarray of the shape of `image`

    References
    ----------
    EQUATIONS SE-15, IF-KSVD.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding import dct_dictionary, denoise_ista
    >>> image = np.outer(np.ones(16), np.arange(16) // 8)
    >>> noisy = image + np.random.default_rng(0).normal(0, 0.1, image.shape)
    >>> denoised = denoise_ista(noisy, dct_dictionary(4, 6), lam=0.3, n_iter=10)
    >>> bool(np.square(denoised - image).mean() < 0.5 * np.square(noisy - image).mean())
    True
    """
    D = np.asarray(dictionary, dtype=np.float64)
    step = float(np.linalg.norm(D, 2)) ** -2 if step is None else step
    return denoise_patches(
        image,
        lambda rows: ista(rows, D, lam=lam, n_iter=n_iter, step=step).coef @ D,
        patch_size=patch_side(D, image, channel_axis),
        channel_axis=channel_axis,
    )


def patch_side(D: Array, image: ArrayLike, channel_axis: int | None) -> int:
    """Side of the square patches that atoms are of.

    Raises
    ------
    ValueError
        If there is none.
    """
    channels = 1 if channel_axis is None else np.shape(image)[channel_axis]
    side = round((D.shape[-1] / channels) ** 0.5)
    if D.ndim != 2 or channels * side**2 != D.shape[-1]:
        raise ValueError(
            f"dictionary: must have rows of {channels} square patches, got shape {D.shape}"
        )
    return side
