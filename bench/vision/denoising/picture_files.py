"""Pictures in files, with all of their bits, alpha and colour profile."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tifffile
from PIL import Image, ImageOps

from ....datasets.files import Unsupported, naming, whole_file
from ....solvers.inputs import Array

FORMATS = {
    ".png": "PNG", ".tif": "TIFF", ".tiff": "TIFF", ".jpg": "JPEG", ".jpeg": "JPEG",
}  # fmt: skip
_MODES = {"1": "L", "P": "RGB", "PA": "RGBA"}  # what other modes are read as
_KEPT = ("L", "LA", "RGB", "RGBA")
_QUALITY = 95  # of JPEG


class Picture(NamedTuple):
    """Levels as uint8 or uint16, (height, width) or (height, width, channels), and ICC profile."""

    pixels: Array
    profile: bytes | None = None


def read_picture(path: str | os.PathLike[str]) -> Picture:
    """Read a picture of 8 or 16 bits, turned upright by its EXIF orientation.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged or no picture, holds several, or levels or colours of another kind.
    """
    with naming(Path(path), "picture"), Image.open(path) as stored:
        n_frames = getattr(stored, "n_frames", 1)
        if n_frames > 1 and stored.format != "MPO":
            raise Unsupported(f"must hold one picture, got {n_frames}")
        profile = stored.info.get("icc_profile")
        if stored.mode in _KEPT[1:] and ";16" in str(stored.tile[0][3]):  # a tuple before Pillow 11
            return Picture(_read_deep_colours(Path(path), stored), profile)
        upright = ImageOps.exif_transpose(stored)
        if upright.mode.startswith("I"):
            return Picture(_check_range(np.asarray(upright)), profile)
        mode = _MODES.get(upright.mode, upright.mode)
        if upright.has_transparency_data:
            mode = {"L": "LA", "RGB": "RGBA"}.get(mode, mode)
        if mode not in _KEPT:
            raise Unsupported(
                f"must be grey or in red, green and blue, of 8 or 16 bits; got {mode}"
            )
        return Picture(np.asarray(upright.convert(mode)), profile)


def read_mask(path: str | os.PathLike[str]) -> Array:
    """Read a picture as an array of bool, True at pixels of half the highest level or more.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_picture`.
    """
    pixels = read_picture(path).pixels
    channels = pixels if pixels.ndim == 3 else pixels[..., None]
    colours = channels[..., : 1 if channels.shape[2] <= 2 else 3]
    return np.asarray(2 * colours.mean(axis=2) >= np.iinfo(pixels.dtype).max)


def _check_range(pixels: Array) -> Array:
    if not 0 <= pixels.min() <= pixels.max() <= 65535:
        raise Unsupported(f"levels must be 0 to 65535, got {pixels.min()} to {pixels.max()}")
    return pixels.astype(np.uint16)


def _read_deep_colours(path: Path, stored: Image.Image) -> Array:
    """Colours of 16 bits, of which pillow keeps 8."""
    if stored.getexif().get(0x0112, 1) != 1:
        raise Unsupported("must be upright if in colour with 16 bits, got an EXIF orientation")
    if stored.format == "TIFF":
        return np.asarray(tifffile.imread(path))
    if stored.format != "PNG" or stored.mode == "LA":
        raise Unsupported(f"cannot read 16 bits of {stored.format}, {stored.mode}; save it as TIFF")
    from kornia_rs import io

    return np.asarray(io.read_image_png_u16(str(path), stored.mode.lower()))


def check_writable(path: Path, picture: Picture) -> None:
    """Refuse, before any work, a file that cannot hold the picture.

    Raises
    ------
    ValueError
        If the suffix is unknown, or the format has too few bits, no alpha or no colour profile.
    """
    kind, pixels = FORMATS.get(path.suffix.lower()), picture.pixels
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    deep = pixels.dtype == np.uint16
    if kind is None:
        raise ValueError(f"{path}: must end in {', '.join(FORMATS)}")
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
    kind = FORMATS[path.suffix.lower()]
    with whole_file(path) as file:
        if kind == "TIFF":
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
