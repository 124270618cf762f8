"""Self-expression: each sample as a combination of the others. Samples are rows.

Samples may be sparse: they are solved in dense coordinates with the same inner products
(`twinsolve.solvers.sparse_points`). Only outliers, which are single features, need dense samples.
"""

from .admm import admm_self_expression
from .admm_low_rank import admm_low_rank_self_expression
from .admm_outlier import admm_outlier_self_expression
from .constrained import basis_pursuit_self_expression
from .low_rank import low_rank_gap, low_rank_self_expression
from .outlier import outlier_self_expression
from .proximal import low_rank_sparse_self_expression, proximal_self_expression
from .ridge import least_squares_residual, least_squares_self_expression
from .robust_low_rank import robust_low_rank_self_expression
from .scales import lam_from_alpha, lam_from_gamma, outlier_lams_from_alpha
from .sparse import omp_self_expression, sparse_self_expression

__all__ = [
    "admm_low_rank_self_expression",
    "admm_outlier_self_expression",
    "admm_self_expression",
    "basis_pursuit_self_expression",
    "lam_from_alpha",
    "lam_from_gamma",
    "least_squares_residual",
    "least_squares_self_expression",
    "low_rank_gap",
    "low_rank_self_expression",
    "low_rank_sparse_self_expression",
    "omp_self_expression",
    "outlier_lams_from_alpha",
    "outlier_self_expression",
    "proximal_self_expression",
    "robust_low_rank_self_expression",
    "sparse_self_expression",
]
