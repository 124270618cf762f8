"""Classical solvers: NumPy, SciPy and numba, without torch.

Samples, signals and tokens are rows throughout. Problems that are solved return a `Solution` with
a certificate; closed forms and filters return arrays.
"""

from .boosting import twicing
from .clustering import symmetric_affinity
from .image_filters import nonlocal_means, nonlocal_means_matrix
from .kernel_smoothing import nadaraya_watson, smoother_matrix, weighted_least_squares_residual
from .locally_linear import locally_linear_residual, locally_linear_weights
from .metrics import clustering_accuracy, coefficient_distance, relative_residual
from .self_expression import (
    admm_self_expression,
    basis_pursuit_self_expression,
    lam_from_alpha,
    lam_from_gamma,
    least_squares_residual,
    least_squares_self_expression,
    low_rank_gap,
    low_rank_self_expression,
    low_rank_sparse_self_expression,
    omp_self_expression,
    outlier_lams_from_alpha,
    outlier_self_expression,
    proximal_self_expression,
    robust_low_rank_self_expression,
    sparse_self_expression,
)
from .solution import Solution
from .sparse_coding import (
    coordinate_descent,
    duality_gap,
    fista,
    ista,
    ksvd,
    lam_max,
    lasso_objective,
    sparse_code,
)

__all__ = [
    "Solution",
    "admm_self_expression",
    "basis_pursuit_self_expression",
    "clustering_accuracy",
    "coefficient_distance",
    "coordinate_descent",
    "duality_gap",
    "fista",
    "ista",
    "ksvd",
    "lam_from_alpha",
    "lam_from_gamma",
    "lam_max",
    "lasso_objective",
    "least_squares_residual",
    "least_squares_self_expression",
    "locally_linear_residual",
    "locally_linear_weights",
    "low_rank_gap",
    "low_rank_self_expression",
    "low_rank_sparse_self_expression",
    "nadaraya_watson",
    "nonlocal_means",
    "nonlocal_means_matrix",
    "omp_self_expression",
    "outlier_lams_from_alpha",
    "outlier_self_expression",
    "proximal_self_expression",
    "relative_residual",
    "robust_low_rank_self_expression",
    "smoother_matrix",
    "sparse_code",
    "sparse_self_expression",
    "symmetric_affinity",
    "twicing",
    "weighted_least_squares_residual",
]
