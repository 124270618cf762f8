"""Pictures and volumes as arrays: which is which, and their levels in [0, 1]."""

import numpy as np

from ....solvers.inputs import Array

SMALLEST = 16  # pixels of a side; all methods take images of that size
_MOST_CHANNELS, _FEWEST_SLICES = 4, 5
_LUMA = np.array([0.299, 0.587, 0.114])  # of Rec. 601
_KINDS = (
    "(height, width), or (height, width, channels) with one to four channels: grey, grey and "
    "alpha, colour, colour and alpha; or be a volume of shape (depth, height, width) with "
    f"{_FEWEST_SLICES} or more slices"
)


def is_volume(pixels: Array) -> bool:
    """Whether an array of three axes is a volume: its last axis has more than four entries.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.bench.vision.denoising.picture_arrays import is_volume
    >>> is_volume(np.zeros((40, 50, 3))), is_volume(np.zeros((20, 40, 50)))
    (False, True)
    """
    return pixels.ndim == 3 and pixels.shape[2] > _MOST_CHANNELS


def is_colour(levels: Array) -> bool:
    """Whether levels have an axis of channels, the last."""
    return levels.ndim == 3 and not is_volume(levels)


def space_of(pixels: Array) -> tuple[int, ...]:
    """The shape without channels."""
    return pixels.shape if is_volume(pixels) else pixels.shape[:2]


def check_pixels(pixels: Array) -> Array:
    """Return a picture or a volume that can be denoised.

    Raises
    ------
    ValueError
        If it has another shape or dtype, a side under 16 pixels, a volume fewer than five slices,
        or levels are not finite or far from [0, 1].
    """
    if pixels.dtype.newbyteorder("=") not in (np.uint8, np.uint16) and pixels.dtype.kind != "f":
        raise ValueError(
            f"image: must be uint8, uint16, or floating point in [0, 1]; got {pixels.dtype}"
        )
    volume = is_volume(pixels)
    flat = pixels.ndim == 2 or (pixels.ndim == 3 and 1 <= pixels.shape[2] <= _MOST_CHANNELS)
    if not flat and not (volume and len(pixels) >= _FEWEST_SLICES):
        raise ValueError(f"image: must have shape {_KINDS}; got {pixels.shape}")
    sides = space_of(pixels)[-2:]
    if min(sides) < SMALLEST:
        raise ValueError(
            f"image: must have {SMALLEST} x {SMALLEST} pixels or more, got {sides[0]} x {sides[1]}"
        )
    if wrong := np.count_nonzero(~np.isfinite(pixels)):
        raise ValueError(
            f"image: must be finite, got {wrong} levels that are NaN or infinite; "
            "a mask may mark them as holes"
        )
    if pixels.dtype.kind == "f" and not -0.5 < (mean := pixels.mean(dtype=np.float64)) < 1.5:
        raise ValueError(
            f"image: floating-point levels must lie about [0, 1]; their mean is {mean:.3g}"
        )
    return pixels


def with_channels(pixels: Array) -> Array:
    """The picture or volume with an axis of channels, the last."""
    return pixels if is_colour(pixels) else pixels[..., None]


def count_colours(channels: Array) -> int:
    """The number of channels of `with_channels` that are no alpha: one or three."""
    return 1 if channels.shape[-1] <= 2 else 3


def highest_level(pixels: Array) -> int:
    """The level that is 1: the largest integer of the dtype, or 1."""
    return int(np.iinfo(pixels.dtype).max) if pixels.dtype.kind == "u" else 1


def levels_of(pixels: Array) -> Array:
    """Levels in [0, 1], in float64, with an axis of one or three colours, without alpha."""
    channels = with_channels(pixels)
    colours = channels[..., : count_colours(channels)]
    return colours.astype(np.float64) / highest_level(pixels)


def grey_or_colour(pixels: Array, colour: bool) -> Array:
    """Levels in [0, 1] of a picture in grey, by its luma, or in colour; or of a volume.

    Raises
    ------
    ValueError
        As `check_pixels`, and on a volume in colour.
    """
    levels = levels_of(check_pixels(pixels))
    if is_volume(pixels):
        if colour:
            raise ValueError("colour: volumes are grey")
        return levels[..., 0]
    if colour:
        return np.broadcast_to(levels, (*levels.shape[:2], 3)).copy()
    return levels @ _LUMA if levels.shape[2] == 3 else levels[..., 0]
