"""Denoise images by sparse codes of all overlapping patches.

The codes come from a number of ISTA iterations, from the Lasso, or from matching pursuit.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_positive
from ..inputs import Array, as_numbers
from .image_patches import denoise_patches
from .iterations import ista, repeated
from .lasso import sparse_code
from .matching_pursuit import pursue_rows


class CodingParameters(NamedTuple):
    """Parameters of one iteration ``C <- S_t( C + s (Y - C D) A^T )``.

    Attributes
    ----------
    analysis, synthesis : ndarray of shape (n_atoms, n_features)
        A and D.
    step : float
        s.
    threshold : ndarray of shape (n_atoms,)
        t >= 0 of each atom.
    sharing : ndarray of shape (n_atoms,) or float
        b, the weight of similar signals in the energy that is compared with the threshold.
    """

    analysis: Array
    synthesis: Array
    step: float
    threshold: Array
    sharing: Array | float = 0.0


def coded_by(Y: Array, layers: Iterable[CodingParameters], similar: Array | None = None) -> Array:
    """Return the codes of the rows of Y: from zero, one iteration for each layer.

    Without `similar`, S_t is the soft threshold. With it, S_t shrinks each entry z_i of its
    argument (row i, one atom) to ::

        c_i = z_i max(1 - t / sqrt(e_i), 0),    e_i = (1 - b) z_i^2 + b mean_{l in S_i} z_l^2

    where S_i is row i of `similar` (n_signals, n_similar), the indices of similar rows, and t and b
    are the layer's `threshold` and `sharing`. A negative e_i counts as zero. ``b = 0`` is again the
    soft threshold, and ``t = 0`` keeps z.

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
        if similar is None:
            return np.sign(z) * np.maximum(np.abs(z) - layer.threshold, 0)
        return _shrink_groups(z, layer, similar)

    *_, codes = repeated(move, np.zeros((len(Y), len(layers[0].analysis))), layers)
    return codes


def _shrink_groups(z: Array, layer: CodingParameters, similar: Array) -> Array:
    """Shrink z by energies that similar rows share."""
    squares = z**2
    energy = (1 - layer.sharing) * squares
    for others in similar.T:
        energy += layer.sharing * squares[others] / similar.shape[1]
    return z * _gate(np.sqrt(np.maximum(energy, 0)), layer.threshold)


def _gate(size: Array, threshold: Array | float) -> Array:
    """Return ``max(1 - threshold / size, 0)``, and 1 if the threshold is 0."""
    largest = np.maximum(size, threshold)
    return 1 - np.divide(threshold, largest, out=np.zeros_like(largest), where=largest > 0)


class ExpertParameters(NamedTuple):
    """Parameters of one step ``x <- x - max(1 - t / |x . r_j|, 0) (x . a_j) p_j``.

    The expert j is the one with the largest ``|x . r_j|``.

    Attributes
    ----------
    router, analysis, synthesis : ndarray of shape (n_atoms, n_features)
        Rows are r_j, a_j and p_j.
    threshold : float
        t.
    """

    router: Array
    analysis: Array
    synthesis: Array
    threshold: float


def left_by(Y: Array, layers: Iterable[ExpertParameters]) -> Array:
    """Return the residuals of the rows of Y after one step for each layer.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding.patch_codes import ExpertParameters, left_by
    >>> left_by(np.array([[0.5, -3.0]]), [ExpertParameters(np.eye(2), np.eye(2), np.eye(2), 1.0)])
    array([[ 0.5, -1. ]])
    """
    residual = Y
    for router, analysis, synthesis, threshold in layers:
        scores = residual @ router.T
        best = np.abs(scores).argmax(axis=1)
        score = np.abs(scores[np.arange(len(residual)), best])
        code = _gate(score, threshold) * np.einsum("ij,ij->i", residual, analysis[best])
        residual = residual - code[:, None] * synthesis[best]
    return residual


