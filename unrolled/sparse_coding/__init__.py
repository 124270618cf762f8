"""Sparse codes as layers: attention by unrolled ISTA, learned solvers, mixtures of experts."""

from .code_blocks import (
    ista_attention,
)
from .coherence import (
    analytic_step,
    analytic_weights,
)
from .iteration_parameters import (
    at_iteration,
    positive_per_iteration,
)
from .iterations import (
    ista_codes,
    ista_step,
    soft_threshold,
    support_step,
)
from .learned_ista import (
    LISTA,
)
from .mixture_of_experts import (
    SparseMixtureOfExperts,
)
from .sparse_attention import (
    SparseCoding,
)
from .step_lengths import (
    curvature,
    safe_step,
)

__all__ = [
    "LISTA",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "analytic_step",
    "analytic_weights",
    "at_iteration",
    "curvature",
    "ista_attention",
    "ista_codes",
    "ista_step",
    "positive_per_iteration",
    "safe_step",
    "soft_threshold",
    "support_step",
]
