"""The study of denoising: methods, images and noise levels in one table."""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from math import isfinite, prod
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import skimage
from scipy.ndimage import minimum_filter
from skimage.color import rgb2gray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from ....datasets import add_noise, fetch_camvid, fetch_set12, fetch_train400, load_photographs
from ....datasets.image_folder import pictures_in, read_pictures, visible_files
from ....solvers.inputs import Array
from ....validation import check_folder
from ...jobs import Job, JobFailed, Options, run_jobs
from ...timing import Progress
from .methods import BUILT_IN, METHODS, Denoise, Entry, add_methods, find_entry, list_entries
from .networks import distance
from .picture_arrays import SMALLEST, grey_or_colour, is_colour, is_volume, space_of
from .picture_files import ARRAY, read_arrays, read_mask, read_picture
from .training import N_VALIDATION

_CROP = 192
_HELD_OUT_CROP, _SCENES_APART = 256, 10
# Photographs of scenes and surfaces in scikit-image.
_PACKAGED = (
    "astronaut", "brick", "camera", "cat", "coffee", "coins", "grass", "gravel", "moon", "rocket",
)  # fmt: skip
IMAGE_SETS = ("photographs", "set12", "held-out")


class Images(NamedTuple):
    """Images in [0, 1], their names, reasons why pictures were left out, and other files' names.

    Holes are NaN.
    """

    names: tuple[str, ...]
    clean: tuple[Array, ...]
    left_out: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def load_images(
    name: str, data_home: str | None = None, colour: bool = False, mask: str | None = None
) -> Images:
    """Load images in [0, 1].

    Parameters
    ----------
    name : str
        "photographs": the middles, of 192 x 192 pixels, of the two of scikit-learn; "set12";
        "held-out": photographs on which no network was trained, namely the last 20 of train400,
        middles of 256 x 256 pixels of 12 of scikit-image and scikit-learn, and every tenth test
        picture of CamVid; or a folder of pictures or, without pictures, of .npy files, which may
        hold volumes.
    data_home : str, optional
        Folder of the data sets.
    colour : bool, default=False
        Load images of shape (height, width, 3); otherwise they become grey.
    mask : str, optional
        Folder with a picture for each image, of its name and size, that is darker than half in
        holes; or with .npy files of bool.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such set or folder, it is grey but asked for in colour, no picture can be
        used, or a mask is missing, has another size or leaves no pixel.
    """
    own = None if name in IMAGE_SETS or not Path(name).is_dir() else _stamps(name)
    masks = None if mask is None or not Path(mask).is_dir() else _stamps(mask)
    return _load_set(name, data_home, colour, own, mask, masks)


