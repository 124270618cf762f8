"""Attention as kernel regression of the values."""

from .feature_kernel import FeatureKernel, elu_features
from .gaussian import Gaussian, gaussian_attention
from .kernel import Kernel
from .linear import Linear, linear_attention
from .local import CrissCross, Local
from .logistic import Logistic
from .simplex import Sparsemax, project_on_simplex
from .softmax import Softmax
from .spatial_gaussian import SpatialGaussian
from .symmetric import Symmetric
from .top_k import TopK

__all__ = [
    "CrissCross",
    "FeatureKernel",
    "Gaussian",
    "Kernel",
    "Linear",
    "Local",
    "Logistic",
    "Softmax",
    "Sparsemax",
    "SpatialGaussian",
    "Symmetric",
    "TopK",
    "elu_features",
    "gaussian_attention",
    "linear_attention",
    "project_on_simplex",
]
