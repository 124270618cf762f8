"""Images of a user's folder, in memory or packed into one memory-mapped file."""

import hashlib
import json
import os
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from .files import Unsupported, naming, whole_file, write_whole
from .root import cache_folder

_SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".tif", ".tiff", ".webp", ".avif", ".jp2", ".pgm",
    ".ppm",
)  # fmt: skip
_FORM = "2"  # version of the packed files
_TURNED = 0x0112  # EXIF orientation; from 5 on, height and width change places
_BITS, _PHOTOMETRIC, _PLANES = 258, 262, 284  # tags of TIFF
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")


def load_image_folder(path: str | os.PathLike[str], *, colour: bool = False) -> Bunch:
    """Load the pictures of a folder and of its subfolders.

    Parameters
    ----------
    path : path
        Folder of PNG, JPEG, BMP, TIFF, WebP, AVIF, JPEG 2000, PGM or PPM files, such as those of
        the Berkeley segmentation data. Other files are ignored, as is all that is hidden.
    colour : bool, default=False
        True gives red, green and blue. False gives grey; a file in colour becomes the luma of
        Rec. 601, rounded to 8 bits.

    Returns
    -------
    Bunch
        ``images``: list of ndarrays of shape (height, width) or, in colour, (height, width, 3),
        levels in [0, 1]; ``names``: paths of the files below the folder, sorted, without suffixes
        unless two names would then be the same; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If the folder holds no picture, or a file is damaged, holds several pictures or is not of 8
        or 16 bits: names it.
    ImportError
        If pillow is not installed.

    See Also
    --------
    pack_image_folder : For folders that are larger than memory.

    Examples
    --------
    >>> from twinsolve.datasets import load_image_folder
    >>> load_image_folder("BSDS500/data/images/test").names[0]  # doctest: +SKIP
    '100007'
    """
    folder = Path(path)
    files = pictures_in(folder)
    images = [_levels(file, colour) for file in files]
    return Bunch(images=images, names=_names(folder, files), DESCR=f"Pictures of {path}.")


def read_pictures(
    path: str | os.PathLike[str], *, colour: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, str], list[str]]:
    """Return the images of a folder by name, the unreadable ones, and other files.

    Names and images are those of `load_image_folder`. Of unreadable pictures, and of those in other
    formats, the reasons come, by name; of files that are no pictures, the names.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        If there is no such folder, pillow is not installed, or the folder holds no picture.
    """
    files = pictures_in(Path(path))
    images, left_out = {}, {}
    for name, file in zip(_names(Path(path), files), files, strict=True):
        try:
            images[name] = _levels(file, colour)
        except ValueError as error:
            left_out[name] = str(error)
    other_names = []
    for file in visible_files(Path(path)):
        name = file.relative_to(path).as_posix()
        if file in files:
            continue
        if (guess_type(file.name)[0] or "").startswith("image/"):
            left_out[name] = f"{file}: is none of {', '.join(_SUFFIXES)}"
        else:
            other_names.append(name)
    return images, left_out, other_names


def pack_image_folder(
    path: str | os.PathLike[str], *, colour: bool = False, size: tuple[int, int] | None = None
) -> Bunch:
    """Decode the pictures of a folder once, into a memory-mapped file.

    The file lies in the user's cache folder, ``$XDG_CACHE_HOME/twinsolve/packed`` or
    ``~/.cache/twinsolve/packed``. It has one byte for each pixel and channel, and is written again
    when a picture is added, removed or changed. Memory holds one picture at a time.

    Parameters, errors and names are those of `load_image_folder`; and

    size : (int, int), optional
        Height and width of all images. A picture of another size is scaled until it covers them,
        by bicubic interpolation, and the middle is cut out. None keeps the sizes.

    Returns
    -------
    Bunch
        ``images``: list of read-only uint8 ndarrays, 0 to 255, of shape (height, width) or
        (height, width, 3), read from the disk when they are used; ``names``; ``key``: hash of the
        pictures and names, the same in any folder; ``DESCR``.

    Examples
    --------
    >>> from twinsolve.datasets import pack_image_folder
    >>> pack_image_folder("BSDS500/data/images/train").images[0].dtype  # doctest: +SKIP
    dtype('uint8')
    """
    folder = Path(path)
    files = pictures_in(folder)
    place = [str(folder.resolve()), colour, *([size] if size else [])]
    packed = cache_folder() / "packed" / _hash(place)
    packed /= f"{_hash(_stamps(folder, files))}.u8"
    if not packed.with_suffix(".json").exists():
        _pack(files, _names(folder, files), packed, colour, size)
        for old in packed.parent.iterdir():  # packed before the folder changed
            if old.stem != packed.stem and old.suffix in (".u8", ".json"):
                old.unlink(missing_ok=True)
    index = json.loads(packed.with_suffix(".json").read_text())
    pixels = np.asarray(np.memmap(packed, dtype=np.uint8, mode="r"))
    parts = np.split(pixels, np.cumsum([np.prod(shape) for shape in index["shapes"]])[:-1])
    images = [part.reshape(shape) for part, shape in zip(parts, index["shapes"], strict=True)]
    return Bunch(
        images=images, names=index["names"], key=index["key"], DESCR=f"Packed pictures of {path}."
    )


def _stamps(folder: Path, files: list[Path]) -> list[tuple[str, int, int]]:
    """Return the version of packed files, then name, size and time of change of each picture."""
    stats = [(file.relative_to(folder).as_posix(), file.stat()) for file in files]
    return [(_FORM, 0, 0), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)]


