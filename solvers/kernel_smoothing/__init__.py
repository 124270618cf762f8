"""Kernel regression on points: the classical side of softmax-type attention."""

from .regression import nadaraya_watson, smoother_matrix, weighted_least_squares_residual
from .simplex import entropic_gap, simplex_projection_residual, sparsemax

__all__ = [
    "entropic_gap",
    "nadaraya_watson",
    "simplex_projection_residual",
    "smoother_matrix",
    "sparsemax",
    "weighted_least_squares_residual",
]
