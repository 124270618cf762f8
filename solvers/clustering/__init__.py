"""From coefficients to clusters: affinities, the spectral step, and the estimators."""

from .affinity import (
    keep_l1_mass,
    keep_largest,
    low_rank_affinity,
    nearest_rows_affinity,
    scale_by_row_maximum,
    softmax_rows,
    svd_power_affinity,
    symmetric_affinity,
    unit_rows,
)
from .closed_form import LeastSquaresSubspaceClustering, LowRankSubspaceClustering
from .filed import FiledClustering
from .k_subspaces import KSubspaces
from .low_rank import LowRankRepresentationClustering, LowRankSparseSubspaceClustering
from .motion import MotionSegmentation
from .neighbors import (
    LocallyLinearSubspaceClustering,
    NearestNeighborClustering,
    ThresholdingSubspaceClustering,
)
from .outlier import OutlierSubspaceClustering
from .ranking import rank_clusterings
from .score import selection_score
from .selection import ChosenClusterer, ChosenSettings, choose_clusterer, choose_settings
from .sparse import ElasticNetSubspaceClustering, OMPSubspaceClustering, SparseSubspaceClustering
from .spectral import eigengap_n_clusters, spectral_labels

__all__ = [
    "ChosenClusterer",
    "ChosenSettings",
    "ElasticNetSubspaceClustering",
    "FiledClustering",
    "KSubspaces",
    "LeastSquaresSubspaceClustering",
    "LocallyLinearSubspaceClustering",
    "LowRankRepresentationClustering",
    "LowRankSparseSubspaceClustering",
    "LowRankSubspaceClustering",
    "MotionSegmentation",
    "NearestNeighborClustering",
    "OMPSubspaceClustering",
    "OutlierSubspaceClustering",
    "SparseSubspaceClustering",
    "ThresholdingSubspaceClustering",
    "choose_clusterer",
    "choose_settings",
    "eigengap_n_clusters",
    "keep_l1_mass",
    "keep_largest",
    "low_rank_affinity",
    "nearest_rows_affinity",
    "rank_clusterings",
    "scale_by_row_maximum",
    "selection_score",
    "softmax_rows",
    "spectral_labels",
    "svd_power_affinity",
    "symmetric_affinity",
    "unit_rows",
]
