"""Attention as kernel regression of the values."""

from .alibi import ALiBi, alibi_slopes
from .balancing import Sinkhorn
from .bilateral import Biased, Bilateral, store_positions
from .elliptical import Elliptical, elliptical_weights
from .entmax import Entmax, entmax_weights
from .gaussian import Gaussian, gaussian_attention
from .kernel import FeatureKernel, Kernel, elu_features
from .linear import Linear, linear_attention
from .linformer import Linformer
from .local import CrissCross, Local
from .logistic import Logistic
from .logits import distances, gaussian_logits, squared_distances
from .nystrom import Nystrom
from .simplex import Sparsemax, project_on_simplex
from .softmax import Softmax, Symmetric, TopK
from .spatial_gaussian import SpatialGaussian
from .talking_heads import TalkingHeads
from .tupe import Tupe

__all__ = [
    "ALiBi",
    "Biased",
    "Bilateral",
    "CrissCross",
    "Elliptical",
    "Entmax",
    "FeatureKernel",
    "Gaussian",
    "Kernel",
    "Linear",
    "Linformer",
    "Local",
    "Logistic",
    "Nystrom",
    "Sinkhorn",
    "Softmax",
    "Sparsemax",
    "SpatialGaussian",
    "Symmetric",
    "TalkingHeads",
    "TopK",
    "Tupe",
    "alibi_slopes",
    "distances",
    "elliptical_weights",
    "elu_features",
    "entmax_weights",
    "gaussian_attention",
    "gaussian_logits",
    "linear_attention",
    "project_on_simplex",
    "squared_distances",
    "store_positions",
]
