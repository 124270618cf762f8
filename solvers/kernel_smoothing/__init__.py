"""Kernel regression on points: the classical side of softmax-type attention."""

from .regression import nadaraya_watson, smoother_matrix, weighted_least_squares_residual
from .simplex import entropic_gap, simplex_projection_residual, sparsemax

__all__ = [
    "entropic_gap",
    "nadaraya_watson",
    "simplex_projection_residual",
    "smoother_matrix",
    "sparsemax",
from .anisotropic import anisotropic_nonlocal_means, elliptical_metric, oriented_metric
from .balancing import marginal_violation, sinkhorn
from .local_linear import local_linear_regression, local_linear_residual
from .regression import (
    nadaraya_watson,
    nadaraya_watson_residual,
    smoother_matrix,
    weighted_least_squares_residual,
)

__all__ = [
    "anisotropic_nonlocal_means",
    "elliptical_metric",
    "local_linear_regression",
    "local_linear_residual",
    "marginal_violation",
    "nadaraya_watson",
    "nadaraya_watson_residual",
    "oriented_metric",
    "sinkhorn",
    "smoother_matrix",
    "weighted_least_squares_residual",
]
