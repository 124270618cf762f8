"""Images as planes: validation, padding, and conversion back to images."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array, as_array, as_numbers, fill_holes


@dataclass(frozen=True, eq=False)
class Planes:
    """An image as `values` of shape (channels, height, width), in multiples of `unit`.

    Of a volume, values have the shape (1, n1, n2, n3).

    The unit is a power of two, so no digit is lost, close to the width of the filter: squares of
    differences then overflow or vanish only where weights are 0 or 1 anyway, in every unit of the
    grey levels. If the largest level exceeds ``2^(maxexp - 40)`` widths or is below one width, the
    unit follows the largest level: values, and the sum of 2^38 of them, stay finite.
    """

    values: Array
    unit: float
    channel_axis: int | None

    def restore(self, values: Array) -> Array:
        """Return planes in the grey levels and the layout of the image."""
        if self.unit > 1:  # rounding may exceed the largest float
            limit = float(np.finfo(values.dtype).max) / self.unit
            values = np.clip(values, -limit, limit)
        image = values * values.dtype.type(self.unit)
        return image[0] if self.channel_axis is None else np.moveaxis(image, 0, self.channel_axis)

    def reflect(self, before: int, after: int) -> Array:
        """Add pixels at both ends of each axis by reflection without repeating the edge."""
        return reflect(self.values, before, after)

    def inverse_square(self, width: float) -> float:
        """Return ``1 / width^2`` for a width in grey levels: finite, and 0 at infinity."""
        ratio = self.unit / width
        return min(ratio * ratio, float(np.finfo(self.values.dtype).max))


def reflect(values: Array, before: int, after: int) -> Array:
    """Pad all axes but the first by reflection without repeating the edge."""
    return np.pad(values, [(0, 0)] + [(before, after)] * (values.ndim - 1), mode="reflect")


def check_image(image: ArrayLike, channel_axis: int | None, width: float) -> Planes:
    """Return a finite real image as planes; float32 is kept, all else becomes float64.

    `width` > 0 is the size of the differences that the filter must tell from 0 and from infinity.

    Raises
    ------
    ValueError
        On a wrong number of dimensions, no pixels, NaN, infinity or a dtype that is not real.
    """
    pixels = _check_pixels(image, channel_axis, (2 if channel_axis is None else 3,))
    if not np.isfinite(pixels).all():
        raise ValueError("image: must not hold NaN or infinity")
    return _to_planes(pixels, channel_axis, width)


def check_image_or_volume(
    image: ArrayLike, channel_axis: int | None, width: float, mask: ArrayLike | None
) -> tuple[Planes, Array | None]:
    """Return an image or a volume as planes with zeros in its holes, and the mask.

    The mask is None if all pixels are valid.

    Raises
    ------
    ValueError
        As `check_image`, on a volume of fewer than 5 voxels along an axis, and as
        `fill_holes`.
    """
    pixels = _check_pixels(image, channel_axis, (2, 3) if channel_axis is None else (3,))
    if channel_axis is None and pixels.ndim == 3 and min(pixels.shape) < _FEWEST_VOXELS:
        raise ValueError(
            f"image: a volume must have {_FEWEST_VOXELS} voxels or more along each axis, got shape "
            f"{pixels.shape}; of an image with channels, name channel_axis"
        )
    pixels, mask = fill_holes(pixels, mask, "image", channel_axis)
    return _to_planes(pixels, channel_axis, width), mask


_FEWEST_VOXELS = 5  # along each axis; fewer are channels whose axis was not named


def _check_pixels(image: ArrayLike, channel_axis: int | None, allowed: tuple[int, ...]) -> Array:
    """Return real pixels in an allowed number of dimensions, in float32 or float64."""
    pixels = as_array(image, "image")
    if pixels.dtype.kind not in "bifu":
        raise ValueError(f"image: must hold real numbers, got dtype {pixels.dtype}")
    if channel_axis is not None:
        check_integer(channel_axis, "channel_axis", minimum=-3, maximum=2)
    if pixels.ndim not in allowed or pixels.size == 0:
        raise ValueError(
            f"image: must have {' or '.join(map(str, allowed))} dimensions with "
            f"channel_axis={channel_axis} and at least one pixel, got shape {pixels.shape}"
        )
    return pixels if pixels.dtype == np.float32 else pixels.astype(np.float64)


def _to_planes(pixels: Array, channel_axis: int | None, width: float) -> Planes:
    largest = max(float(pixels.max()), -float(pixels.min()))
    unit = _unit(largest, width, np.finfo(pixels.dtype))
    planes = pixels[None] if channel_axis is None else np.moveaxis(pixels, channel_axis, 0)
    return Planes(np.ascontiguousarray(planes / pixels.dtype.type(unit)), unit, channel_axis)


def _unit(largest: float, width: float, limits: np.finfo) -> float:
    """Return the unit of `Planes` for an image whose largest level is `largest`."""
    exponent = math.frexp(largest)[1] - 1
    if width < largest:
        exponent = max(math.frexp(width)[1] - 1, exponent - limits.maxexp + 40)
    return 2.0 ** max(exponent, limits.minexp)


def check_side(side: int, name: str) -> int:
    """Return an odd whole number of pixels.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    if check_integer(side, name, minimum=1) % 2 == 0:
        raise ValueError(f"{name}: must be odd, got {side}")
    return int(side)


def check_map(width: float | ArrayLike, name: str, *, allow_zero: bool = False) -> float | Array:
    """Return a width as a float, or one for each pixel as an array.

    Raises
    ------
    ValueError
        If an entry is not finite and > 0, or >= 0 if zero is allowed; the message starts with
        `name`.
    """
    if np.ndim(width) == 0:
        number: Any = width
        return check_positive(number, name, allow_zero=allow_zero)
    values = as_numbers(width, name, np.float64)
    if not (np.isfinite(values) & ((values > 0) | (allow_zero & (values == 0)))).all():
        raise ValueError(f"{name}: must be finite and {'>=' if allow_zero else '>'} 0 everywhere")
    return values


def check_map_shape(width: float | Array, name: str, shape: tuple[int, ...]) -> None:
    """Accept a number, or an array of the shape of the image without its channels.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    if np.shape(width) not in ((), shape):
        raise ValueError(
            f"{name}: must be a number, or hold one for each pixel in an array of shape {shape}; "
            f"got shape {np.shape(width)}"
        )


def check_width(sigma: float, name: str) -> float:
    """Return a width as a float, infinity included.

    Raises
    ------
    ValueError
        If it is not a number > 0; the message starts with `name`.
    """
    infinite = isinstance(sigma, numbers.Real) and sigma == math.inf
    return math.inf if infinite else check_positive(sigma, name)
