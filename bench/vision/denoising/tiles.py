"""Large images tile by tile, with the overlap that a network's layers see."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from ....solvers.solution import Array


def in_tiles(
    denoise: Callable[[Array], Array], noisy: Array, *, margin: int, side: int = 512
) -> Array:
    """Denoise an image in tiles: the answer of the whole image, with the memory of one tile.

    Each tile of `side` x `side` pixels is denoised with `margin` pixels around it, less where the
    image ends, and these are cut off again. If no pixel of the answer depends on pixels further
    than `margin` along an axis, nor on where in the image it is, this is the answer of the whole.

    Parameters
    ----------
    denoise : callable
        Takes and returns an image.
    noisy : ndarray of shape (height, width) or (height, width, channels)
    margin : int
        >= 0; of a network its attribute `margin`.
    side : int, default=512
        >= 1.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.ndimage import uniform_filter
    >>> from twinsolve.bench.vision.denoising.tiles import in_tiles
    >>> image = np.random.default_rng(0).random((9, 11))
    >>> parts = in_tiles(lambda part: uniform_filter(part, 3), image, margin=1, side=4)
    >>> np.allclose(parts, uniform_filter(image, 3), rtol=0, atol=1e-15)
    True
    """
    if margin < 0 or side < 1:
        raise ValueError(f"margin, side: must be >= 0 and >= 1, got {margin} and {side}")
    denoised = np.empty(noisy.shape)
    for place in product(*(list(_cuts(extent, side, margin)) for extent in noisy.shape[:2])):
        outer, inner, own = (tuple(cut[i] for cut in place) for i in range(3))
        denoised[own] = denoise(noisy[outer])[inner]
    return denoised


def _cuts(extent: int, side: int, margin: int) -> Iterator[tuple[slice, slice, slice]]:
    """Along an axis: what a tile sees, its own pixels in that, and in the image."""
    for start in range(0, extent, side):
        stop = min(start + side, extent)
        first = max(0, start - margin)
        yield (
            slice(first, min(extent, stop + margin)),
            slice(start - first, stop - first),
            slice(start, stop),
        )
