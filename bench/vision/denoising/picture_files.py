"""Pictures and volumes in files, with all of their bits, alpha and colour profile."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from PIL import Image, ImageOps

from ....datasets.files import Unsupported, naming, whole_file
from ....datasets.image_folder import is_deep_tiff, is_white_zero, read_deep_tiff, visible_files
from ....datasets.numpy_files import read_array
from ....solvers.inputs import Array
from .picture_arrays import count_colours, highest_level, is_volume, with_channels

ARRAY = ".npy"
FORMATS = {
    ".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF", ".jpg": "JPEG", ".jpeg": "JPEG", ARRAY: "NPY",
}  # fmt: skip
_MODES = {"1": "L", "P": "RGB", "PA": "RGBA"}  # what other modes are read as
_KEPT = ("L", "LA", "RGB", "RGBA")
_QUALITY = 95  # of JPEG


class Picture(NamedTuple):
    """Levels, (height, width) or (height, width, channels), and ICC profile.

    They are uint8 or uint16; of a .npy file they may be floating point, or those of a volume.
    """

    pixels: Array
    profile: bytes | None = None


def read_picture(path: str | os.PathLike[str]) -> Picture:
    """Read a picture of 8 or 16 bits, turned upright by its EXIF orientation, or a .npy array.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or no picture, holds several, or levels or colours of another kind.
    """
    if Path(path).suffix.lower() == ARRAY:
        return Picture(read_array(Path(path)))
    with naming(Path(path), "picture"), Image.open(path) as stored:
        n_frames = getattr(stored, "n_frames", 1)
        if n_frames > 1 and stored.format != "MPO":
            raise Unsupported(f"must hold one picture, got {n_frames}; save a volume as {ARRAY}")
        profile = stored.info.get("icc_profile")
        if is_deep_tiff(stored):
            return Picture(read_deep_tiff(Path(path), stored), profile)
        if stored.mode in _KEPT[1:] and ";16" in str(stored.tile[0][3]):  # a tuple before Pillow 11
            return Picture(_read_deep_colours(Path(path), stored), profile)
        upright = ImageOps.exif_transpose(stored)
        if upright.mode.startswith("I"):
            pixels = _check_range(np.asarray(upright))
            return Picture(65535 - pixels if is_white_zero(stored) else pixels, profile)
        mode = _MODES.get(upright.mode, upright.mode)
        if upright.has_transparency_data:
            mode = {"L": "LA", "RGB": "RGBA"}.get(mode, mode)
        if mode not in _KEPT:
            raise Unsupported(
                f"must be grey or in red, green and blue, of 8 or 16 bits; got {mode}"
            )
        return Picture(np.asarray(upright.convert(mode)), profile)


def read_mask(path: str | os.PathLike[str]) -> Array:
    """Read an array of bool, True at pixels of half the highest level or more.

    A .npy file holds bool, or zeros in holes and ones elsewhere.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_picture`, and if a .npy file holds anything else.
    """
    pixels = read_picture(path).pixels
    if Path(path).suffix.lower() == ARRAY:
        if pixels.dtype.kind not in "biuf" or not np.isin(pixels, (0, 1)).all():
            raise ValueError(f"{path}: a mask must hold bool, or zeros in holes and ones elsewhere")
        return pixels.astype(bool)
    channels = with_channels(pixels)
    colours = channels[..., : count_colours(channels)]
    return np.asarray(2 * colours.mean(axis=2) >= highest_level(pixels))


def read_arrays(
    folder: str, read: Callable[[Path], Array]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Read the .npy files of a folder and of its subfolders: arrays, and reasons for those left.

    Both are by the path below the folder, without suffix. What `read` refuses is left out.
    """
    found, reasons = {}, {}
    for file in visible_files(Path(folder)):
        if file.suffix != ARRAY:
            continue
        name = file.relative_to(folder).with_suffix("").as_posix()
        try:
            found[name] = read(file)
        except ValueError as error:
            reasons[name] = str(error) if str(error).startswith(str(file)) else f"{file}: {error}"
    return found, reasons


def _check_range(pixels: Array) -> Array:
    if not 0 <= pixels.min() <= pixels.max() <= 65535:
        raise Unsupported(f"levels must be 0 to 65535, got {pixels.min()} to {pixels.max()}")
    return pixels.astype(np.uint16)


def _read_deep_colours(path: Path, stored: Image.Image) -> Array:
    """Colours of 16 bits, of which pillow keeps 8."""
    if stored.format != "PNG" or stored.mode == "LA":
        raise Unsupported(f"cannot read 16 bits of {stored.format}, {stored.mode}; save it as TIFF")
    from kornia_rs import io

    return np.asarray(io.read_image_png_u16(str(path), stored.mode.lower()))


def check_writable(path: Path, picture: Picture) -> None:
    """Refuse, before any work, a file that cannot hold the picture.

    Raises
    ------
    ValueError
        If the suffix is unknown, or the format has too few bits, no alpha, no colour profile or no
        volumes.
    """
    kind, pixels = FORMATS.get(path.suffix.lower()), picture.pixels
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    deep = pixels.dtype == np.uint16
    if kind is None:
        raise ValueError(f"{path}: must end in {', '.join(FORMATS)}")
    if kind != "NPY" and (is_volume(pixels) or pixels.dtype.kind == "f"):
        lacking = "volumes" if is_volume(pixels) else "floating-point levels"
        raise ValueError(f"{path}: {kind} holds no {lacking}; name a {ARRAY}")
    if kind == "JPEG" and (deep or channels in (2, 4)):
        lacking = "16 bits" if deep else "alpha"
        raise ValueError(f"{path}: JPEG holds no {lacking}; name a .png or .tif")
    if kind == "PNG" and deep and channels > 2 and picture.profile:
        raise ValueError(
            f"{path}: PNG of 16 bits in colour is written without colour profile; name a .tif"
        )


def write_picture(path: Path, picture: Picture) -> None:
    """Write a picture, whole or not at all, in the format of the suffix.

    JPEG is written at quality 95 without subsampling of colours, others without loss.

    Raises
    ------
    ValueError
        As `check_writable`.
    OSError
        If the file cannot be written.
    """
    check_writable(path, picture)
    pixels, profile = picture
    if pixels.ndim == 3 and pixels.shape[2] == 1 and path.suffix.lower() != ARRAY:
        pixels = pixels[..., 0]
    kind = FORMATS[path.suffix.lower()]
    with whole_file(path) as file:
        if kind == "NPY":
            np.save(file, pixels)
        elif kind == "TIFF":
            tifffile.imwrite(file, pixels, iccprofile=profile, **_describe_channels(pixels))
        elif kind == "PNG" and pixels.dtype == np.uint16 and pixels.ndim == 3:
            from kornia_rs import io

            mode = "rgb" if pixels.shape[2] == 3 else "rgba"
            io.write_image_png_u16(file.name, np.ascontiguousarray(pixels), mode)
        else:
            options = {"quality": _QUALITY, "subsampling": 0} if kind == "JPEG" else {}
            Image.fromarray(pixels).save(file, format=kind, icc_profile=profile, **options)


def _describe_channels(pixels: Array) -> dict[str, Any]:
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    described: dict[str, Any] = {"photometric": "rgb" if channels > 2 else "minisblack"}
    if channels in (2, 4):
        described |= {"extrasamples": ["unassalpha"], "planarconfig": "contig"}
    return described
