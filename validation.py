"""Checks of the numbers and folders that users pass, for all wings."""

import math
import numbers
import os
from pathlib import Path


def check_positive(value: float, name: str, *, allow_zero: bool = False) -> float:
    """Return `value` as a float if it is finite and positive, or zero if that is allowed.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    finite = isinstance(value, numbers.Real) and math.isfinite(value)
    if not finite or value < 0 or (value == 0 and not allow_zero):
        allowed = ">= 0" if allow_zero else "> 0"
        raise ValueError(f"{name}: must be a finite number {allowed}, got {value!r}")
    return float(value)


def check_integer(value: int, name: str, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int if it is a whole number in ``[minimum, maximum]``.

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    allowed = f">= {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < minimum or (maximum is not None and value > maximum):
        raise ValueError(f"{name}: must be a whole number {allowed}, got {value!r}")
    return int(value)


def check_folder(folder: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Return `folder` as a Path; None stays None.

    Raises
    ------
    TypeError
        If it is not a path; the message starts with `name`.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{name}: must be the path of a folder or None, got {folder!r}")
    return Path(folder)
