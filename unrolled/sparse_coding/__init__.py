"""Sparse codes as layers: attention by unrolled ISTA, learned solvers, mixtures of experts."""

from .code_blocks import (
    ista_attention,
)
from .iterations import (
    ista_codes,
    ista_step,
    soft_threshold,
    support_step,
)
from .sparse_attention import (
    SparseCoding,
)
from .step_lengths import (
    curvature,
    safe_step,
)

__all__ = [
    "SparseCoding",
    "curvature",
    "ista_attention",
    "ista_codes",
    "ista_step",
    "safe_step",
    "soft_threshold",
    "support_step",
]
