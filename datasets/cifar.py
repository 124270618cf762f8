"""CIFAR-10, from the binary batches or from class folders of pictures; never from pickles."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from .archives import packed_files
from .files import image_rows, picture_reader
from .root import data_root, first_data_file
from .unpacked import keep_unpacked, load_unpacked, stamp_of

_SOURCE = (
    "CIFAR-10 (Krizhevsky, Learning multiple layers of features from tiny images, 2009) as the "
    "binary version, cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html (MD5 "
    "c32a1d4ab5d03f1284b67883e8d87530), or as class folders of pictures, train/CLASS/NAME and "
    "test/CLASS/NAME"
)
_PLACES = (
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    "cifar-10-images",
    "cifar-10-images.tar.xz",
)
_PICKLED = ("cifar-10-batches-py", "cifar-10-python.tar.gz")
_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
_SIZES = {"train": 50_000, "test": 10_000}
_BATCHES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
_RECORD = 1 + 3 * 32 * 32
_Reader = Callable[[Path, tuple[str, ...]], tuple[np.ndarray, np.ndarray]]
_SUFFIXES = (".jpg", ".jpeg", ".png")


def fetch_cifar10(
    *, subset: str = "train", data_home: str | None = None, return_X_y: bool = False
) -> Bunch:
    """Load CIFAR-10: 60,000 colour images of 10 classes.

    The first of these that exists in the folder is read: ``cifar-10-batches-bin`` (the binary
    version, unpacked), ``cifar-10-binary.tar.gz`` (the binary version as published),
    ``cifar-10-images`` (class folders of JPEG or PNG files) and ``cifar-10-images.tar.xz`` (these
    folders, packed). Reading an archive of pictures takes minutes; the decoded images are kept in
    the user's cache folder, ``$XDG_CACHE_HOME/twinsolve`` or ``~/.cache/twinsolve`` (154 MB for
    training images), and read from there until the archive changes. The Python version, which
    torchvision keeps, is not read: its files are pickles, and loading a pickle can run code.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 50,000 training images, the 10,000 test images, or the training and then the test
        images.
    data_home : str, optional
        Folder that holds the files. None is the folder in the environment variable
        TWINSOLVE_DATA, else the user's cache folder.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``images``: uint8 ndarray of shape (n_images, 32, 32, 3); ``data``: the same as float32
        rows of 3,072 pixel values, 0 to 255; ``target``: classes 0 to 9; ``target_names``;
        ``DESCR``. The binary version keeps its own order; pictures are sorted by class, then file
        name. JPEG files differ slightly from the original pixels.

    Raises
    ------
    FileNotFoundError
        If none of them exists: names them, the folder and where the data set comes from.
    ValueError
        If a file is damaged or images are missing, or `subset` is unknown.
    ImportError
        If pictures are to be read and pillow is not installed.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_cifar10
    >>> fetch_cifar10(subset="test").data.shape  # doctest: +SKIP
    (10000, 3072)
    """
    parts = subset_parts(subset)
    path = _find(data_home)
    read = _binary if "bin" in path.name else _pictures
    images, target = read(path, parts) if path.is_dir() else _unpacked(path, parts, read)
    data = image_rows(images).astype(np.float32)
    if return_X_y:
        return data, target
    return Bunch(
        data=data, images=images, target=target, target_names=list(_CLASSES), DESCR=_SOURCE
    )


def _find(data_home: str | None) -> Path:
    """Return the path of the data; if there are only pickles, the error says so."""
    try:
        return first_data_file(_PLACES, data_home, _SOURCE)
    except FileNotFoundError as missing:
        for name in _PICKLED:
            if (path := data_root(data_home) / name).exists():
                raise FileNotFoundError(
                    f"{path} holds pickles, which can run code when loaded, and is not read. "
                    f"{missing}"
                ) from None
        raise


def subset_parts(subset: str) -> tuple[str, ...]:
    """Return the names of the parts of a data set that make up `subset`."""
    if subset not in ("train", "test", "all"):
        raise ValueError(f"subset: must be 'train', 'test' or 'all', got {subset!r}")
    return ("train", "test") if subset == "all" else (subset,)


def _unpacked(path: Path, parts: tuple[str, ...], read: _Reader) -> tuple[np.ndarray, np.ndarray]:
    """Return images and classes of an archive; decoded parts are kept in the user's cache."""
    by_part = {part: load_unpacked(path, f"cifar10-{part}") for part in parts}
    absent = tuple(part for part in parts if by_part[part] is None)
    if absent:
        stamp = stamp_of(path)
        images, target = read(path, absent)
        ends = np.cumsum([_SIZES[part] for part in absent])[:-1]
        split = zip(absent, np.split(images, ends), np.split(target, ends), strict=True)
        for part, part_images, part_target in split:
            by_part[part] = arrays = {"images": part_images, "target": part_target}
            keep_unpacked(path, f"cifar10-{part}", arrays, stamp)
    ordered = [by_part[part] or {} for part in parts]
    images, target = (np.concatenate([x[name] for x in ordered]) for name in ("images", "target"))
    return images, target


def _binary(path: Path, parts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return images and classes of the binary version, a folder or an archive."""
    batches = {name for part in parts for name in _BATCHES[part]}
    members = packed_files(path, lambda names: names[-1] in batches)
    by_name = {names[-1]: content for names, content in members}
    records = []
    for part in parts:
        for name in _BATCHES[part]:
            expected = _SIZES[part] // len(_BATCHES[part]) * _RECORD
            content = by_name.get(name, b"")
            if len(content) != expected:
                raise ValueError(f"{path}: {name} must have {expected} bytes, got {len(content)}")
            records.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD))
    rows = np.concatenate(records)
    if rows[:, 0].max() >= len(_CLASSES):
        raise ValueError(
            f"{path}: labels must be at most {len(_CLASSES) - 1}, got {rows[:, 0].max()}"
        )
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, 0].astype(np.int64)


def _pictures(path: Path, parts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return images and classes of class folders of pictures, in a folder or an archive."""
    read = picture_reader()
    by_place: dict[tuple[int, int, str], np.ndarray] = {}
    for names, content in packed_files(path, lambda names: _is_picture(names, parts)):
        place = f"{path}: {'/'.join(names)}"
        image = read(io.BytesIO(content), place, "RGB")
        if image.shape != (32, 32, 3):
            raise ValueError(f"{place}: must be 32 x 32, got {image.shape[1]} x {image.shape[0]}")
        by_place[parts.index(names[-3]), _CLASSES.index(names[-2]), names[-1]] = image
    for index, part in enumerate(parts):
        counts = np.bincount([key[1] for key in by_place if key[0] == index], minlength=10)
        if (counts != _SIZES[part] // 10).any():
            raise ValueError(
                f"{path}: must hold {_SIZES[part] // 10} pictures a class in {part}, "
                f"got {dict(zip(_CLASSES, counts.tolist(), strict=True))}"
            )
    keys = sorted(by_place)
    return np.stack([by_place[key] for key in keys]), np.array([key[1] for key in keys])


def _is_picture(names: list[str], parts: tuple[str, ...]) -> bool:
    """Whether this is the path of a picture in a class folder of one of the parts."""
    return (
        len(names) > 2
        and names[-3] in parts
        and names[-2] in _CLASSES
        and names[-1].lower().endswith(_SUFFIXES)
    )
