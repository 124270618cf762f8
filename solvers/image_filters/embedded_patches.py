"""Non-local means that compare patches after a linear map."""

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, as_numbers
from .shifted_average import overlap


def embedded_means(
    guide: ArrayLike,
    values: ArrayLike,
    embedding: ArrayLike,
    *,
    h: float,
    noise: float = 0.0,
    patch_distance: int = 6,
) -> Array:
    """Average values over windows with weights from the embedded patches of a guide.

    ::

        u_i = sum_j w_ij v_j / sum_j w_ij
        w_ij = exp(-max(|W (p_i - p_j)|^2 - 2 noise^2, 0) / h^2)

    with v the pixels of `values`, W the `embedding`, p_i the patch around pixel i of `guide`
    (padded by reflection), and j in the window of i, clipped to the image. It is computed in
    float64, one shift of the image after another.

    Parameters
    ----------
    guide, values : array-like of shape (channels, height, width)
        They may have different numbers of channels.
    embedding : array-like of shape (n_features, channels, patch_size, patch_size)
        The linear map W.
    h : float
        Decay > 0, in grey levels.
    noise : float, default=0.0
        Noise level of the guide, >= 0.
    patch_distance : int, default=6
        Half width of the window.

    Returns
    -------
    ndarray of the shape of `values`

    Raises
    ------
    ValueError
        If shapes do not fit or a number is out of range.

    References
    ----------
    Buades, Coll and Morel (2005); EQUATIONS IF-14w.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.image_filters import embedded_means
    >>> image = np.eye(3)[None]
    >>> bool(np.array_equal(
    ...     embedded_means(image, image, np.ones((1, 1, 1, 1)), h=0.1, patch_distance=0), image))
    True
    """
    named = {"guide": guide, "values": values, "embedding": embedding}
    guide, values, W = (as_numbers(x, name, np.float64) for name, x in named.items())
    if guide.ndim != 3 or values.ndim != 3 or guide.shape[1:] != values.shape[1:]:
        raise ValueError(
            "values: must have shape (channels, height, width) with the height and width of the "
            f"guide, got {values.shape} for a guide of shape {guide.shape}"
        )
    if W.ndim != 4 or W.shape[1] != len(guide) or W.shape[2] != W.shape[3]:
        raise ValueError(
            f"embedding: must have shape (n_features, {len(guide)}, patch_size, patch_size), "
            f"got {W.shape}"
        )
    h, noise = check_positive(h, "h"), check_positive(noise, "noise", allow_zero=True)
    n = check_integer(patch_distance, "patch_distance", minimum=0)
    features = _features(guide, W)
    height, width = guide.shape[1:]
    total, mass = np.zeros_like(values), np.zeros((height, width))
    for down in range(-min(n, height - 1), min(n, height - 1) + 1):
        for right in range(-min(n, width - 1), min(n, width - 1) + 1):
            here = overlap(height, down), overlap(width, right)
            there = overlap(height, -down), overlap(width, -right)
            squares = np.square(features[:, *here] - features[:, *there]).sum(axis=0)
            weights = np.exp(-np.maximum(squares - 2 * noise**2, 0) / h**2)
            total[:, *here] += weights * values[:, *there]
            mass[here] += weights
    return total / mass


def _features(guide: Array, W: Array) -> Array:
    """Return the embedded patch of each pixel, of shape (n_features, height, width)."""
    size = W.shape[-1]
    border = ((size - 1) // 2, size // 2)
    padded = np.pad(guide, ((0, 0), border, border), mode="reflect")
    patches = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
    return np.einsum("fckl,cyxkl->fyx", W, patches, optimize=True)
