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
    ALiBi,
    Biased,
    Bilateral,
    Elliptical,
    Gaussian,
    Sinkhorn,
    Softmax,
    Tupe,
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
    "ALiBi",
    "Attention",
    "Biased",
    "Bilateral",
    "Context",
    "Correction",
    "Elliptical",
    "Gaussian",
    "LocallyLinear",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "Sinkhorn",
    "Softmax",
    "SoftmaxSmoother",
    "SparseCoding",
    "Tupe",
    "Twicing",
    "make_operator",
    "operator_names",
    "register_operator",
]
