"""For patches of an image, each patch and the closest others in a window around it."""

import numpy as np

from ..inputs import Array
from ..kernels.compiled import jit


def similar_patches(planes: Array, patch_size: int, window: int, n_similar: int) -> Array:
    """Indices of each patch and of the patches closest to it, as rows of `patch_rows`.

    Parameters
    ----------
    planes : ndarray of shape (channels, height, width)
    patch_size : int
    window : int
        Largest distance of two patches along an axis, in pixels, >= 0.
    n_similar : int
        At least 1; at most the number of patches in the window of a corner.

    Returns
    -------
    ndarray of int64 of shape (n_patches, n_similar)
        The patch itself, then the others sorted by squared distance, of equal ones the first in
        the image.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.solvers.sparse_coding.similar_patches import similar_patches
    >>> image = np.array([[[0.0, 0.0, 5.0, 1.0, 1.0]] * 2])
    >>> similar_patches(image, 2, 3, 1).ravel()
    array([0, 1, 2, 3])
    """
    down, across = (side - patch_size + 1 for side in planes.shape[1:])
    places = np.indices((down, across)).reshape(2, -1).T.copy()
    planes = np.ascontiguousarray(planes, dtype=np.float64)
    return closest(planes, places, patch_size, window, n_similar)


@jit
def closest(planes: Array, places: Array, size: int, window: int, n_similar: int) -> Array:
    """`similar_patches` of the patches at the positions (top, left) in `places`."""
    down, across = planes.shape[1] - size + 1, planes.shape[2] - size + 1
    indices = np.empty((len(places), n_similar), np.int64)
    best = np.empty(n_similar)
    for row in range(len(places)):
        top, left = places[row]
        best[:] = np.inf
        best[0], indices[row, 0] = 0.0, top * across + left
        for i in range(max(0, top - window), min(down, top + window + 1)):
            for j in range(max(0, left - window), min(across, left + window + 1)):
                if i == top and j == left:
                    continue
                distance = 0.0
                for c in range(len(planes)):
                    for y in range(size):
                        for x in range(size):
                            distance += (
                                planes[c, top + y, left + x] - planes[c, i + y, j + x]
                            ) ** 2
                    if distance >= best[-1]:
                        break
                if distance < best[-1]:
                    k = n_similar - 1
                    while k > 0 and best[k - 1] > distance:
                        best[k], indices[row, k] = best[k - 1], indices[row, k - 1]
                        k -= 1
                    best[k], indices[row, k] = distance, i * across + j
    return indices
