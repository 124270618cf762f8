"""Learnable attention layers, each the unrolled form of a solver in `twinsolve.solvers`.

Operators work on (q, k, v) and go into the shell `Attention`; corrections wrap operators. The
bridge to the solvers is `twinsolve.unrolled.twins`, imported by name.
"""

from .attention import (
    Attention,
    Context,
    Correction,
    Operator,
    Positive,
    SoftmaxSmoother,
)
from .boosting import (
    Twicing,
)
from .image_filters import (
    NonLocalMeansAttention,
)
from .kernel_smoothing import (
    CrissCross,
    FeatureKernel,
    Gaussian,
    Kernel,
    Linear,
    Local,
    Logistic,
    Softmax,
    Sparsemax,
    SpatialGaussian,
    Symmetric,
    TopK,
)
from .locally_linear import (
    LocallyLinear,
)
from .named_operators import (
    make_operator,
    operator_names,
    register_operator,
)
from .sparse_coding import (
    SparseCoding,
)

__all__ = [
    "Attention",
    "Context",
    "Correction",
    "CrissCross",
    "FeatureKernel",
    "Gaussian",
    "Kernel",
    "Linear",
    "Local",
    "LocallyLinear",
    "Logistic",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "Softmax",
    "SoftmaxSmoother",
    "SparseCoding",
    "Sparsemax",
    "SpatialGaussian",
    "Symmetric",
    "TopK",
    "Twicing",
    "make_operator",
    "operator_names",
    "register_operator",
]
