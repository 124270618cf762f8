"""The size that pictures of a user's folder are brought to."""

import re
from collections.abc import Mapping
from typing import Any

_MULTIPLE = 8  # pixels: what patches of 2, 4 and 8 divide


def read_size(value: Any) -> tuple[int, int]:
    """Read a size, ``96`` or ``96x128``, as height and width.

    Raises
    ------
    ValueError
        If it is neither.

    Examples
    --------
    >>> from twinsolve.bench.vision.picture_sizes import read_size
    >>> read_size(96), read_size("96x128")
    ((96, 96), (96, 128))
    """
    sides = re.fullmatch(r"(\d+)(?:x(\d+))?", str(value))
    if sides is None or min(int(side or 1) for side in sides.groups()) < 1:
        raise ValueError(f"data: size must be a side or HEIGHTxWIDTH in pixels, got {value!r}")
    return int(sides[1]), int(sides[2] or sides[1])


def smallest_size(shapes: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the smallest height and width of pictures, rounded down to multiples of 8.

    Raises
    ------
    ValueError
        If a picture has a side under 8 pixels: names it.

    Examples
    --------
    >>> from twinsolve.bench.vision.picture_sizes import smallest_size
    >>> smallest_size({"a": (100, 64), "b": (40, 90)})
    (40, 64)
    """
    for name, (height, width) in shapes.items():
        if min(height, width) < _MULTIPLE:
            raise ValueError(
                f"data: sides must have {_MULTIPLE} pixels or more; {name} has {height} x {width}"
            )
    heights, widths = zip(*shapes.values(), strict=True)
    return min(heights) // _MULTIPLE * _MULTIPLE, min(widths) // _MULTIPLE * _MULTIPLE
