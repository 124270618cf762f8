"""Attention as kernel regression of the values."""

from .alibi import (
    ALiBi,
    alibi_slopes,
)
from .balancing import (
    Sinkhorn,
)
from .biased import (
    Biased,
)
from .bilateral import (
    Bilateral,
)
from .elliptical import (
    Elliptical,
    elliptical_weights,
)
from .feature_kernel import (
    FeatureKernel,
    elu_features,
)
from .gaussian import (
    Gaussian,
    gaussian_attention,
)
from .kernel import (
    Kernel,
)
from .linear import (
    Linear,
    linear_attention,
)
from .local import (
    CrissCross,
    Local,
)
from .logistic import (
    Logistic,
)
from .pair_distances import (
    distances,
    squared_distances,
)
from .simplex import (
    Sparsemax,
    project_on_simplex,
)
from .softmax import (
    Softmax,
)
from .spatial_gaussian import (
    SpatialGaussian,
)
from .symmetric import (
    Symmetric,
)
from .top_k import (
    TopK,
)
from .tupe import (
    Tupe,
)

__all__ = [
    "ALiBi",
    "Biased",
    "Bilateral",
    "CrissCross",
    "Elliptical",
    "FeatureKernel",
    "Gaussian",
    "Kernel",
    "Linear",
    "Local",
    "Logistic",
    "Sinkhorn",
    "Softmax",
    "Sparsemax",
    "SpatialGaussian",
    "Symmetric",
    "TopK",
    "Tupe",
    "alibi_slopes",
    "distances",
    "elliptical_weights",
    "elu_features",
    "gaussian_attention",
    "linear_attention",
    "project_on_simplex",
    "squared_distances",
]
