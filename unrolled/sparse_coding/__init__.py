"""Sparse codes as layers: attention by unrolled ISTA, learned solvers, mixtures of experts."""

from .sparse_attention import SparseCoding, ista_codes, safe_step, soft_threshold

__all__ = [
    "SparseCoding",
    "ista_codes",
    "safe_step",
    "soft_threshold",
]
