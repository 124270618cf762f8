"""MNIST and the data sets in its form, from IDX files or from OpenML."""

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from shutil import copytree, rmtree
from string import ascii_lowercase, ascii_uppercase, digits
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import fetch_openml
from sklearn.utils import Bunch

from .cifar import subset_parts
from .files import image_rows, remove_leftovers
from .idx import read_idx
from .root import data_root, first_data_file

_MNIST = (
    "MNIST, 70,000 handwritten digits (LeCun, Bottou, Bengio and Haffner, Proc. IEEE 1998; "
    "http://yann.lecun.com/exdb/mnist/)"
)
_FASHION = (
    "Fashion-MNIST, 70,000 pieces of clothing (Xiao, Rasul and Vollgraf, 2017; "
    "https://github.com/zalandoresearch/fashion-mnist)"
)
_EMNIST = (
    "EMNIST, handwritten digits and letters (Cohen, Afshar, Tapson and van Schaik, 2017; "
    "https://www.nist.gov/itl/products-and-services/emnist-dataset): put the files of its archive "
    "gzip.zip here or into the folder emnist"
)
_CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# Fifteen small letters look like their capitals and are merged with them.
_MERGED = digits + ascii_uppercase + "abdefghnqrt"
_SPLITS = {
    "balanced": _MERGED,
    "bymerge": _MERGED,
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    "letters": ascii_uppercase,
    "digits": digits,
    "mnist": digits,
}
_SIZES = {"train": 60_000, "test": 10_000}  # at OpenML


def fetch_mnist(
    *, subset: str = "train", data_home: str | None = None, return_X_y: bool = False
) -> Bunch:
    """Load MNIST: 60,000 training and 10,000 test images of handwritten digits.

    Read from the four IDX files ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
    ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, plain or with the suffix ``.gz``, in
    the folder ``mnist`` of the data root or in the root itself. Without them, scikit-learn
    downloads the data from OpenML; the complete copy is kept in the folder ``openml`` of the data
    root. A copy that scikit-learn itself has kept there serves too.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        "all" is the training images, then the test images.
    data_home : str, optional
        Data root. None is the folder in the environment variable TWINSOLVE_DATA, else the user's
        cache folder.
    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a Bunch.

    Returns
    -------
    Bunch
        ``images``: uint8 ndarray of shape (n_images, 28, 28); ``data``: the same as float32 rows
        of 784 pixel values, 0 to 255; ``target``: classes from 0; ``target_names``; ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If the files are missing and OpenML cannot be reached, or the folder cannot be written:
        names the files, the folder and the source.
    ValueError
        If a file is damaged or does not hold the expected arrays, or `subset` is unknown.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_mnist
    >>> fetch_mnist(subset="test").data.shape  # doctest: +SKIP
    (10000, 784)
    """
    return _idx_or_openml("mnist", "mnist_784", _MNIST, digits, subset, data_home, return_X_y)


def fetch_fashion_mnist(
    *, subset: str = "train", data_home: str | None = None, return_X_y: bool = False
) -> Bunch:
    """Load Fashion-MNIST: 60,000 training and 10,000 test images of clothing.

    Files, parameters, errors and fields as in `fetch_mnist`; the folder is
    ``fashion-mnist`` (never the root itself: the file names are those of MNIST).

    Examples
    --------
    >>> from twinsolve.datasets import fetch_fashion_mnist
    >>> fetch_fashion_mnist().target_names[:2]  # doctest: +SKIP
    ['T-shirt/top', 'Trouser']
    """
    return _idx_or_openml(
        "fashion-mnist", "Fashion-MNIST", _FASHION, _CLOTHES, subset, data_home, return_X_y
    )


def fetch_emnist(
    *,
    split: str = "balanced",
    subset: str = "train",
    data_home: str | None = None,
    return_X_y: bool = False,
) -> Bunch:
    """Load EMNIST: handwritten digits and letters in the form of MNIST.

    Read from IDX files only, ``emnist-SPLIT-train-images-idx3-ubyte`` and its sisters, plain or
    with the suffix ``.gz``, in the folder ``emnist`` or ``emnist/gzip`` of the data root, or in the
    root itself. The files hold the images transposed; they are returned upright. Further
    parameters, errors and fields as in `fetch_mnist`.

    Parameters
    ----------
    split : {"balanced", "byclass", "bymerge", "letters", "digits", "mnist"}, default="balanced"
        They have 47, 62, 47, 26, 10 and 10 classes.

    Examples
    --------
    >>> from twinsolve.datasets import fetch_emnist
    >>> len(fetch_emnist(split="letters").target_names)  # doctest: +SKIP
    26
    """
    parts = subset_parts(subset)
    if split not in _SPLITS:
        raise ValueError(f"split: must be one of {sorted(_SPLITS)}, got {split!r}")
    pairs = [_idx_pair("emnist", f"emnist-{split}-{part}", data_home, _EMNIST) for part in parts]
    images, target = _read_pairs(pairs, first=int(split == "letters"), names=_SPLITS[split])
    return _bunch(images.transpose(0, 2, 1), target, _SPLITS[split], _EMNIST, return_X_y)


