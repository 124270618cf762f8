"""Kernel regression on points: the classical side of softmax-type attention."""

from .anisotropic import anisotropic_nonlocal_means, elliptical_metric, oriented_metric
from .balancing import marginal_violation, sinkhorn
from .local_linear import local_linear_regression, local_linear_residual
from .nystrom import (
    iterated_pseudo_inverse,
    nystrom_factors,
    nystrom_matrix,
    nystrom_smoother,
    pseudo_inverse_residual,
    segment_means,
)
from .regression import (
    nadaraya_watson,
    nadaraya_watson_residual,
    smoother_matrix,
    weighted_least_squares_residual,
)
from .simplex import entmax, entmax_gap, entropic_gap, simplex_projection_residual, sparsemax

__all__ = [
    "anisotropic_nonlocal_means",
    "elliptical_metric",
    "entmax",
    "entmax_gap",
    "entropic_gap",
    "iterated_pseudo_inverse",
    "local_linear_regression",
    "local_linear_residual",
    "marginal_violation",
    "nadaraya_watson",
    "nadaraya_watson_residual",
    "nystrom_factors",
    "nystrom_matrix",
    "nystrom_smoother",
    "oriented_metric",
    "pseudo_inverse_residual",
    "segment_means",
    "simplex_projection_residual",
    "sinkhorn",
    "smoother_matrix",
    "sparsemax",
    "weighted_least_squares_residual",
]
