"""Points of the learned-against-solved studies: unit rows with labels, generated or real."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize

from ...datasets import fetch_coil20, fetch_extended_yale_b, load_digits, make_union_of_subspaces

Array = np.ndarray
Points = tuple[Array, Array]

_WIDTH = 100  # leading singular directions that images are projected to
_PERSONS = 10


def unit_points(name: str, *, seed: int = 0, data_home: str | None = None) -> Points:
    """Shuffled points of unit norm and their labels from 0, of a set among `POINT_SETS`.

    Raises
    ------
    FileNotFoundError
        If the set's file is missing.
    """
    X, y = POINT_SETS[name](seed, data_home)
    order = np.random.default_rng(seed).permutation(len(X))
    return normalize(X[order]), y[order]


def at_hand(names: Sequence[str], data_home: str | None) -> list[str]:
    """Those of the sets whose files are there."""
    found = []
    for name in names:
        try:
            POINT_SETS[name](0, data_home)
        except FileNotFoundError:
            continue
        found.append(name)
    return found


def _subspaces(seed: int, data_home: str | None, noise: float = 0.2) -> Points:
    return make_union_of_subspaces(
        180, n_subspaces=8, n_features=30, dimension=5, noise=noise, random_state=seed
    )


def _digits(seed: int, data_home: str | None) -> Points:
    return load_digits(return_X_y=True)


def _faces(seed: int, data_home: str | None) -> Points:
    X, y = fetch_extended_yale_b(data_home=data_home, return_X_y=True)
    some = y < _PERSONS
    return _leading(X[some]), y[some]


def _objects(seed: int, data_home: str | None) -> Points:
    X, y = fetch_coil20(data_home=data_home, return_X_y=True)
    return _leading(X), y


def _leading(images: Array) -> Array:
    """Not centred, so that subspaces through the origin stay what they are."""
    return TruncatedSVD(_WIDTH, random_state=0).fit_transform(images)


POINT_SETS: dict[str, Callable[[int, str | None], Points]] = {
    "subspaces": _subspaces,
    "noisy subspaces": partial(_subspaces, noise=0.6),
    "digits": _digits,
    "Yale B 10": _faces,
    "COIL-20": _objects,
}
