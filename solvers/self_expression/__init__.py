"""Self-expression: each sample as a combination of the others. Samples are rows."""

from .greedy import omp_self_expression
from .low_rank import low_rank_gap, low_rank_self_expression
from .ridge import least_squares_residual, least_squares_self_expression
from .sparse import sparse_self_expression

__all__ = [
    "least_squares_residual",
    "least_squares_self_expression",
    "low_rank_gap",
    "low_rank_self_expression",
    "omp_self_expression",
    "sparse_self_expression",
]
