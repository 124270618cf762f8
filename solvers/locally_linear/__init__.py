"""Locally linear embedding: the classical side of masked affine attention."""

from .weights import locally_linear_residual, locally_linear_weights

__all__ = ["locally_linear_residual", "locally_linear_weights"]
