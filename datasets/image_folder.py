"""Images of a user's folder, in memory or packed into one file that is memory-mapped."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from .files import naming, whole_file, write_whole
from .root import cache_folder

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
_FORM = "2"  # of packed files
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")


def load_image_folder(path: str | os.PathLike[str], *, colour: bool = False) -> Bunch:
    """Load the pictures of a folder and of the folders in it.

    Parameters
    ----------
    path : path
        Folder of PNG, JPEG, BMP or TIFF files, such as those of the Berkeley segmentation data.
        Other files are passed over.
    colour : bool, default=False
        Red, green and blue; else grey, by the luma of Rec. 601, in whole levels of 8 bits where
        the file is in colour.

    Returns
    -------
    Bunch
        ``images``: list of ndarrays of shape (height, width) or, in colour, (height, width, 3),
        levels in [0, 1]; ``names``: the files' names below the folder, sorted, without endings
        unless two would be the same; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If the folder holds no picture, or a file is damaged or not of 8 or 16 bits: names it.
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
    images, left_out = read_pictures(path, colour=colour)
    for reason in left_out.values():
        raise ValueError(reason)
    return Bunch(images=[*images.values()], names=[*images], DESCR=f"Pictures of {path}.")


def read_pictures(
    path: str | os.PathLike[str], *, colour: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Images of a folder by their names, as `load_image_folder` has them, and why others are none.

    Raises
    ------
    FileNotFoundError, ImportError, ValueError
        If there is no folder, or it holds no picture, or pillow is not installed.
    """
    files = _pictures_in(Path(path))
    images, left_out = {}, {}
    for name, file in zip(_names(Path(path), files), files, strict=True):
        try:
            images[name] = _levels(file, colour)
        except ValueError as error:
            left_out[name] = str(error)
    return images, left_out


def pack_image_folder(path: str | os.PathLike[str], *, colour: bool = False) -> Bunch:
    """Decode the pictures of a folder once, one after another, into a memory-mapped file.

    The file lies in the user's cache folder, ``$XDG_CACHE_HOME/twinsolve/packed`` or
    ``~/.cache/twinsolve/packed``, with a byte a pixel and colour, and is made again when a picture
    is added, removed or changed. Memory holds one picture at a time.

    Parameters, errors and names as in `load_image_folder`.

    Returns
    -------
    Bunch
        ``images``: list of read-only uint8 ndarrays, 0 to 255, of shape (height, width) or
        (height, width, 3), which are read from the disk where they are looked at; ``names``;
        ``key``: tells these pictures and names from others, wherever they lie; ``DESCR``.

    Examples
    --------
    >>> from twinsolve.datasets import pack_image_folder
    >>> pack_image_folder("BSDS500/data/images/train").images[0].dtype  # doctest: +SKIP
    dtype('uint8')
    """
    folder = Path(path)
    files = _pictures_in(folder)
    packed = cache_folder() / "packed" / _hash([str(folder.resolve()), colour])
    packed /= f"{_hash(_stamps(folder, files))}.u8"
    if not packed.with_suffix(".json").exists():
        _pack(files, _names(folder, files), packed, colour)
        for old in packed.parent.iterdir():  # of the folder as it was
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
    """By what it is known that pictures are as they were when they were packed, in this form."""
    stats = [(file.relative_to(folder).as_posix(), file.stat()) for file in files]
    return [(_FORM, 0, 0), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)]


def _pack(files: list[Path], names: list[str], packed: Path, colour: bool) -> None:
    """Write pixels, then the index, which says that they are there; both whole or not at all."""
    shapes, digest = [], hashlib.sha256()
    with whole_file(packed) as stream:
        for file in files:
            image = np.rint(255 * _levels(file, colour)).astype(np.uint8)
            shapes.append(image.shape)
            stream.write(image.tobytes())
            digest.update(image.tobytes())
    key = _hash([names, shapes, digest.hexdigest()])
    index = json.dumps({"names": names, "shapes": shapes, "key": key})
    write_whole(packed.with_suffix(".json"), index)


def _pictures_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: is no folder of pictures")
    found = (file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if files := sorted(file for file in found if file.is_file()):
        return files
    raise ValueError(f"{folder}: holds no picture; looked for {', '.join(_SUFFIXES)}")


def _names(folder: Path, files: list[Path]) -> list[str]:
    whole = [file.relative_to(folder) for file in files]
    short = [name.with_suffix("").as_posix() for name in whole]
    return short if len(set(short)) == len(short) else [name.as_posix() for name in whole]


def _levels(file: Path, colour: bool) -> np.ndarray:
    """Levels in [0, 1] of a picture, upright as its camera says."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("pictures need pillow: pip install 'twinsolve[bench]'") from error

    with naming(file, "picture"), Image.open(file) as stored:
        picture = ImageOps.exif_transpose(stored)
        if picture.mode == "F":
            raise ValueError("levels are floating-point numbers; must be of 8 or 16 bits")
        if picture.mode in _SIXTEEN_BITS:
            levels = np.asarray(picture, dtype=np.float64) / 65535
            if not 0 <= levels.min() <= levels.max() <= 1:
                raise ValueError("levels are not within those of 16 bits")
            return np.repeat(levels[:, :, None], 3, axis=2) if colour else levels
        return np.asarray(picture.convert("RGB" if colour else "L")) / 255


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
