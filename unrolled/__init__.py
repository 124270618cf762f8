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
    GeneralizedResidual,
    Residual,
    Twicing,
)
from .conditioning import (
    TokenGraying,
)
from .image_filters import (
    NonLocalMeansAttention,
)
from .kernel_smoothing import (
    Gaussian,
    Softmax,
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
from .spectral_filtering import (
    AttnScale,
    FeatScale,
    LayerScale,
    ReAttention,
)

__all__ = [
    "Attention",
    "AttnScale",
    "Context",
    "Correction",
    "FeatScale",
    "Gaussian",
    "GeneralizedResidual",
    "LayerScale",
    "LocallyLinear",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "ReAttention",
    "Residual",
    "Softmax",
    "SoftmaxSmoother",
    "SparseCoding",
    "TokenGraying",
    "Twicing",
    "make_operator",
    "operator_names",
    "register_operator",
]
