"""Sparse codes as layers: attention by unrolled ISTA, learned solvers, mixtures of experts."""

from .coherence import analytic_step, analytic_weights
from .iteration_parameters import at_iteration, positive_per_iteration
from .learned_ista import LISTA
from .mixture_of_experts import SparseMixtureOfExperts
from .sparse_attention import SparseCoding, ista_codes, safe_step, soft_threshold

__all__ = [
    "LISTA",
    "SparseCoding",
    "SparseMixtureOfExperts",
    "analytic_step",
    "analytic_weights",
    "at_iteration",
    "ista_codes",
    "positive_per_iteration",
    "safe_step",
    "soft_threshold",
]
