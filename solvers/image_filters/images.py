"""Images as planes: validation, padding, and conversion back to images."""

import math
import numbers
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...validation import check_integer, check_positive
from ..inputs import Array


@dataclass(frozen=True, eq=False)
class Planes:
    """An image as `values` of shape (channels, height, width), in multiples of `unit`.

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
        return np.pad(self.values, ((0, 0), (before, after), (before, after)), mode="reflect")

    def inverse_square(self, width: float) -> float:
        """Return ``1 / width^2`` for a width in grey levels: finite, and 0 at infinity."""
        ratio = self.unit / width
        return min(ratio * ratio, float(np.finfo(self.values.dtype).max))


def check_image(image: ArrayLike, channel_axis: int | None, width: float) -> Planes:
    """Return a finite real image as planes; float32 is kept, all else becomes float64.

    `width` > 0 is the size of the differences that the filter must tell from 0 and from infinity.

    Raises
    ------
    ValueError
        On a wrong number of dimensions, no pixels, NaN, infinity or a dtype that is not real.
    """
    pixels = as_array(image, "image")
    if pixels.dtype.kind not in "bifu":
        raise ValueError(f"image: must hold real numbers, got dtype {pixels.dtype}")
    if channel_axis is not None:
        check_integer(channel_axis, "channel_axis", minimum=-3, maximum=2)
    expected = 2 if channel_axis is None else 3
    if pixels.ndim != expected or pixels.size == 0:
        raise ValueError(
            f"image: must have {expected} dimensions with channel_axis={channel_axis} "
            f"and at least one pixel, got shape {pixels.shape}"
        )
    if pixels.dtype != np.float32:
        pixels = pixels.astype(np.float64)
    low, high = float(pixels.min()), float(pixels.max())
    if not np.isfinite([low, high]).all():
        raise ValueError("image: must not hold NaN or infinity")
    unit = _unit(max(high, -low), width, np.finfo(pixels.dtype))
    planes = pixels[None] if channel_axis is None else np.moveaxis(pixels, channel_axis, 0)
    return Planes(np.ascontiguousarray(planes / pixels.dtype.type(unit)), unit, channel_axis)


def _unit(largest: float, width: float, limits: np.finfo) -> float:
    """Return the unit of `Planes` for an image whose largest level is `largest`."""
    exponent = math.frexp(largest)[1] - 1
    if width < largest:
        exponent = max(math.frexp(width)[1] - 1, exponent - limits.maxexp + 40)
    return 2.0 ** max(exponent, limits.minexp)


def as_array(values: ArrayLike, name: str) -> Array:
    """Return `values` as an array.

    Raises
    ------
    ValueError
        If rows differ in length; the message starts with `name`.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


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


def check_width(sigma: float, name: str) -> float:
    """Return a width as a float, infinity included.

    Raises
    ------
    ValueError
        If it is not a number > 0; the message starts with `name`.
    """
    infinite = isinstance(sigma, numbers.Real) and sigma == math.inf
    return math.inf if infinite else check_positive(sigma, name)