def denoise_ista(
    image: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float,
    n_iter: int,
    step: float | None = None,
    channel_axis: int | None = None,
) -> Array:
    """Denoise an image by a number of ISTA iterations on the codes of all overlapping patches.

    The problem is ``min_C |Y - C D|_F^2 + lam |C|_1``. Each row of Y is a patch, less the means of
    its channels. See `ista` for the iteration and `denoise_patches` for the average.

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

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

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
    D = as_numbers(dictionary, "dictionary", np.float64)
    step = float(np.linalg.norm(D, 2)) ** -2 if step is None else step
    return denoise_patches(
        image,
        lambda rows: ista(rows, D, lam=lam, n_iter=n_iter, step=step).coef @ D,
        patch_size=patch_side(D, image, channel_axis),
        channel_axis=channel_axis,
    )


def denoise_lasso(
    image: ArrayLike,
    dictionary: ArrayLike,
    *,
    lam: float,
    tol: float = 1e-4,
    channel_axis: int | None = None,
    n_jobs: int | None = None,
) -> tuple[Array, float]:
    """Denoise an image by certified Lasso codes of all overlapping patches.

    The codes are the minimisers to which the iterations of `denoise_ista` converge.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels
    dictionary : array-like of shape (n_atoms, channels * patch_size^2)
    lam : float
        Penalty > 0, in grey levels.
    tol : float, default=1e-4
        Largest accepted duality gap of a patch, relative to its sum of squares without the mean.
    channel_axis : int, optional
    n_jobs : int, optional
        Threads; see `sparse_code`.

    Returns
    -------
    denoised : ndarray of the shape of `image`
    gap : float
        Largest duality gap of a patch, in squared grey levels: an upper bound on how far an
        objective is above its minimum.

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

    References
    ----------
    EQUATIONS SE-17, IF-KSVD.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding import dct_dictionary, denoise_lasso
    >>> noisy = np.random.default_rng(0).normal(0, 0.1, (12, 12))
    >>> denoised, gap = denoise_lasso(noisy, dct_dictionary(4, 6), lam=0.3)
    >>> gap < 1e-3
    True
    """
    D, gaps = as_numbers(dictionary, "dictionary", np.float64), []

    def code(rows: Array) -> Array:
        solution = sparse_code(rows, D, lam=lam, tol=tol, n_jobs=n_jobs)
        gaps.append(float(np.max(solution.gap)))
        return np.asarray(solution.coef @ D)

    side = patch_side(D, image, channel_axis)
    return denoise_patches(image, code, patch_size=side, channel_axis=channel_axis), max(gaps)


def denoise_matching(
    image: ArrayLike,
    dictionary: ArrayLike,
    *,
    threshold: float,
    n_iter: int,
    channel_axis: int | None = None,
) -> Array:
    """Denoise an image by matching pursuit with soft thresholds on all overlapping patches.

    Each iteration chooses the atom d_j with the largest ``|x . d_j|`` for the residual x of a
    patch, and subtracts ``S_t(x . d_j) d_j`` from x. That is zero if no correlation exceeds the
    threshold t.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels
    dictionary : array-like of shape (n_atoms, channels * patch_size^2)
    threshold : float
        t > 0, in grey levels.
    n_iter : int
        Number of iterations: a patch uses at most as many atoms.
    channel_axis : int, optional

    Returns
    -------
    ndarray of the shape of `image`

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

    References
    ----------
    Mallat and Zhang (1993); EQUATIONS IF-KSVD.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding import denoise_matching, dct_dictionary
    >>> noise = np.random.default_rng(0).normal(0, 0.1, (12, 12))
    >>> denoised = denoise_matching(noise, dct_dictionary(4, 6), threshold=0.2, n_iter=3)
    >>> bool(denoised.std() < 0.5 * noise.std())
    True
    """
    D = as_numbers(dictionary, "dictionary", np.float64)
    layers = [ExpertParameters(D, D, D, check_positive(threshold, "threshold"))] * n_iter
    return denoise_patches(
        image,
        lambda rows: rows - left_by(rows, layers),
        patch_size=patch_side(D, image, channel_axis),
        channel_axis=channel_axis,
    )


def denoise_pursuit(
    image: ArrayLike,
    dictionary: ArrayLike,
    *,
    sigma: float,
    gain: float = 1.15,
    channel_axis: int | None = None,
    n_jobs: int | None = None,
) -> Array:
    """Denoise an image by orthogonal matching pursuit on all overlapping patches.

    Each patch takes atoms until the norm of its residual is at most ``gain sigma sqrt(n)``, with n
    the number of its entries. This is the denoiser of K-SVD without the average with the noisy
    image.

    Parameters
    ----------
    image : array-like of shape (height, width), or with channels
    dictionary : array-like of shape (n_atoms, channels * patch_size^2)
    sigma : float
        Noise level > 0, in grey levels.
    gain : float, default=1.15
        The factor C > 0 of the papers.
    channel_axis : int, optional
    n_jobs : int, optional
        Threads.

    Returns
    -------
    ndarray of the shape of `image`

    Raises
    ------
    ValueError
        On NaN, infinity, or arguments out of range or of shapes that do not fit.

    References
    ----------
    Elad and Aharon (2006); EQUATIONS IF-KSVD.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding import dct_dictionary, denoise_pursuit
    >>> noise = np.random.default_rng(0).normal(0, 0.1, (12, 12))
    >>> denoised = denoise_pursuit(noise, dct_dictionary(4, 6), sigma=0.1)
    >>> bool(denoised.std() < 0.5 * noise.std())
    True
    """
    D = np.ascontiguousarray(as_numbers(dictionary, "dictionary", np.float64))
    bound = check_positive(gain, "gain") * check_positive(sigma, "sigma") * D.shape[-1] ** 0.5
    return denoise_patches(
        image,
        lambda rows: pursue_rows(rows, D, D.shape[1], bound, n_jobs=n_jobs) @ D,
        patch_size=patch_side(D, image, channel_axis),
        channel_axis=channel_axis,
    )


def patch_side(D: Array, image: ArrayLike, channel_axis: int | None) -> int:
    """Return the side of the square patches that are the rows of D.

    Raises
    ------
    ValueError
        If rows of this length are no square patches.
    """
    channels = 1 if channel_axis is None else np.shape(image)[channel_axis]
    side = round((D.shape[-1] / channels) ** 0.5)
    if D.ndim != 2 or channels * side**2 != D.shape[-1]:
        raise ValueError(
            f"dictionary: must have rows of {channels} square patches, got shape {D.shape}"
        )
    return side