def _idx_or_openml(
    folder: str,
    openml_name: str,
    source: str,
    names: Sequence[str],
    subset: str,
    data_home: str | None,
    return_X_y: bool,
) -> Bunch:
    """Load a data set from its IDX files or, without them, from OpenML."""
    parts = subset_parts(subset)
    prefixes = {"train": "train", "test": "t10k"}
    try:
        pairs = [_idx_pair(folder, prefixes[part], data_home, source) for part in parts]
    except FileNotFoundError as missing:
        images, target = _openml(openml_name, data_home, missing)
        start = 0 if "train" in parts else _SIZES["train"]
        stop = start + sum(_SIZES[part] for part in parts)
        images, target = images[start:stop], target[start:stop]
    else:
        images, target = _read_pairs(pairs, first=0, names=names)
    return _bunch(images, target, names, source, return_X_y)


def _idx_pair(folder: str, prefix: str, data_home: str | None, source: str) -> tuple[Path, Path]:
    """Return the paths of the IDX files of images and labels."""

    def find(kind: str) -> Path:
        name = f"{prefix}-{kind}-ubyte"
        places = [f"{place}{name}{end}" for place, end in product(_places(folder), ("", ".gz"))]
        return first_data_file(places, data_home, source)

    return find("images-idx3"), find("labels-idx1")


def _places(folder: str) -> tuple[str, ...]:
    """Return the folders below the data root where a data set's IDX files may lie."""
    # The files of Fashion-MNIST have the same names as those of MNIST: the folder must differ.
    if folder == "fashion-mnist":
        return (f"{folder}/",)
    return (f"{folder}/", f"{folder}/gzip/", "") if folder == "emnist" else (f"{folder}/", "")


def _read_pairs(
    pairs: Sequence[tuple[Path, Path]], *, first: int, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Read images and classes from pairs of IDX files; `first` is the first class's label."""
    images, target = [], []
    for image_path, label_path in pairs:
        pixels, labels = read_idx(image_path), read_idx(label_path)
        if pixels.ndim != 3 or pixels.dtype != np.uint8 or pixels.shape[1:] != (28, 28):
            raise ValueError(
                f"{image_path}: must hold bytes in shape (n, 28, 28), got {pixels.dtype} in "
                f"shape {pixels.shape}"
            )
        if labels.shape != (len(pixels),) or labels.dtype != np.uint8:
            raise ValueError(
                f"{label_path}: must hold {len(pixels)} labels as bytes, got {labels.dtype} in "
                f"shape {labels.shape}"
            )
        classes = labels.astype(np.int64) - first
        if classes.size and not 0 <= classes.min() <= classes.max() < len(names):
            raise ValueError(
                f"{label_path}: labels must be {first} to {first + len(names) - 1}, got "
                f"{labels.min()} to {labels.max()}"
            )
        images.append(pixels)
        target.append(classes)
    return np.concatenate(images), np.concatenate(target)


def _openml(
    name: str, data_home: str | None, missing: FileNotFoundError
) -> tuple[np.ndarray, np.ndarray]:
    """Load images and classes from OpenML, training part first; `missing` begins the error."""
    cache = data_root(data_home) / "openml" / name
    try:
        dataset = _from_openml(name, cache)
    except OSError as error:
        raise FileNotFoundError(f"{missing} Nor did it come from OpenML: {error}") from error
    images = np.asarray(dataset.data)
    n_images = sum(_SIZES.values())
    if images.shape != (n_images, 28 * 28):
        raise ValueError(f"{cache}: {name} must hold {n_images} images, got {images.shape}")
    return images.reshape(-1, 28, 28).astype(np.uint8), np.asarray(dataset.target).astype(np.int64)


def _from_openml(name: str, cache: Path) -> Bunch:
    """Load a data set by scikit-learn, from the copy in `cache` if there is one.

    scikit-learn works in a temporary folder, with links to the files in `cache` or in its own
    folder beside it. New files go to `cache` when all are there: a failure leaves nothing.
    """
    places = [folder / "openml.org" for folder in (cache / "openml", cache.parent)]
    file_name = f"data_name/{name.lower()}"
    with TemporaryDirectory() as temporary:
        stored = next((place for place in places if any(place.rglob(file_name))), None)
        if stored is not None:
            links = Path(temporary, "openml", stored.name)
            copytree(stored.resolve(), links, copy_function=os.symlink)
        dataset = fetch_openml(name, version=1, as_frame=False, data_home=temporary)
        if any(path.is_file() and not path.is_symlink() for path in Path(temporary).rglob("*")):
            _keep(temporary, cache)
    return dataset


def _keep(folder: str, cache: Path) -> None:
    """Copy a complete folder to `cache`, which appears there all at once."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(cache.parent)
    part = cache.with_name(f"{cache.name}.{os.getpid()}.part")
    try:
        copytree(folder, part)
        part.rename(cache)
    except OSError:
        rmtree(part, ignore_errors=True)
        if not cache.is_dir():  # otherwise another process was faster
            raise


def _bunch(
    images: np.ndarray, target: np.ndarray, names: Sequence[str], source: str, return_X_y: bool
) -> Bunch:
    """Return a Bunch, or data and target if `return_X_y`."""
    images = np.ascontiguousarray(images)
    data = image_rows(images).astype(np.float32)
    if return_X_y:
        return data, target
    return Bunch(data=data, images=images, target=target, target_names=list(names), DESCR=source)
