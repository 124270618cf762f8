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
from .self_expression import (
    SelfExpressiveNetwork,
    UnrolledSelfExpression,
)
from .sparse_coding import (
    LISTA,
    SparseCoding,
    SparseMixtureOfExperts,
)

__all__ = [
    "LISTA",
    "Attention",
    "Context",
    "Correction",
    "Gaussian",
    "LocallyLinear",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "SelfExpressiveNetwork",
    "Softmax",
    "SoftmaxSmoother",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "Twicing",
    "UnrolledSelfExpression",
    "make_operator",
    "operator_names",
    "register_operator",
]
