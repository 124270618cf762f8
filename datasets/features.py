"""Feature maps: principal components of points and windowed Fourier energies of images."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import rfft2
from scipy.linalg import eigh, svd
from sklearn.utils import check_array, gen_batches
from sklearn.utils.extmath import svd_flip

_BATCH = 4096


def pca_features(X: ArrayLike, n_components: int, *, center: bool = False) -> np.ndarray:
    """Coordinates of the rows of X along their leading principal directions.

    The result is ``X V``, or ``(X - mean) V`` if `center`. The columns of V are the leading right
    singular vectors. Without centring, linear subspaces through the origin stay linear subspaces,
    as self-expression needs.

    With at most as many rows as features, V comes from the singular value decomposition. With
    more rows, V holds eigenvectors of ``X^T X``, summed over batches of rows; singular values
    below about 1e-8 of the largest then count as zero. Both are computed in float64.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    n_components : int
        At most ``min(n_samples, n_features)``.
    center : bool, default=False

    Returns
    -------
    ndarray of shape (n_samples, n_components)
        float32 for float32 input, else float64. Columns have decreasing energy. The sign of each
        makes the largest entry of its direction positive.

    Raises
    ------
    ValueError
        If X is not a finite matrix, or `n_components` is out of range.

    Examples
    --------
    >>> from twinsolve.datasets import pca_features
    >>> pca_features([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0]], 1)
    array([[ 3.],
           [ 0.],
           [-3.]])
    """
    points: np.ndarray = check_array(X, dtype=[np.float64, np.float32], input_name="X")
    n, n_features = points.shape
    if not 1 <= n_components <= min(n, n_features):
        raise ValueError(
            f"n_components: must be 1 to {min(n, n_features)} for X of shape {points.shape}, "
            f"got {n_components}"
        )
    if center:
        points = points - points.mean(axis=0, dtype=np.float64).astype(points.dtype)
    if n <= n_features:
        directions = svd(points.astype(np.float64), full_matrices=False)[2][:n_components]
    else:
        moment = np.zeros((n_features, n_features))
        for batch in gen_batches(n, _BATCH):
            rows = points[batch].astype(np.float64)
            moment += rows.T @ rows
        directions = eigh(moment)[1][:, : -n_components - 1 : -1].T
    _, directions = svd_flip(None, directions, u_based_decision=False)
    return points @ directions.T.astype(points.dtype)


def fourier_energies(images: ArrayLike, *, window: int = 8, step: int = 4) -> np.ndarray:
    """Energies of the Fourier coefficients of an image seen through a sliding window.

    For window position p and frequency k, ``E_p(k) = |sum_u w(u) x(p + u) exp(-2 pi i k.u / m)|^2
    / m^2`` with u over the m x m pixels of the window and the periodic Hann window
    ``w(u) = sin^2(pi (u_1 + 1/2) / m) sin^2(pi (u_2 + 1/2) / m)``. For real images E_p(k) =
    E_p(-k): the column frequencies above m / 2 are left out, and those strictly between 0 and m / 2
    are doubled for them. So the energies of a position sum to ``sum_u w(u)^2 x(p + u)^2``.

    Parameters
    ----------
    images : array-like of shape (n_images, height, width) or (n_images, height, width, n_channels)
    window : int, default=8
        Side m of the window, in pixels.
    step : int, default=4
        Distance of neighbouring windows, in pixels. What does not fill a window is left out.

    Returns
    -------
    ndarray of shape (n_images, n_features)
        By channel, row and column of the window, then frequencies of rows ``0, ..., m - 1`` and of
        columns ``0, ..., m // 2``. float32 for float32 input, else float64.

    Raises
    ------
    ValueError
        If images are not finite or have another shape, or the window does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.datasets import fourier_energies
    >>> fourier_energies(np.ones((2, 16, 16))).shape
    (2, 360)
    """
    pixels = channels_first(images)
    height, width = pixels.shape[2:]
    if not 1 <= window <= min(height, width) or step < 1:
        raise ValueError(
            f"window, step: need 1 <= window <= {min(height, width)} and step >= 1, "
            f"got {window} and {step}"
        )
    hann = np.sin(np.pi * (np.arange(window) + 0.5) / window) ** 2
    taper = (np.outer(hann, hann) / window).astype(pixels.dtype)
    multiplicity = np.full(window // 2 + 1, 2, dtype=pixels.dtype)
    multiplicity[0] = 1
    if window % 2 == 0:
        multiplicity[-1] = 1
    parts = []
    for batch in gen_batches(len(pixels), 256):
        views = np.lib.stride_tricks.sliding_window_view(pixels[batch], (window, window), (2, 3))
        spectrum = rfft2(views[:, :, ::step, ::step] * taper)
        energies = multiplicity * (spectrum.real**2 + spectrum.imag**2)
        parts.append(energies.reshape(len(views), -1))
    return np.concatenate(parts)


def channels_first(images: ArrayLike) -> np.ndarray:
    """Return finite floating-point images as (n_images, n_channels, height, width)."""
    pixels: np.ndarray = check_array(
        images,
        dtype=[np.float64, np.float32],
        allow_nd=True,
        ensure_min_features=0,
        input_name="images",
    )
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape:
        raise ValueError(
            "images: must have shape (n_images, height, width) or "
            f"(n_images, height, width, n_channels), got {np.shape(images)}"
        )
    return np.moveaxis(pixels, 3, 1)
