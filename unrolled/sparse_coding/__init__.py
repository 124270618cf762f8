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
    accelerated,
    proximal_map,
    proximal_step,
    repeated,
    support_step,
)
from .learned_ista import (
    LISTA,
)
from .mixture_of_experts import (
    SparseMixtureOfExperts,
)
from .patch_sparse_coding import (
    PatchSparseCoding,
)
from .penalties import (
    SparsePenalty,
    lam_max_of,
    soft_threshold,
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
    "PatchSparseCoding",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "SparsePenalty",
    "accelerated",
    "analytic_step",
    "analytic_weights",
    "at_iteration",
    "curvature",
    "ista_attention",
    "lam_max_of",
    "positive_per_iteration",
    "proximal_map",
    "proximal_step",
    "repeated",
    "safe_step",
    "soft_threshold",
    "support_step",
]
