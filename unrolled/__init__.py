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
from .fixed_point import (
    ConvergenceWarning,
    FixedPoint,
    Solved,
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
from .nonlocal_energy import (
    Neutreno,
)
from .sparse_coding import (
    SparseCoding,
)

__all__ = [
    "Attention",
    "Context",
    "ConvergenceWarning",
    "Correction",
    "FixedPoint",
    "Gaussian",
    "LocallyLinear",
    "Neutreno",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "Softmax",
    "SoftmaxSmoother",
    "Solved",
    "SparseCoding",
    "Twicing",
    "make_operator",
    "operator_names",
    "register_operator",
]
