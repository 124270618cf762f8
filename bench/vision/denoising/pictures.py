"""Denoise pictures and volumes that are noisy already, at a level that is given or estimated."""

import math
import numbers
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ....solvers.inputs import Array, as_array, check_mask
from ....unrolled.users_code import reporting
from ...names import check_name
from ...timing import Progress
from .methods import METHODS, Entry, check_takes, find_entry, reach_of_holes
from .networks import LARGE, apply_whole, in_tiles, takes_levels
from .noise_estimate import estimate_noise
from .picture_arrays import (
    check_pixels,
    count_colours,
    highest_level,
    is_volume,
    levels_of,
    space_of,
    with_channels,
)
from .picture_files import FORMATS, check_writable, read_mask, read_picture, write_picture
from .study import check_answer, cut_holes

MARGIN = 64  # around tiles, of methods that are not told how far they look
CUBE = 96  # side of the parts of a volume
_USUAL, _FOR_HOLES_AND_VOLUMES = "filter-diffusion", "non-local means"
NO_NOISE = 0.1  # grey levels of 255; an estimate below is none
_HOLED_PAIR = 4e-8  # seconds, measured: a pixel with holes, and a pixel of its window


@dataclass(frozen=True, eq=False)
class DenoisedImage:
    """A denoised picture, and how it was denoised.

    Parameters
    ----------
    image : ndarray
        Of the shape and dtype of the noisy picture.
    sigma : float
        Noise level that was used, in grey levels of 255.
    estimated : bool
        Whether `sigma` was estimated from the picture.
    method : str
        Name of the method, as ``twinsolve denoise --list`` prints it.
    trained_for : float, optional
        Noise level that the network was trained for, to which the picture was rescaled; None for
        other methods.
    """

    image: Array = field(repr=False)
    sigma: float
    estimated: bool
    method: str
    trained_for: float | None = None

    @property
    def denoised(self) -> bool:
        """Whether there was noise; else the picture is as it was given."""
        return self.sigma >= NO_NOISE


