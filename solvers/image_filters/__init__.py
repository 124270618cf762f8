"""Filters on images: the classical side of attention between patches and pixels."""

from .bilateral import bilateral_filter, bilateral_matrix
from .embedded_patches import embedded_means
from .nonlocal_patches import nonlocal_means, nonlocal_means_matrix

__all__ = [
    "bilateral_filter",
    "bilateral_matrix",
    "embedded_means",
    "nonlocal_means",
    "nonlocal_means_matrix",
]