def _stamps(folder: str) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of the files of a folder."""
    stats = ((str(path), path.stat()) for path in sorted(Path(folder).rglob("*")))
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)


@lru_cache(maxsize=4)
def _load_set(
    name: str,
    data_home: str | None,
    colour: bool,
    stamps: object,
    mask: str | None,
    mask_stamps: object,
) -> Images:
    found = _read_set(name, data_home, colour)
    return found if mask is None else _with_holes(found, mask)


def _with_holes(found: Images, folder: str) -> Images:
    """The images with NaN where the picture of the same name in a folder is dark."""
    masks, reasons = _read_masks(folder)
    clean = []
    for name, image in zip(found.names, found.clean, strict=True):
        if name not in masks:
            reason = reasons.get(name, f"{folder} holds no picture of the name {name}")
            raise ValueError(f"mask: {reason}")
        clean.append(cut_holes(image, masks[name], name))
    return found._replace(clean=tuple(clean))


def _read_masks(folder: str) -> tuple[dict[str, Array], dict[str, str]]:
    if _holds_arrays(folder):
        return read_arrays(folder, read_mask)
    pictures, reasons, _ = read_pictures(folder)
    return {name: levels >= 0.5 for name, levels in pictures.items()}, reasons


def _holds_arrays(folder: str) -> bool:
    """Whether a folder holds .npy files, and no pictures."""
    if not any(file.suffix == ARRAY for file in visible_files(Path(folder))):
        return False
    with suppress(ValueError):
        return not pictures_in(Path(folder))
    return True


def cut_holes(image: Array, valid: Array, name: str) -> Array:
    """Return the image with NaN where it is not valid.

    Raises
    ------
    ValueError
        If the mask has another height and width, or leaves no pixel.
    """
    if valid.shape != (shape := space_of(image)):
        raise ValueError(
            f"mask: must have the {' x '.join(map(str, shape))} pixels of {name}, got "
            f"{' x '.join(map(str, valid.shape))}"
        )
    if not valid.any():
        raise ValueError(f"mask: leaves no pixel of {name}; holes are dark, other pixels bright")
    return np.where(valid[..., None] if is_colour(image) else valid, image, np.nan)


def _read_set(name: str, data_home: str | None, colour: bool) -> Images:
    if colour and name in ("set12", "held-out"):
        raise ValueError(f"colour: {name} is grey")
    if name == "photographs":
        found = load_photographs(colour=colour)
        return Images(tuple(found.names), tuple(middle(image, _CROP) for image in found.images))
    if name == "set12":
        found = fetch_set12(data_home=data_home)
        return Images(tuple(found.names), tuple(found.images))
    if name == "held-out":
        held_out = _load_held_out(data_home)
        return Images(tuple(held_out), tuple(held_out.values()))
    if Path(name).is_dir() and _holds_arrays(name):
        return _load_arrays(name, colour)
    if Path(name).exists():
        return _load_folder(name, colour)
    known = ", ".join(IMAGE_SETS)
    raise ValueError(f"images: must be {known} or a folder of pictures; got {name!r}")


def _load_arrays(folder: str, colour: bool) -> Images:
    """The pictures and volumes in the .npy files of a folder."""
    found, reasons = read_arrays(
        folder, lambda path: grey_or_colour(read_picture(path).pixels, colour)
    )
    if not found:
        raise ValueError("; ".join(reasons.values()))
    return Images(tuple(found), tuple(found.values()), tuple(reasons.values()))


def _load_held_out(data_home: str | None) -> dict[str, Array]:
    """Grey photographs by ``SOURCE/NAME``."""
    validated = fetch_train400(data_home=data_home)
    scenes = fetch_camvid(subset="test", data_home=data_home)
    photographs = load_photographs()
    packaged = {name: _to_grey(getattr(skimage.data, name)()) for name in _PACKAGED}
    packaged |= dict(zip(photographs.names, photographs.images, strict=True))
    whole = list(zip(validated.names, validated.images, strict=True))[-N_VALIDATION:]
    apart = list(zip(scenes.names, scenes.images, strict=True))[::_SCENES_APART]
    return {
        **{f"train400/{name}": image for name, image in whole},
        **{f"packaged/{name}": middle(image, _HELD_OUT_CROP) for name, image in packaged.items()},
        **{f"camvid/{name}": _to_grey(image) for name, image in apart},
    }


def _to_grey(picture: Array) -> Array:
    """Grey levels in [0, 1] of an 8-bit picture."""
    return rgb2gray(picture) if picture.ndim == 3 else picture / 255


def _load_folder(folder: str, colour: bool) -> Images:
    """The pictures of a folder that can be read and are large enough."""
    found, reasons, others = read_pictures(folder, colour=colour)
    for name, (high, wide, *_) in [(name, image.shape) for name, image in found.items()]:
        if min(high, wide) < SMALLEST:
            reasons[name] = (
                f"{Path(folder, name)}: has {high} x {wide} pixels; must have {SMALLEST} x "
                f"{SMALLEST} or more"
            )
            del found[name]
    if not found:
        raise ValueError("; ".join(reasons.values()))
    return Images(tuple(found), tuple(found.values()), tuple(reasons.values()), tuple(others))


def middle(image: Array, side: int) -> Array:
    """The central square of an image, with `side` pixels or that of a smaller image."""
    side = min(side, *image.shape[:2])
    top, left = ((extent - side) // 2 for extent in image.shape[:2])
    return image[top : top + side, left : left + side]


def noisy_image(clean: Array, sigma: float, seed: int, place: int) -> Array:
    """The image with noise that depends on seed, place in the set and level."""
    generator = np.random.SeedSequence([seed, place, round(10 * 255 * sigma)]).generate_state(1)[0]
    noisy = add_noise(np.nan_to_num(clean), sigma=sigma, random_state=int(generator))
    return np.where(np.isnan(clean), np.nan, noisy)


@dataclass(frozen=True)
class NoisyImages:
    """The images of `load_images`, each with different noise."""

    images: str
    seed: int = 0
    data_home: str | None = None
    colour: bool = False
    mask: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self._found.names

    @property
    def clean(self) -> tuple[Array, ...]:
        return self._found.clean

    @property
    def left_out(self) -> tuple[str, ...]:
        return self._found.left_out

    @property
    def others(self) -> tuple[str, ...]:
        return self._found.others

    @property
    def _found(self) -> Images:
        return load_images(self.images, self.data_home, self.colour, self.mask)

    def noisy(self, place: int, sigma: float) -> Array:
        """An image with noise of standard deviation `sigma`, in grey levels of [0, 1]."""
        return noisy_image(self.clean[place], sigma, self.seed, place)


_WARM = 32  # side of the image for compiling kernels
_SSIM = 7  # side of the window of SSIM
COLUMNS = [
    "method", "kind", "family", "images", "image", "sigma", "psnr", "ssim", "seconds",
    "megapixels", "parameters", "flops_per_pixel", "distance", "warning", "note",
]  # fmt: skip


def denoise(
    images: str = "photographs",
    *,
    methods: Iterable[str] | None = None,
    sigmas: Sequence[float] = (25.0,),
    seed: int = 0,
    colour: bool = False,
    mask: str | None = None,
    n_jobs: int = 1,
    data_home: str | None = None,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Denoise images by solved methods, peers and networks, and compare.

    Parameters
    ----------
    images : str, default="photographs"
        "photographs", "set12", or a folder of pictures or volumes; see `load_images`.
    methods : iterable of str, optional
        Names of `method_names`; ``package.module:function``, a function of the noisy image and its
        noise level, both in grey levels of [0, 1]; or the folder of a training run. None is all
        methods that are installed and have weights, except those named "..., solver".
    sigmas : sequence of float, default=(25,)
        Standard deviations of the noise, in grey levels of 255.
    seed : int, default=0
        Seed of the noise.
    colour : bool, default=False
        Denoise images of shape (height, width, 3), not grey ones. Methods for grey images get the
        channels one at a time, networks of one channel as a batch.
    mask : str, optional
        Folder with a picture for each image, of its name and size, that is darker than half in
        holes. Methods then see no pixel of the holes, and all must take holes; None of `methods` is
        all that do. So it is with volumes.
    n_jobs : int, default=1
        Number of processes.
    data_home : str, optional
        Folder of the data sets, as in `twinsolve.datasets.fetch_set12`.
    directory : path, optional
        Folder that keeps finished images.
    progress : callable, optional
        ``progress(iterable, total)`` wraps the iteration over the jobs.

    Returns
    -------
    DataFrame
        A row for each method, image and noise level. ``kind`` is solved, peer, start, trained or
        own. ``psnr`` in dB and ``ssim`` are computed by scikit-image for a range of 1, without
        clipping the image, over pixels outside holes. ssim is the mean over windows of 7 x 7 pixels
        without holes, or cubes of a volume, and is missing if there is none. ``seconds`` is
        processor time without compilation. For networks that minimise an energy, ``distance`` is
        the certified root mean square distance from the minimiser, in grey levels of [0, 1].
        ``warning`` is the first warning of the method; ``note`` says why there are no numbers.

    Raises
    ------
    ValueError
        If images or a method are unknown, a noise level is not positive and finite, there are no
        weights for it, a mask does not fit, or a method takes no holes or volumes.

    Warns
    -----
    UserWarning
        If a picture of a folder is left out, as it cannot be read or a side is under 16 pixels.

    Examples
    --------
    >>> from twinsolve.bench import denoise
    >>> table = denoise(methods=["noisy", "Gaussian"])
    >>> table.groupby("method").psnr.mean().round(1).to_dict()
    {'Gaussian': 23.8, 'noisy': 20.2}
    """
    levels = list(dict.fromkeys(map(float, sigmas)))
    if not levels or not all(isfinite(sigma) and sigma > 0 for sigma in levels):
        raise ValueError(f"sigmas: must be one or more, > 0 and finite; got {list(sigmas)}")
    given = NoisyImages(images, seed, data_home, colour, mask)
    must = {"volumes": any(map(is_volume, given.clean)), "holes": mask is not None}
    entries = list_entries(methods, levels, what=[name for name, there in must.items() if there])
    for reason in given.left_out:
        warnings.warn(f"left out: {reason}", stacklevel=2)
    about = {"images": images, "seed": seed, "data_home": data_home, "colour": colour}
    about |= {} if mask is None else {"mask": mask}
    places = [
        {"image": name, "place": place, "pixels": hashlib.sha256(image.tobytes()).hexdigest()[:16]}
        for place, (name, image) in enumerate(zip(given.names, given.clean, strict=True))
    ]
    ways = [
        {"sigma": sigma, "method": entry.method, "content": entry.content(sigma / 255)}
        for sigma in levels
        for entry in entries
        if entry.serves(sigma)
    ]
    jobs: list[Job] = [about | way | place for way in ways for place in places]
    folder = check_folder(directory, "directory")
    options = Options(seed, 1, n_jobs, data_home, folder, progress)
    own = [method for name, method in METHODS.items() if name not in BUILT_IN]
    return run_jobs(_run_method, jobs, options, setup=partial(add_methods, own)).reindex(
        columns=COLUMNS
    )


