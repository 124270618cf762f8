"""Filters of images as layers: attention between pixels and between patches."""

from .bilateral import BilateralFilter
from .embedded_patches import EmbeddedMeans, patch_identity
from .nonlocal_means import NonLocalMeansAttention, nonlocal_means_attention
from .tiles import tiled_average

__all__ = [
    "BilateralFilter",
    "EmbeddedMeans",
    "NonLocalMeansAttention",
    "nonlocal_means_attention",
    "patch_identity",
    "tiled_average",
]