def fit(pixels: np.ndarray, size: tuple[int, int], *, nearest: bool = False) -> np.ndarray:
    """Scale a picture of 8 bits until it covers a height and width, and cut out the middle.

    Interpolation is bicubic, or `nearest` for labels.

    Examples
    --------
    >>> import numpy as np
    >>> from twinsolve.datasets.image_folder import fit
    >>> fit(np.array([[1, 2, 2, 3]] * 2, dtype=np.uint8), (1, 1), nearest=True)
    array([[2]], dtype=uint8)
    """
    from PIL import Image, ImageOps

    method = Image.Resampling.NEAREST if nearest else Image.Resampling.BICUBIC
    return np.asarray(ImageOps.fit(Image.fromarray(pixels), (size[1], size[0]), method))


def picture_shape(file: Path) -> tuple[int, int]:
    """Return height and width of a picture, upright by its EXIF orientation, without decoding it.

    Raises
    ------
    ValueError, ImportError
        If the file is damaged or no picture, or pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pictures need pillow: pip install 'twinsolve[bench]'") from error

    with naming(file, "picture"), Image.open(file) as stored:
        width, height = stored.size
        return (width, height) if stored.getexif().get(_TURNED) in range(5, 9) else (height, width)


def _pack(
    files: list[Path],
    names: list[str],
    packed: Path,
    colour: bool,
    size: tuple[int, int] | None,
) -> None:
    """Write the pixels, then the index: if the index exists, the pixels are complete."""
    shapes, digest = [], hashlib.sha256()
    with whole_file(packed) as stream:
        for file in files:
            image = read_bytes(file, colour)
            image = image if size in (None, image.shape[:2]) else fit(image, size)
            shapes.append(image.shape)
            stream.write(image.tobytes())
            digest.update(image.tobytes())
    key = _hash([names, shapes, digest.hexdigest()])
    index = json.dumps({"names": names, "shapes": shapes, "key": key})
    write_whole(packed.with_suffix(".json"), index)


def visible_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted, without what is hidden by a dot."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(x.startswith(".") for x in path.relative_to(folder).parts)
    ]


def pictures_in(folder: Path) -> list[Path]:
    """Return the paths of the pictures in a folder and its subfolders, sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: is not a folder of pictures")
    if files := [file for file in visible_files(folder) if file.suffix.lower() in _SUFFIXES]:
        return files
    raise ValueError(f"{folder}: holds no picture; looked for {', '.join(_SUFFIXES)}")


def _names(folder: Path, files: list[Path]) -> list[str]:
    """Return the paths below the folder, without suffixes if they stay different."""
    full = [file.relative_to(folder) for file in files]
    short = [name.with_suffix("").as_posix() for name in full]
    return short if len(set(short)) == len(short) else [name.as_posix() for name in full]


def read_bytes(file: Path, colour: bool) -> np.ndarray:
    """Return a picture's levels from 0 to 255, turned upright by its EXIF orientation."""
    return np.rint(255 * _levels(file, colour)).astype(np.uint8)


def _levels(file: Path, colour: bool) -> np.ndarray:
    """Return a picture's levels in [0, 1], turned upright by its EXIF orientation."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("pictures need pillow: pip install 'twinsolve[bench]'") from error

    with naming(file, "picture"), Image.open(file) as stored:
        if (n_frames := getattr(stored, "n_frames", 1)) > 1 and stored.format != "MPO":
            raise Unsupported(f"must hold one picture, got {n_frames}")
        if is_deep_tiff(stored):
            shallow = np.rint(read_deep_tiff(file, stored) / 257).astype(np.uint8)
            picture = Image.fromarray(shallow[..., :3] if shallow.shape[2] > 2 else shallow[..., 0])
        else:
            picture = ImageOps.exif_transpose(stored)
        if picture.mode == "F":
            raise Unsupported("levels must have 8 or 16 bits, got floating-point numbers")
        if picture.mode in _SIXTEEN_BITS:
            pixels = np.asarray(picture, dtype=np.float64)
            if not 0 <= pixels.min() <= pixels.max() <= 65535:
                raise Unsupported(
                    f"levels must be 0 to 65535, got {pixels.min():g} to {pixels.max():g}"
                )
            levels = (65535 - pixels if is_white_zero(stored) else pixels) / 65535
            return np.repeat(levels[:, :, None], 3, axis=2) if colour else levels
        return np.asarray(picture.convert("RGB" if colour else "L")) / 255


def is_deep_tiff(stored: Any) -> bool:
    """Whether an opened picture is a TIFF in grey and alpha, or in colour, of 16 bits.

    Pillow keeps 8 of them.
    """
    if stored.format != "TIFF" or stored.mode not in ("LA", "RGB", "RGBA"):
        return False
    return max(stored.tag_v2.get(_BITS, (8,))) == 16


def is_white_zero(stored: Any) -> bool:
    """Whether an opened picture is a TIFF whose level 0 is white; pillow turns those of 8 bits."""
    return stored.format == "TIFF" and stored.tag_v2.get(_PHOTOMETRIC) == 0


def read_deep_tiff(file: Path, stored: Any) -> np.ndarray:
    """Return the channels of a TIFF for which `is_deep_tiff` holds, upright, in the last axis."""
    import tifffile

    pixels, turned = tifffile.imread(file), stored.getexif().get(_TURNED, 1)
    if stored.tag_v2.get(_PLANES) == 2:
        pixels = np.moveaxis(pixels, 0, -1)
    if turned > 4:
        pixels = pixels.swapaxes(0, 1)
    mirrored = pixels[:, ::-1] if turned in (2, 3, 6, 7) else pixels
    return np.ascontiguousarray(mirrored[::-1] if turned in (3, 4, 7, 8) else mirrored)


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
