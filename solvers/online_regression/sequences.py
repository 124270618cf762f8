"""Checks of sequences, gates and states."""

import numpy as np
from numpy.typing import ArrayLike

from ..inputs import Array, as_numbers


def check_array_of(x: ArrayLike, name: str, shape: tuple[int, ...]) -> Array:
    """Return `x` as a finite float64 array that is broadcast to `shape`.

    Raises
    ------
    ValueError
        If `x` is not real and finite, or does not broadcast; the message starts with `name`.
    """
    array = _as_finite(x, name)
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ValueError(
            f"{name}: must broadcast to shape {shape}, got shape {array.shape}"
        ) from error


def check_sequences(**sequences: ArrayLike) -> list[Array]:
    """Return float64 arrays of shape (..., n_tokens, width) with equal leading axes and tokens.

    Raises
    ------
    ValueError
        If one is not real and finite, or the shapes do not fit; the message starts with its name.
    """
    arrays = {name: _as_finite(x, name) for name, x in sequences.items()}
    first, *_ = arrays.values()
    for name, x in arrays.items():
        if x.ndim >= 2 and 0 in x.shape[-2:]:
            raise ValueError(
                f"{name}: must have at least one token and one feature, got shape {x.shape}"
            )
        if x.ndim < 2 or x.shape[:-1] != first.shape[:-1]:
            raise ValueError(
                f"{name}: must have shape (..., n_tokens, width), with the same axes before the "
                f"width for all of {', '.join(arrays)}, got shape {x.shape}"
            )
    for name in {"k", "x"}.intersection(arrays) if "q" in arrays else ():
        if arrays[name].shape != first.shape:
            raise ValueError(
                f"{name}: must have the shape of q, {first.shape}, got {arrays[name].shape}"
            )
    return list(arrays.values())


def check_share(x: ArrayLike, name: str, shape: tuple[int, ...]) -> Array:
    """Return `x` as `check_array_of` does, if it is in [0, 1].

    Raises
    ------
    ValueError
        Otherwise; the message starts with `name`.
    """
    array = check_array_of(x, name, shape)
    if array.size and not 0 <= array.min() <= array.max() <= 1:
        raise ValueError(f"{name}: must be in [0, 1], got {array.min():g} to {array.max():g}")
    return array


def _as_finite(x: ArrayLike, name: str) -> Array:
    array = as_numbers(x, name)
    if np.iscomplexobj(array):
        raise ValueError(f"{name}: must be real, got complex numbers")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: must be finite, got NaN or infinity")
    return array
