"""Learnable attention layers, each the unrolled form of a solver in `twinsolve.solvers`.

Operators work on (q, k, v) and go into the shell `Attention`; corrections wrap operators. The
bridge to the solvers is `twinsolve.unrolled.twins`, imported by name.
"""

from .attention import Attention, Context, Operator, Positive
from .boosting import Twicing
from .image_filters import NonLocalMeansAttention
from .kernel_smoothing import Gaussian, Softmax
from .locally_linear import LocallyLinear
from .sparse_coding import SparseCoding

__all__ = [
    "Attention",
    "Context",
    "Gaussian",
    "LocallyLinear",
    "NonLocalMeansAttention",
    "Operator",
    "Positive",
    "Softmax",
    "SparseCoding",
    "Twicing",
]