def denoise_image(
    image: ArrayLike | str | os.PathLike[str],
    *,
    method: str | None = None,
    sigma: float | None = None,
    mask: ArrayLike | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> DenoisedImage:
    """Denoise a picture or a volume that is noisy, as it is, and fill its holes.

    Methods are for white Gaussian noise of one level. A network was trained for some levels: the
    picture y is rescaled to the closest of these, s, and back, ``(sigma / s) D_s(y s / sigma)``.
    For solved methods and networks before training this is the method at `sigma` itself.

    A side of more than 512 pixels is denoised in tiles that overlap. Networks that know how far
    they look give what the whole picture would. Other methods get 64 pixels around each tile, which
    is exact for filters and patches, and not for energies over the whole picture, wavelets,
    low-rank groups and BM3D. Functions and networks of your own that have no attribute ``margin``
    get the whole. Filters denoise volumes in cubes of 96 voxels, with what the whole would give;
    volumes with holes are not cut.

    Parameters
    ----------
    image : array-like or path
        Of shape (height, width) or (height, width, channels): grey, grey and alpha, colour, or
        colour and alpha. Three axes are a volume, (depth, height, width), if the last has more than
        four entries; a volume has five slices or more. Levels are uint8, uint16, or floating-point
        numbers in [0, 1], which noise may exceed. A path names a picture of 8 or 16 bits, or a .npy
        file.
    method : str, optional
        A name of `load_denoiser`, or as in `denoise`: a name of ``twinsolve denoise --list``,
        ``package.module:function``, or the folder of a training run. None is "filter-diffusion",
        or "non-local means" with a mask and for volumes.
    sigma : float, optional
        Standard deviation of the noise, in grey levels of 255, also for 16 bits, >= 0.1. None is
        an estimate from the flattest parts of the picture, the mean over the colours; if it is
        below 0.1, the picture is returned as it is. Noise that a camera has smoothed is estimated
        as well as white noise. The estimate is low where noise grows with the light, and where JPEG
        has removed most of the noise in flat parts.
    mask : array-like of bool of the shape of the picture without channels, or path, optional
        True at valid pixels; a path names a picture that is darker than half in holes, or a .npy
        file. Holes may hold NaN. They are filled, at a noise of at least 0.1, and their alpha is
        kept.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over tiles.

    Returns
    -------
    DenoisedImage
        ``image`` has the shape and dtype of the given one, and its alpha. Floating-point levels are
        not clipped. ``sigma`` and ``estimated`` tell the noise level.

    Raises
    ------
    ValueError
        If the picture has another shape or dtype, a side under 16 pixels, levels that are not
        finite or far from [0, 1]; if sigma is out of range; if the method is unknown, takes no
        holes or volumes where there are some, or returns another shape or levels that are not
        finite; if the mask has another shape; or if a file is damaged or is no picture of 8 or 16
        bits.
    TypeError
        If sigma is no number.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from twinsolve.bench import denoise_image
    >>> from twinsolve.datasets import add_noise, load_photographs
    >>> clean = load_photographs().images[0][:128, :128]
    >>> noisy = add_noise(clean, sigma=25 / 255, random_state=0)
    >>> found = denoise_image(noisy)
    >>> found.estimated, round(found.sigma)
    (True, 25)
    >>> bool(((found.image - clean) ** 2).mean() < ((noisy - clean) ** 2).mean() / 4)
    True
    """
    if sigma is not None:
        if not isinstance(sigma, numbers.Real):
            raise TypeError(
                "sigma: must be a number, in grey levels of 255; nonlocal_means and the network "
                f"noise-level-diffusion take one for each pixel; got {type(sigma).__name__}"
            )
        if not NO_NOISE <= sigma < math.inf:
            raise ValueError(
                f"sigma: must be {NO_NOISE} or more, in grey levels of 255, and finite; got {sigma}"
            )
    given = read_picture(image).pixels if isinstance(image, str | os.PathLike) else image
    pixels, valid = _fill_holes(as_array(given, "image"), mask)
    entry = _choose_entry(check_pixels(pixels), mask is not None, method)
    what = {"volumes": is_volume(pixels), "holes": valid is not None}
    if must := [name for name, there in what.items() if there]:
        check_takes(entry, *must)
    levels, channels = levels_of(pixels), with_channels(pixels)
    alpha = channels[..., levels.shape[-1] :]
    seen = np.asarray(alpha.any(axis=-1)) if alpha.size else None
    if valid is not None:
        seen = valid if seen is None else seen & valid
    level = 255 * estimate_noise(levels, seen) if sigma is None else float(sigma)
    if np.isnan(level):
        if valid is not None:
            raise ValueError("sigma: no 4 x 4 pixels are without holes to estimate it; give it")
        level = 0.0
    noisy = levels if levels.shape[-1] == 3 else levels[..., 0]
    if valid is not None:
        level, noisy = max(level, NO_NOISE), cut_holes(noisy, valid, "the image")
    told: dict[str, Any] = {"sigma": level, "estimated": sigma is None, "method": entry.method}
    if level < NO_NOISE:
        return DenoisedImage(pixels.copy(), **told)
    denoise, trained_for = _denoiser_at(entry, level / 255, progress)
    own = entry.kind == "own"
    with reporting(f"method: {entry.method} fails") if own else nullcontext():
        found = np.asarray(denoise(noisy), dtype=np.float64)
        check_answer(found, noisy)
    found, top = found.reshape(levels.shape), highest_level(pixels)
    denoised = channels.copy()
    denoised[..., : levels.shape[-1]] = found if top == 1 else np.rint(top * found.clip(0, 1))
    return DenoisedImage(denoised.reshape(pixels.shape), **told, trained_for=trained_for)


def _choose_entry(pixels: Array, masked: bool, method: str | None) -> Entry:
    usual = _FOR_HOLES_AND_VOLUMES if masked or is_volume(pixels) else _USUAL
    return find_entry(usual if method is None else check_name(method, "method"))


def denoise_file(
    path: Path, save: Path | None = None, **options: Any
) -> tuple[DenoisedImage, float, Path]:
    """Denoise a picture and save it; returns what was found, wall seconds and the new path.

    `save` is ``NAME-denoised`` beside the picture unless given; `options` are those of
    `denoise_image`.

    Raises
    ------
    ValueError
        As `denoise_image`; or if the new file would be the picture itself or cannot hold it.
    """
    picture = read_picture(path)
    suffix = path.suffix if path.suffix.lower() in FORMATS else ".png"
    out = save or path.with_name(f"{path.stem}-denoised{suffix}")
    if out.exists() and out.samefile(path):
        raise ValueError(f"save: {out} is the noisy picture, which is not overwritten")
    check_writable(out, picture)
    start = perf_counter()
    found = denoise_image(picture.pixels, **options)
    seconds = perf_counter() - start
    write_picture(out, picture._replace(pixels=found.image))
    return found, seconds, out


def expect_holes(mask: Path, method: str | None) -> tuple[int, float]:
    """How far the windows of a filter reach across the holes of a mask, and its seconds about."""
    entry, valid = find_entry(method or _FOR_HOLES_AND_VOLUMES), read_mask(mask)
    reach = reach_of_holes(valid) if valid.any() else 0
    if not reach or not entry.takes("holes") or METHODS[entry.method].family != "image_filters":
        return reach, 0.0
    window = math.prod(min(2 * max(reach, 3) + 1, 2 * side - 1) for side in valid.shape)
    return reach, _HOLED_PAIR * valid.size * window


def _fill_holes(
    pixels: Array, mask: ArrayLike | str | os.PathLike[str] | None
) -> tuple[Array, Array | None]:
    """Return the picture with the mean of its valid colours in holes, and the mask of holes.

    The alpha, the last of two or four channels, is left as it is.
    """
    if mask is None:
        return pixels, None
    given = read_mask(mask) if isinstance(mask, str | os.PathLike) else mask
    valid = check_mask(given, space_of(pixels))
    if valid.all():
        return pixels, None
    filled = pixels.copy()
    planes = with_channels(filled)
    planes = planes[..., : count_colours(planes)]
    planes[~valid] = planes[valid].mean(axis=0, dtype=np.float64)
    return filled, valid


def _denoiser_at(
    entry: Entry, sigma: float, progress: Progress | None
) -> tuple[Callable[[Array], Array], float | None]:
    """A function of noisy levels, and what noise, of 255, its network was trained for."""
    levels = entry.list_levels()
    if levels is None:
        return partial(_denoise_parts, entry, sigma, progress), None
    closest = min(levels, key=lambda level: abs(math.log(level / 255 / sigma)))
    at_closest, scale = (
        partial(_denoise_parts, entry, closest / 255, progress),
        closest / 255 / sigma,
    )
    return lambda noisy: at_closest(scale * noisy) / scale, closest


def _denoise_parts(entry: Entry, sigma: float, progress: Progress | None, noisy: Array) -> Array:
    """Denoise at a level that the method is for, a large picture or a volume in parts."""
    denoise = partial(entry.denoiser(sigma)[0], sigma=sigma)
    margin = _find_margin(entry, sigma, noisy)
    if margin is None:
        return denoise(noisy)
    if entry.network and not entry.is_solver:  # it would make tiles by itself, without progress
        network = entry.network_at(sigma)
        denoise = partial(apply_whole, network, sigma if takes_levels(network) else None)
    side = CUBE if is_volume(noisy) else LARGE
    return in_tiles(denoise, noisy, margin=margin, side=side, progress=progress)


def _find_margin(entry: Entry, sigma: float, noisy: Array) -> int | None:
    """Pixels around parts; None for a method that gets the whole."""
    if is_volume(noisy):
        cut = entry.method in METHODS and np.isfinite(noisy).all()
        return METHODS[entry.method].reach if cut else None
    if entry.kind == "own":
        return None
    margin = getattr(entry.network_at(sigma), "margin", None) if entry.network else None
    return None if margin is None and entry.folder else margin or MARGIN
