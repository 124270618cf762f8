"""Pictures of a user's folder with label pictures, in the parts that the folder gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.utils import Bunch

from ....datasets.files import Unsupported, naming
from ....datasets.image_folder import fit, picture_shape, pictures_in, read_bytes
from ....solvers.inputs import Array
from ..classification.folder import PART_OF
from ..picture_sizes import read_size, smallest_size

_LABELS = ("labels", "masks", "annotations")
_RULE = "must hold a picture images/NAME and a label picture labels/NAME for each"
_MOST = 64  # classes; antialiased or noisy labels have more values
_FEWEST = 5  # training pictures, of which one is for validation and one for test
_LOSSY = ("JPEG", "MPO", "WEBP", "AVIF", "JPEG2000")


class _Pair(NamedTuple):
    """A picture, its label picture, the part that they are in ("train" by default), and a name."""

    image: Path
    label: Path
    part: str
    name: str


def read_scene_folder(
    path: str, *, size: int | str | None = None, ignore: int | None = None
) -> dict[str, Bunch]:
    """Read pictures and their label pictures, for training, validation and test.

    ``images/NAME`` has its label picture in ``labels/NAME``, with any suffix; the folder may also
    be called ``masks`` or ``annotations``. Folders train, val and test may lie above or below these
    two; of a part that is missing, a fifth of the training pictures is drawn. The distinct values,
    or colours, of all label pictures are the classes, in rising order. `ignore` is a value without
    a class. Picture and labels are scaled until they cover the size, and the middle is cut out;
    labels take the nearest pixel. The size is `size`, else `smallest_size`.

    Returns
    -------
    dict of Bunch
        "train", "validation" and "test", each as of `twinsolve.datasets.fetch_camvid`.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If a picture has no label picture or the reverse, the two differ in size, labels are lossy
        or have more than 64 values, a class has no training pixel, or pictures are too few.
    """
    folder = Path(path)
    pairs = _find_pairs(folder)
    shapes = {str(pair.image): picture_shape(pair.image) for pair in pairs}
    for pair in pairs:
        (height, width), other = shapes[str(pair.image)], picture_shape(pair.label)
        if other != (height, width):
            raise ValueError(
                f"data: {pair.label} has {other[0]} x {other[1]} pixels and its picture "
                f"{pair.image} {height} x {width}"
            )
    fitted = smallest_size(shapes) if size is None else read_size(size)
    labels = [fit(_read_labels(pair.label), fitted, nearest=True) for pair in pairs]
    values = np.setdiff1d(np.unique(np.stack(labels)), [] if ignore is None else [ignore])
    if not 2 <= len(values) <= _MOST:
        raise ValueError(
            f"data: label pictures of {folder} must have 2 to {_MOST} different values, got "
            f"{len(values)}"
        )
    parts = _split_parts([pair.part for pair in pairs], folder)
    found = {
        part: Bunch(
            images=np.stack([fit(read_bytes(pairs[i].image, True), fitted) for i in chosen]),
            target=np.stack([_number(labels[i], values) for i in chosen]),
            target_names=[_name(value) for value in values],
            ignored=len(values),
            names=[pairs[i].name for i in chosen],
            DESCR=f"Pictures of {folder}.",
        )
        for part, chosen in parts.items()
    }
    _check_train(found["train"], folder)
    return found


def _find_pairs(folder: Path) -> list[_Pair]:
    """Pair pictures and label pictures by their path without ``images`` or ``labels``."""
    found: dict[str, dict[tuple[str, ...], Path]] = {"images": {}, "labels": {}}
    for file in pictures_in(folder):
        names = file.relative_to(folder).with_suffix("").parts
        kinds = [i for i, name in enumerate(names[:-1]) if name in ("images", *_LABELS)]
        if len(kinds) != 1:
            raise ValueError(f"data: {folder} {_RULE}; found {file}")
        own = found["images" if names[kinds[0]] == "images" else "labels"]
        key = (*names[: kinds[0]], *names[kinds[0] + 1 :])
        if key in own:
            raise ValueError(f"data: {own[key]} and {file} are pictures of one name")
        own[key] = file
    images, labels = found["images"], found["labels"]
    for key in images.keys() ^ labels.keys():
        missing = "label picture" if key in images else "picture"
        raise ValueError(f"data: {(images | labels)[key]} has no {missing}; {folder} {_RULE}")
    parts = {
        key: PART_OF.get(key[0].lower(), "train") if len(key) > 1 else "train" for key in images
    }
    return [_Pair(images[key], labels[key], parts[key], "/".join(key)) for key in sorted(images)]


def _read_labels(file: Path) -> Array:
    """Return labels as int32: levels, places in a palette, or colours as one number."""
    from PIL import Image

    with naming(file, "picture"), Image.open(file) as stored:
        if stored.format in _LOSSY:
            raise Unsupported(f"labels must be stored without loss, as PNG; got {stored.format}")
        if stored.mode in ("RGB", "RGBA"):
            colours = np.asarray(stored.convert("RGB"), dtype=np.int32)
            return colours @ np.array([1 << 16, 1 << 8, 1], dtype=np.int32)
        if stored.mode == "F" or (stored.mode not in ("1", "L", "P") and stored.mode[0] != "I"):
            raise Unsupported(f"labels must be grey, of a palette or colours; got {stored.mode}")
        return np.asarray(stored).astype(np.int32)


def _number(labels: Array, values: Array) -> Array:
    """Return the place of each label in the values; their number if it is not among them."""
    places = np.searchsorted(values, labels).clip(max=len(values) - 1)
    return np.where(values[places] == labels, places, len(values)).astype(np.uint8)


def _name(value: int) -> str:
    """Return a level, or a colour in hexadecimal as on the web."""
    return str(value) if value < 1 << 16 else f"#{value:06x}"


def _split_parts(parts: Sequence[str], folder: Path) -> dict[str, Array]:
    """Return places of the pictures of each part; a missing one is drawn from the training."""
    own = {
        part: np.flatnonzero(np.array(parts) == part) for part in ("train", "validation", "test")
    }
    if len(own["train"]) < _FEWEST:
        raise ValueError(
            f"data: {folder} has {len(own['train'])} training pictures; must have {_FEWEST} or more"
        )
    drawn = np.random.default_rng(0).permutation(own["train"])
    n_part = len(drawn) // 5
    for part in ("validation", "test"):
        if not len(own[part]):
            own[part], drawn = np.sort(drawn[:n_part]), drawn[n_part:]
    return own | {"train": np.sort(drawn)}


def _check_train(train: Bunch, folder: Path) -> None:
    counts = np.bincount(train.target.ravel(), minlength=train.ignored)
    for name, count in zip(train.target_names, counts, strict=False):
        if not count:
            raise ValueError(
                f"data: no training label picture of {folder} holds the class {name}; give folders "
                "train, val and test of your own, or add pictures"
            )