def _run_method(
    images: str,
    seed: int,
    data_home: str | None,
    colour: bool,
    image: str,
    place: int,
    pixels: str,
    sigma: float,
    method: str,
    content: str,
    mask: str | None = None,
) -> list[dict[str, Any]]:
    """A row in a list; if the method fails, the row has a note, and a later run tries again."""
    level = sigma / 255
    given = NoisyImages(images, seed, data_home, colour, mask)
    clean, entry = given.clean[place], find_entry(method)
    row = {"method": method, "kind": entry.kind, "images": images, "image": image, "sigma": sigma}
    row["megapixels"] = prod(space_of(clean)) / 1e6
    try:
        function, known = entry.denoiser(level)
        row |= known
        return [row | _measure(entry, function, clean, given.noisy(place, level), level)]
    except Exception as error:  # methods of users may raise anything
        raise JobFailed([row | {"note": f"{type(error).__name__}: {error}"}]) from error


def _measure(
    entry: Entry, function: Denoise, clean: Array, noisy: Array, level: float
) -> dict[str, Any]:
    _compile_method(entry, level, tuple(min(_WARM, extent) for extent in noisy.shape))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = process_time()
        denoised = np.asarray(function(noisy, level), dtype=np.float64)
        seconds = process_time() - start
    row: dict[str, Any] = {"seconds": seconds} | quality(clean, denoised)
    if caught:
        row["warning"] = f"{caught[0].category.__name__}: {caught[0].message}"
    if entry.network and not entry.is_solver:
        row["distance"] = distance(entry.network_at(level), noisy, denoised)
    return row


