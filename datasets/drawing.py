"""Random draws that the generators share."""

from typing import Any

import numpy as np


def per_group(value: Any, name: str, n_groups: int) -> list[int]:
    """Return one whole number >= 1 for each group; a single number counts for all groups."""
    values = np.broadcast_to(value, n_groups) if np.ndim(value) == 0 else np.asarray(value)
    if values.shape != (n_groups,) or values.dtype.kind not in "iu" or values.min() < 1:
        raise ValueError(
            f"{name}: must hold one whole number >= 1 for each of {n_groups} groups, got {value!r}"
        )
    return [int(entry) for entry in values]


def sphere(rng: np.random.RandomState, n: int, n_features: int) -> np.ndarray:
    """Draw points uniformly on the unit sphere."""
    points = rng.standard_normal((n, n_features))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def orthonormal_rows(rng: np.random.RandomState, n: int, n_features: int) -> np.ndarray:
    """Draw orthonormal rows whose span is uniform among subspaces."""
    return np.linalg.qr(rng.standard_normal((n_features, n)))[0].T
