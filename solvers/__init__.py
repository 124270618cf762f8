"""Classical solvers: NumPy, SciPy and numba, without torch.

Samples, signals and tokens are rows throughout. Iterative solvers return a `Solution` with a
certificate; closed forms and filters return arrays.
"""

import importlib
from typing import Any

from .boosting import boost, l2_boosting, sos_boosting, twicing
from .clustering import (
    ElasticNetSubspaceClustering,
    KSubspaces,
    LeastSquaresSubspaceClustering,
    LocallyLinearSubspaceClustering,
    LowRankRepresentationClustering,
    LowRankSparseSubspaceClustering,
    LowRankSubspaceClustering,
    MotionSegmentation,
    NearestNeighborClustering,
    OMPSubspaceClustering,
    OutlierSubspaceClustering,
    SparseSubspaceClustering,
    ThresholdingSubspaceClustering,
    choose_clusterer,
    choose_settings,
)
from .conditioning import gray_tokens
from .image_filters import bilateral_filter, nonlocal_means
from .kernel_smoothing import (
    anisotropic_nonlocal_means,
    local_linear_regression,
    nadaraya_watson,
    sinkhorn,
    smoother_matrix,
    sparsemax,
)
from .locally_linear import LocallyLinearEmbedding, locally_linear_embedding, locally_linear_weights
from .metrics import clustering_accuracy
from .nonlocal_energy import minimize_energy, regularized_energy, smoothness
from .self_expression import (
    basis_pursuit_self_expression,
    least_squares_self_expression,
    low_rank_self_expression,
    low_rank_sparse_self_expression,
    omp_self_expression,
    outlier_self_expression,
    robust_low_rank_self_expression,
    sparse_self_expression,
)
from .solution import Solution
from .sparse_coding import fista, ista, ksvd, sparse_code
from .spectral_filtering import high_pass_scale, split_frequencies

_BY_NAME = ("oracles",)  # loaded only when asked for, as they need cvxpy

__all__ = [
    "ElasticNetSubspaceClustering",
    "KSubspaces",
    "LeastSquaresSubspaceClustering",
    "LocallyLinearEmbedding",
    "LocallyLinearSubspaceClustering",
    "LowRankRepresentationClustering",
    "LowRankSparseSubspaceClustering",
    "LowRankSubspaceClustering",
    "MotionSegmentation",
    "NearestNeighborClustering",
    "OMPSubspaceClustering",
    "OutlierSubspaceClustering",
    "Solution",
    "SparseSubspaceClustering",
    "ThresholdingSubspaceClustering",
    "anisotropic_nonlocal_means",
    "basis_pursuit_self_expression",
    "bilateral_filter",
    "boost",
    "choose_clusterer",
    "choose_settings",
    "clustering_accuracy",
    "fista",
    "gray_tokens",
    "high_pass_scale",
    "ista",
    "ksvd",
    "l2_boosting",
    "least_squares_self_expression",
    "local_linear_regression",
    "locally_linear_embedding",
    "locally_linear_weights",
    "low_rank_self_expression",
    "low_rank_sparse_self_expression",
    "minimize_energy",
    "nadaraya_watson",
    "nonlocal_means",
    "omp_self_expression",
    "outlier_self_expression",
    "regularized_energy",
    "robust_low_rank_self_expression",
    "sinkhorn",
    "smoother_matrix",
    "smoothness",
    "sos_boosting",
    "sparse_code",
    "sparse_self_expression",
    "sparsemax",
    "split_frequencies",
    "twicing",
]


def __getattr__(name: str) -> Any:
    if name in _BY_NAME:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
