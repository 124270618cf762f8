"""Kernel regression on points: the classical side of softmax-type attention."""

from .regression import nadaraya_watson, smoother_matrix, weighted_least_squares_residual

__all__ = ["nadaraya_watson", "smoother_matrix", "weighted_least_squares_residual"]
