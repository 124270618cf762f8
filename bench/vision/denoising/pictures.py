"""Denoise pictures that are noisy already, at a noise level that is given or estimated."""

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

from ....solvers.inputs import Array, check_mask
from ....unrolled.users_code import reporting
from ...names import check_name
from .methods import Entry, check_takes_holes, find_entry
from .networks import LARGE, in_tiles
from .noise_estimate import estimate_noise
from .picture_files import FORMATS, check_writable, read_mask, read_picture, write_picture
from .study import SMALLEST, check_answer, cut_holes

MARGIN = 64  # around tiles, of methods that are not told how far they look
_USUAL, _FOR_HOLES = "filter-diffusion", "non-local means"
NO_NOISE = 0.1  # grey levels of 255; an estimate below is none


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
) -> DenoisedImage:
    """Denoise a picture that is noisy, as it is, and fill its holes.

    Methods are for white Gaussian noise of one level. A network was trained for some levels: the
    picture y is rescaled to the closest of these, s, and back, ``(sigma / s) D_s(y s / sigma)``.
    For solved methods and networks before training this is the method at `sigma` itself.

    A side of more than 512 pixels is denoised in tiles that overlap. Networks that know how far
    they look give what the whole picture would. Other methods get 64 pixels around each tile, which
    is exact for filters and patches, and not for energies over the whole picture, wavelets,
    low-rank groups and BM3D. Functions and networks of your own that have no attribute ``margin``
    get the whole.

    Parameters
    ----------
    image : array-like or path
        Of shape (height, width) or (height, width, channels): grey, grey and alpha, colour, or
        colour and alpha. Levels are uint8, uint16, or floating-point numbers in [0, 1], which noise
        may exceed. A path names a picture of 8 or 16 bits.
    method : str, optional
        A name of `load_denoiser`, or as in `denoise`: a name of ``twinsolve denoise --list``,
        ``package.module:function``, or the folder of a training run. None is "filter-diffusion",
        or "non-local means" with a mask.
    sigma : float, optional
        Standard deviation of the noise, in grey levels of 255, also for 16 bits, >= 0.1. None is
        an estimate from the flattest parts of the picture, the mean over the colours; if it is
        below 0.1, the picture is returned as it is. Noise that a camera has smoothed is estimated
        as well as white noise. The estimate is low where noise grows with the light, and where JPEG
        has removed most of the noise in flat parts.
    mask : array-like of bool of shape (height, width), or path, optional
        True at valid pixels; a path names a picture that is darker than half in holes. Holes may
        hold NaN. They are filled, at a noise of at least 0.1, and their alpha is kept.

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
        holes where there are some, or returns another shape or levels that are not finite; if the
        mask has another shape; or if a file is damaged or is no picture of 8 or 16 bits.
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
    chosen = method or (_FOR_HOLES if mask is not None else _USUAL)
    entry = find_entry(check_name(chosen, "method"))
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
    pixels, valid = _fill_holes(np.asarray(given), mask)
    pixels = _check_pixels(pixels)
    channels = pixels if pixels.ndim == 3 else pixels[..., None]
    n_colours = 1 if channels.shape[2] <= 2 else 3
    top = np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else 1
    levels = channels[..., :n_colours].astype(np.float64) / top
    alpha = channels[..., n_colours:]
    seen = np.asarray(alpha.any(axis=2)) if alpha.size else None
    if valid is not None:
        check_takes_holes(entry)
        seen = valid if seen is None else seen & valid
    level = 255 * estimate_noise(levels, seen) if sigma is None else float(sigma)
    if np.isnan(level):
        if valid is not None:
            raise ValueError("sigma: no 4 x 4 pixels are without holes to estimate it; give it")
        level = 0.0
    if valid is not None:
        level, levels = max(level, NO_NOISE), cut_holes(levels, valid, "the image")
    told: dict[str, Any] = {"sigma": level, "estimated": sigma is None, "method": entry.method}
    if level < NO_NOISE:
        return DenoisedImage(pixels.copy(), **told)
    denoise, trained_for = _denoiser_at(entry, level / 255)
    noisy = levels if n_colours == 3 else levels[..., 0]
    own = entry.kind == "own"
    with reporting(f"method: {entry.method} fails") if own else nullcontext():
        found = np.asarray(denoise(noisy), dtype=np.float64)
        check_answer(found, noisy)
    found = found.reshape(levels.shape)
    denoised = channels.copy()
    denoised[..., :n_colours] = found if top == 1 else np.rint(top * found.clip(0, 1))
    return DenoisedImage(denoised.reshape(pixels.shape), **told, trained_for=trained_for)


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


def _fill_holes(
    pixels: Array, mask: ArrayLike | str | os.PathLike[str] | None
) -> tuple[Array, Array | None]:
    """Return the picture with the mean of its valid colours in holes, and the mask of holes.

    The alpha, the last of two or four channels, is left as it is.
    """
    if mask is None:
        return pixels, None
    given = read_mask(mask) if isinstance(mask, str | os.PathLike) else mask
    valid = check_mask(given, pixels.shape[:2])
    if valid.all():
        return pixels, None
    filled = pixels.copy()
    planes = filled if filled.ndim == 3 else filled[..., None]
    planes = planes[..., : 1 if planes.shape[2] <= 2 else 3]
    planes[~valid] = planes[valid].mean(axis=0, dtype=np.float64)
    return filled, valid


def _check_pixels(pixels: Array) -> Array:
    if pixels.dtype not in (np.uint8, np.uint16) and pixels.dtype.kind != "f":
        raise ValueError(
            f"image: must be uint8, uint16, or floating point in [0, 1]; got {pixels.dtype}"
        )
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and not 1 <= pixels.shape[2] <= 4):
        raise ValueError(
            "image: must have shape (height, width) or (height, width, channels), with one to four "
            f"channels: grey, grey and alpha, colour, colour and alpha; got {pixels.shape}"
        )
    if min(pixels.shape[:2]) < SMALLEST:
        raise ValueError(
            f"image: must have {SMALLEST} x {SMALLEST} pixels or more, got {pixels.shape[0]} x "
            f"{pixels.shape[1]}"
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


def _denoiser_at(entry: Entry, sigma: float) -> tuple[Callable[[Array], Array], float | None]:
    """A function of noisy levels, and what noise, of 255, its network was trained for."""
    levels = entry.list_levels()
    if levels is None:
        return _in_tiles(entry, sigma), None
    closest = min(levels, key=lambda level: abs(math.log(level / 255 / sigma)))
    at_closest, scale = _in_tiles(entry, closest / 255), closest / 255 / sigma
    return lambda noisy: at_closest(scale * noisy) / scale, closest


def _in_tiles(entry: Entry, sigma: float) -> Callable[[Array], Array]:
    """The method at a noise that it is for, with large pictures in tiles."""
    denoise, margin = partial(entry.denoiser(sigma)[0], sigma=sigma), _find_margin(entry, sigma)
    if margin is None:
        return denoise
    return lambda noisy: in_tiles(denoise, noisy, margin=margin, side=LARGE)


def _find_margin(entry: Entry, sigma: float) -> int | None:
    """Pixels around tiles; None for a method that gets the whole, or makes tiles by itself."""
    if entry.kind == "own" or entry.folder:
        return None
    margin = getattr(entry.network_at(sigma), "margin", None) if entry.network else None
    if margin is not None and not entry.is_solver:
        return None
    return margin or MARGIN