@cache
def _compile_method(entry: Entry, level: float, shape: tuple[int, ...]) -> None:
    """Compile a method, once per process; errors on this small image are ignored."""
    crop = np.random.default_rng(0).random(shape)
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry.denoiser(level)[0](crop, level)


def check_answer(denoised: Array, noisy: Array) -> None:
    """Refuse what a method returned if it is no image of that shape with finite levels."""
    if denoised.shape != noisy.shape:
        raise ValueError(f"returned an image of shape {denoised.shape}, not {noisy.shape}")
    if not np.isfinite(denoised).all():
        raise ValueError(f"returned {np.count_nonzero(~np.isfinite(denoised))} non-finite pixels")


def quality(clean: Array, denoised: Array) -> dict[str, float]:
    """PSNR in dB and SSIM, for a range of 1, outside the holes, which are NaN in `clean`.

    SSIM is the mean over windows without holes, and is missing if there is none.

    Raises
    ------
    ValueError
        If the shapes differ, or the image is not finite.
    """
    check_answer(denoised, clean)
    valid = np.isfinite(clean)
    psnr = peak_signal_noise_ratio(clean[valid], denoised[valid], data_range=1.0)
    found, axis = {"psnr": float(psnr)}, -1 if is_colour(clean) else None
    side = min(_SSIM, (min(space_of(clean)) - 1) // 2 * 2 + 1)
    whole = minimum_filter(valid if axis is None else valid[..., 0], side, mode="constant")
    if whole.any():
        levels = np.where(valid, clean, 0), np.where(valid, denoised, 0)
        options = {"data_range": 1.0, "channel_axis": axis, "full": True, "win_size": side}
        found["ssim"] = float(structural_similarity(*levels, **options)[1][whole].mean())
    return found
