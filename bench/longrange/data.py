"""Sequences of symbols or of grey levels in three parts."""

from functools import lru_cache

import numpy as np
import torch

from ...datasets import make_list_ops, make_pathfinder
from ...datasets.list_ops import LIST_OPS_TOKENS
from ..names import close_names, split_settings
from ..vision.classification.data import Images, Splits, load_splits

N_SYMBOLS = len(LIST_OPS_TOKENS)
_SEED = 0
_N_TEST = 2000
_OF_DATA: dict[str, dict[str, int]] = {
    "listops": {
        "n_train": 20_000, "min_length": 20, "max_length": 100, "max_depth": 10, "max_args": 10,
    },
    "pathfinder": {"n_train": 20_000, "size": 16},
    "cifar-pixels": {"n_train": 50_000, "size": 16},
}  # fmt: skip


@lru_cache(maxsize=1)
def load_sequences(data: str, data_home: str | None = None) -> Splits:
    """Load sequences of classes in three parts, the same each time.

    Parameters
    ----------
    data : str
        "listops", "pathfinder" or "cifar-pixels", with settings such as ``listops:max_length=100``:
        `n_train`, of which a tenth validates; `min_length`, `max_length`, `max_depth` and
        `max_args` of ListOps; `size` in pixels, which divides 32 for CIFAR.
    data_home : str, optional
        As in `twinsolve.datasets.fetch_cifar10`.

    Returns
    -------
    Splits
        Symbols of ListOps, 0 behind their end, no expression twice; or pixels in raster order, of
        Pathfinder, and of CIFAR-10 in grey and averaged over squares. 2,000 sequences test, or the
        test images of CIFAR-10.

    Raises
    ------
    ValueError
        If there are no such data, or a setting is unknown or out of range.
    """
    name, given = split_settings(data, "data")
    if name not in _OF_DATA:
        raise ValueError(f"data: must be one of {', '.join(_OF_DATA)}, got {name!r}")
    for key, value in given.items():
        if key not in _OF_DATA[name]:
            close = close_names(key, _OF_DATA[name])
            raise ValueError(f"data: {name} takes {', '.join(_OF_DATA[name])}, not {key!r}{close}")
        if type(value) is not int:
            raise ValueError(f"data: {key} must be a whole number, got {value!r}")
    settings = _OF_DATA[name] | given
    if settings["n_train"] < 100:
        raise ValueError(f"data: n_train must be at least 100, got {settings['n_train']}")
    if name == "listops":
        return _draw_list_ops(**settings)
    if name == "pathfinder":
        return _draw_pathfinder(**settings)
    return _load_cifar_pixels(data_home, **settings)


def _draw_list_ops(n_train: int, min_length: int, max_length: int, **shape: int) -> Splits:
    tokens, values = make_list_ops(
        n_train + _N_TEST, length=(min_length, max_length), random_state=_SEED, **shape
    )
    first = np.sort(np.unique(tokens, axis=0, return_index=True)[1])
    return _split(tokens[first], values[first], tuple(map(str, range(10))))


def _draw_pathfinder(n_train: int, size: int) -> Splits:
    images, connected = make_pathfinder(n_train + _N_TEST, size=size, random_state=_SEED)
    return _split(images.reshape(len(images), -1), connected, ("apart", "connected"))


def _split(tokens: np.ndarray, target: np.ndarray, classes: tuple[str, ...]) -> Splits:
    n_chosen = (len(tokens) - _N_TEST) // 10
    parts = [_N_TEST, _N_TEST + n_chosen]
    test, validation, train = (
        Images(torch.from_numpy(own), torch.from_numpy(labels))
        for own, labels in zip(np.split(tokens, parts), np.split(target, parts), strict=True)
    )
    return Splits(train, validation, test, classes)


def _load_cifar_pixels(data_home: str | None, n_train: int, size: int) -> Splits:
    if size < 1 or 32 % size:
        raise ValueError(f"data: size of cifar-pixels must divide 32, got {size}")
    colour = load_splits(f"cifar10:n_train={n_train}", data_home)
    train, validation, test = (
        _make_sequences(x, size) for x in (colour.train, colour.validation, colour.test)
    )
    return Splits(train, validation, test, colour.classes)


def _make_sequences(images: Images, size: int) -> Images:
    grey = torch.nn.functional.adaptive_avg_pool2d(images.levels.mean(dim=1), size)
    return Images(grey.flatten(1), images.target)
