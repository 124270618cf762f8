"""Filters on images: the classical side of attention between patches and pixels."""

from .nonlocal_patches import nonlocal_means, nonlocal_means_matrix

__all__ = ["nonlocal_means", "nonlocal_means_matrix"]
