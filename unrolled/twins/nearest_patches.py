"""The patches closest to each, as the solver finds them; of equally close ones, the layer's."""

import math

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn

from ...solvers.sparse_coding.similar_patches import similar_patches
from ..sparse_coding.patches import Similar
from .registry import Array

_ROUNDINGS = 4  # of the squares of an image, which the layer's running sums reach


def nearest_patches(
    layer: nn.Module, planes: Array, size: int, *, window: int, n_similar: int
) -> Array:
    """Indices of shape (n_patches, n_similar), fewer where a corner's window holds fewer.

    The layer's choice counts for a patch where its distances are those of the solver's choice, up
    to the rounding of the layer's dtype: images of few grey levels have many equal ones.
    """
    fewest = math.prod(min(window, side - size) + 1 for side in planes.shape[1:])
    own = similar_patches(planes, size, window, min(n_similar, fewest))
    dtype = next(layer.parameters()).dtype
    images = torch.from_numpy(np.ascontiguousarray(planes))[None].to(dtype)
    chosen = Similar.around(images, size, window, n_similar).indices.numpy()
    windows = sliding_window_view(planes, (size, size), axis=(1, 2))
    rows = np.moveaxis(windows, 0, 2).reshape(len(own), -1)
    slack = _ROUNDINGS * torch.finfo(dtype).eps * float((planes**2).sum())
    apart = np.abs(_distances(rows, own) - _distances(rows, chosen)).max(axis=1)
    return np.where(apart[:, None] <= slack, chosen, own)


def _distances(rows: Array, indices: Array) -> Array:
    """Squared distances of each row to those indexed, sorted."""
    return np.sort(((rows[:, None] - rows[indices]) ** 2).sum(axis=2), axis=1)
